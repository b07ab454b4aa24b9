package archtest

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/server/engine/kernel"
)

// Every file of the schema since 0.1.0 belongs to a feature that nodes of the release before do not know, or says why
// they may ignore it. So nobody adds a table and forgets the nodes that grant without looking at it.
func TestEveryMigrationBelongsToAFeature(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(moduleDir(t), "internal/server/store/schema/*.sql"))
	if err != nil || len(paths) == 0 {
		t.Fatal(paths, err)
	}
	want := make(map[string]bool)
	for _, path := range paths {
		if name := strings.TrimSuffix(filepath.Base(path), ".sql"); name >= firstMarked {
			want[name] = true
		}
	}
	listed := slices.Collect(maps.Keys(kernel.Unfeatured))
	for _, f := range kernel.Features {
		inText := f.Name == kernel.StepLimits.Name // stored in the text of a run
		if f.Name == "" || len(f.Schema) == 0 && !inText {
			t.Errorf("the feature %+v lacks a name or the files of the schema that it came with", f)
		}
		listed = append(listed, f.Schema...)
	}
	seen := make(map[string]bool)
	for _, name := range listed {
		switch {
		case seen[name]:
			t.Errorf("%s is listed twice in kernel.Features and kernel.Unfeatured", name)
		case !want[name]:
			t.Errorf("kernel.Features or kernel.Unfeatured has %s, which is no file of the schema", name)
		}
		seen[name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if !seen[name] {
			t.Errorf("schema/%s.sql is in no row of kernel.Features. What must a node of the release before not "+
				"ignore? Add a feature and call tx.Requires where it is used, or say in kernel.Unfeatured why it "+
				"may be ignored", name)
		}
	}
	for name, why := range kernel.Unfeatured {
		if why == "" {
			t.Errorf("kernel.Unfeatured does not say why %s may be ignored", name)
		}
	}
}

// The page of upgrades has a row for each feature that waits for the last older node.
func TestEveryFeatureIsOnThePageOfUpgrades(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(moduleDir(t), "docs", "upgrading.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range kernel.Features {
		if !strings.Contains(string(page), "\n| "+f.Name+" | ") {
			t.Errorf("docs/upgrading.md has no row for %s, which are refused while an older node is connected", f.Name)
		}
	}
}

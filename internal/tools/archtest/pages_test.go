package archtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Every package that has product code or a kit for tests is on the page about the architecture.
func TestArchitecturePageNamesAllPackages(t *testing.T) {
	page, err := os.ReadFile("../../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list(t) {
		name, ours := strings.CutPrefix(p.ImportPath, module+"/")
		switch {
		case !ours, strings.HasPrefix(name, "examples"), strings.HasPrefix(name, "cmd/"):
			continue
		case strings.Contains(name, "/internal/"), strings.HasPrefix(name, "internal/testkit/pgtest/"):
			continue // a package inside of another one: its parent is named
		}
		if !strings.Contains(string(page), "`"+name+"`") {
			t.Errorf("docs/architecture.md does not name `%s`", name)
		}
	}
}

// A file of the schema is applied by its position, and named by its number.
func TestSchemaFilesAreNumberedByPosition(t *testing.T) {
	files, err := filepath.Glob("../../server/store/schema/*.sql")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for i, f := range files {
		if want := fmt.Sprintf("%04d_", i+1); !strings.HasPrefix(filepath.Base(f), want) {
			t.Errorf("file %d of the schema is %s, want it to begin with %s", i+1, filepath.Base(f), want)
		}
	}
}

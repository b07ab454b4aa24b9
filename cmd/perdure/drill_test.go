package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/testkit/pgtest"
	"github.com/perdure/perdure/internal/wire/session"
)

func TestBackupDrill(t *testing.T) {
	c, _ := live(t)
	ctx := context.Background()
	for range 3 {
		if _, err := c.Start(ctx, perdure.Submission{Kind: "k", Metadata: map[string]string{"a": "b"}}); err != nil {
			t.Fatal(err)
		}
	}
	// One run is leased: the restore takes it back, with a line in its log.
	if p, err := session.Of(c).Poll(ctx, "w", api.Poll{Kinds: []string{"k"}, Slots: 1, Start: true}); err != nil ||
		len(p.Runs) != 1 {
		t.Fatalf("poll: %v, %v", p, err)
	}
	out := t.TempDir()
	file := filepath.Join(out, "b")
	mustRun(t, 0, "backup", file)
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text, _ := mustRun(t, 0, "backup", "drill", file)
	has(t, text, "backup    3 runs", "0 violations", "audit +1", "events +", "The backup can be restored.")
	text, _ = mustRun(t, 0, "backup", "drill", file, "--store", pgtest.New(t), "--json")
	var d drill
	if err := json.Unmarshal([]byte(text), &d); err != nil || !d.OK || d.Runs != 3 || d.Invariants < 20 ||
		d.Tables < 20 || len(d.Differences) != 2 {
		t.Errorf("drill into PostgreSQL = %+v (%v), want 3 runs and two tables with more rows", d, err)
	}
	text, _ = mustRun(t, 0, "backup", "drill", "--scratch", out) // of the running server
	has(t, text, "backup    3 runs", "taken in")

	damaged := filepath.Join(out, "damaged")
	changed := append([]byte(nil), before...)
	changed[len(changed)/2] ^= 1
	if err := os.WriteFile(damaged, changed, 0o600); err != nil {
		t.Fatal(err)
	}
	_, errs := mustRun(t, 1, "backup", "drill", damaged)
	has(t, errs, "damaged")
	mustRun(t, 1, "backup", "drill", filepath.Join(out, "none"))
	mustRun(t, 2, "backup", "drill", file, damaged)
	if after, err := os.ReadFile(file); err != nil || string(after) != string(before) {
		t.Errorf("the backup was changed by its drill (%v)", err)
	}
	if left, _ := filepath.Glob(filepath.Join(out, ".perdure*")); len(left) > 0 {
		t.Errorf("files after the drills = %v, want none", left)
	}
}

// A table that lost a row, or got one that no restore makes, fails the drill.
func TestDrillFindsOtherRows(t *testing.T) {
	for what, c := range map[string]struct {
		table    string
		restored int64
		ok       bool
	}{
		"a run is missing":         {"runs", 4, false},
		"a run came from nowhere":  {"runs", 6, false},
		"the entry of the restore": {"audit", 6, true},
		"an entry is missing":      {"audit", 4, false},
		"nothing":                  {"runs", 5, true},
	} {
		var d drill
		d.compare(map[string]int64{"runs": 5, "audit": 5, "gone": 1},
			map[string]int64{"runs": 5, "audit": 5, c.table: c.restored})
		if d.OK != c.ok {
			t.Errorf("%s: ok = %t, differences %+v, want ok = %t", what, d.OK, d.Differences, c.ok)
		}
	}
}

package store

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/testkit/stage"
)

// tagged stages a run with metadata.
func tagged(t perdure.TenantID, id string, metadata map[string]string) opFunc {
	return func(tx *Tx) error {
		r := newRun(id, tx.Now)
		text, err := json.Marshal(metadata)
		r.Tenant, r.Metadata = t, perdure.Value(text)
		tx.Runs.Put(r, []perdure.Line{{Seq: 1, Type: perdure.LineCreated, At: tx.Now, Attempt: 1, Data: "{}"}})
		return err
	}
}

// listed gives the ids of all runs of a filter, page by page.
func listed(t *testing.T, s *Store, owner perdure.TenantID, f RunFilter) string {
	t.Helper()
	var ids []string
	if f.Limit == 0 {
		f.Limit = 1000
	}
	for {
		var p RunPage
		if err := s.View(t.Context(), func(v *View) (err error) {
			p,
				err = v.Runs.Page(owner, f)
			return err
		}); err != nil {
			t.Fatalf("list %s's runs by %v: %v", owner, f.Metadata, err)
		}
		for _, r := range p.Runs {
			ids = append(ids, string(r.ID))
		}
		if f.Before = p.Next; p.Next == "" {
			return strings.Join(ids, " ")
		}
	}
}

// checkMetadataIndex fails the test if the store violates an invariant about metadata.
func checkMetadataIndex(t *testing.T, s *Store) {
	t.Helper()
	for _, v := range brokenMetadata(t, s) {
		t.Errorf("%s: %s: %s", v.ID, v.Statement, v.Row)
	}
}

func brokenMetadata(t *testing.T, s *Store) (out []Violation) {
	t.Helper()
	if err := s.View(t.Context(), func(v *View) error {
		found, err := v.Check(nil)
		out = slices.DeleteFunc(found, func(x Violation) bool { return x.ID != p18.ID })
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestRunsAreFoundByMetadata(t *testing.T) {
	both(t, func(t *testing.T, at Options) {
		s := open(t, at)
		long := strings.Repeat("ü", maxIndexed)
		must(t, s,
			tagged(tenant, "r1", map[string]string{"team": "red", "job": "1"}),
			tagged(tenant, "r2", map[string]string{"team": "blue", "job": "1"}),
			tagged(tenant, "r3", map[string]string{"team": "red", "job": "2", "note": `"team":"blue" <&>`}),
			tagged(tenant, "r4", map[string]string{"long": long + "a"}),
			tagged(tenant, "r5", map[string]string{"long": long + "b"}),
			tagged(tenant, "r6", map[string]string{"team": ""}),
			tagged("other", "r7", map[string]string{"team": "red", "job": "1"}),
			insert("r8"))
		for _, c := range []struct {
			owner perdure.TenantID
			by    map[string]string
			want  string
		}{
			{tenant, map[string]string{"team": "red"}, "r3 r1"},
			{tenant, map[string]string{"team": "red", "job": "1"}, "r1"},
			{tenant, map[string]string{"team": "blue"}, "r2"},
			{tenant, map[string]string{"team": "re"}, ""},
			{tenant, map[string]string{"team": ""}, "r6"},
			{tenant, map[string]string{"absent": "x"}, ""},
			{tenant, map[string]string{"note": `"team":"blue" <&>`}, "r3"},
			{tenant, map[string]string{"long": long + "a"}, "r4"},
			{tenant, map[string]string{"long": long + "b"}, "r5"},
			{tenant, map[string]string{"long": long}, ""},
			{"other", map[string]string{"team": "red"}, "r7"},
			{"nobody", map[string]string{"team": "red"}, ""},
		} {
			for _, limit := range []int{1000, 1} {
				if got := listed(t, s, c.owner, RunFilter{Metadata: c.by, Limit: limit}); got != c.want {
					t.Errorf("%s's runs with %v, %d a page: %q, want %q", c.owner, c.by, limit, got, c.want)
				}
			}
		}
		if got := listed(t, s, tenant, RunFilter{Metadata: map[string]string{"team": "red"},
			Before: "r3"}); got != "r1" {
			t.Errorf("runs with team=red before r3: %q, want r1", got)
		}
		if got := listed(t, s, tenant, RunFilter{Metadata: map[string]string{"team": "red"},
			State: []perdure.State{perdure.Completed}}); got != "" {
			t.Errorf("completed runs with team=red: %q, want none", got)
		}
		checkMetadataIndex(t, s)
	})
}

func TestMetadataIsRedactedBeforeItIsCut(t *testing.T) {
	both(t, func(t *testing.T, at Options) {
		at.Redact = func(s string) string { return strings.ReplaceAll(s, "hunter2secret", "[secret]") }
		s := open(t, at)
		value := strings.Repeat("x", maxIndexed-6) + "hunter2secret" // the limit is inside the secret
		must(t, s, tagged(tenant, "r1", map[string]string{"k": value}))
		if n := count(t, s, "SELECT count(*) FROM run_metadata WHERE value LIKE '%hunter%'"); n != 0 {
			t.Errorf("%d rows of the index hold the beginning of a secret, want 0", n)
		}
		checkMetadataIndex(t, s)
	})
}

func TestRemovedRunLeavesTheMetadataIndex(t *testing.T) {
	both(t, func(t *testing.T, at Options) {
		s := open(t, at)
		by := map[string]string{"team": "red", "long": strings.Repeat("ü", 500)}
		must(t, s, tagged(tenant, "r1", by), tagged(tenant, "r2", by), tagged(tenant, "r3", by),
			tagged("other", "r1", by))
		must(t, s, opFunc(func(tx *Tx) error {
			r, _, err := tx.Runs.Get(tenant, "r1")
			if err == nil {
				tx.Runs.Drop(&r)
			}
			return err
		}))
		must(t, s, opFunc(func(tx *Tx) error { return tx.Removals.DropSpent(tenant, []Spent{{ID: "r3", Version: 1}}) }))
		if got := listed(t, s, tenant, RunFilter{Metadata: map[string]string{"team": "red"}}); got != "r2" {
			t.Errorf("runs with team=red after two were removed: %q, want r2", got)
		}
		if n := count(t, s, "SELECT count(*) FROM run_metadata"); n != 4 {
			t.Errorf("%d rows in the index after two of four runs were removed, want 4", n)
		}
		checkMetadataIndex(t, s)
	})
}

func TestCheckFindsMissingMetadataIndexRows(t *testing.T) {
	both(t, func(t *testing.T, at Options) {
		s := open(t, at)
		must(t, s, tagged(tenant, "r1", map[string]string{"a": "1", "b": "2"}),
			tagged(tenant, "r2", map[string]string{"a": "1"}))
		execDirect(t, s, "DELETE FROM run_metadata WHERE run_id='r1' AND name='b'")
		execDirect(t, s, "INSERT INTO run_metadata (tenant,name,value,run_id) VALUES ('acme','c','3','gone')")
		var rows []string
		for _, v := range brokenMetadata(t, s) {
			rows = append(rows, v.Row)
		}
		slices.Sort(rows)
		if got, want := strings.Join(rows, ", "), "gone c, r1 b"; got != want {
			t.Errorf("rows that break P18: %q, want %q", got, want)
		}
	})
}

// beforeMetadata is the schema version before the index.
func beforeMetadata(t *testing.T) int {
	t.Helper()
	files, err := schema.ReadDir("schema")
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range files {
		if strings.HasSuffix(f.Name(), "_metadata.sql") {
			return i
		}
	}
	t.Fatal("no file of the schema makes the index of metadata")
	return 0
}

// oldRuns inserts runs with metadata into a database without the index: so many of one tenant, one
// of another, and a damaged one.
func oldRuns(t *testing.T, old Conn, d *dialect, n int) {
	t.Helper()
	var runs []perdure.Run
	for i := range n {
		r := newRun(fmt.Sprintf("r%05d", i), 1e15)
		r.Metadata = perdure.Value(fmt.Sprintf(`{"n":"%d","team":"red"}`, i))
		if i%2 == 1 {
			r.Metadata = ""
		}
		runs = append(runs, r)
	}
	other, damaged := newRun("x", 1e15), newRun("y", 1e15)
	other.Tenant, other.Metadata, damaged.Metadata = "other", `{"team":"red"}`, `{"team":`
	runs = append(runs, other, damaged)
	if _, err := execAll(old, runsOfSchema(beforeMetadata(t)).insert(d, runs)); err != nil {
		t.Fatal(err)
	}
	if err := old.Commit(); err != nil {
		t.Fatal(err)
	}
}

func TestOlderStoreIsGivenTheMetadataIndex(t *testing.T) {
	stage.NoRace(t)
	const runs = 2*fillRuns + 10
	onOld(t, beforeMetadata(t), func(t *testing.T, old Conn, d *dialect, at Options) {
		oldRuns(t, old, d, runs)
		stores := make([]*Store, 2)
		var wg sync.WaitGroup
		for i := range stores { // nodes that start at the same time
			if at.Memory != nil {
				stores[i] = open(t, at)
				continue
			}
			wg.Go(func() {
				var err error
				if stores[i], err = Open(at); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		s := stores[0]
		if at.Memory == nil {
			defer stores[0].Close()
			defer stores[1].Close()
		}
		if got := listed(t, s, tenant, RunFilter{Metadata: map[string]string{"n": "2008"}}); got != "r02008" {
			t.Errorf("runs with n=2008: %q, want r02008", got)
		}
		if got := listed(t, s, "other", RunFilter{Metadata: map[string]string{"team": "red"}}); got != "x" {
			t.Errorf("the other tenant's runs with team=red: %q, want x", got)
		}
		if n := count(t, s, "SELECT count(*) FROM run_metadata"); n != runs+1 {
			t.Errorf("%d rows in the index, want %d: two of every other run, one of another tenant's, none of a "+
				"damaged one", n, runs+1)
		}
		checkMetadataIndex(t, s)
	})
}

// A process that is killed while it fills the index continues at the next start. No other start
// opens the store before.
func TestFillingTheMetadataIndexGoesOnAfterAKill(t *testing.T) {
	stage.NoRace(t)
	const runs = fillRuns + 10
	version := beforeMetadata(t)
	onOld(t, version+1, func(t *testing.T, old Conn, d *dialect, at Options) {
		oldRuns(t, old, d, runs)
		var fill metadataFill
		for range 2 { // to the first tenant, and its first runs
			if err := fill.step(old, d, ""); err != nil {
				t.Fatal(err)
			}
		}
		if fill.Done || fill.After == "" {
			t.Fatalf("after two steps the index is at %+v, want the middle of a tenant", fill)
		}
		execOld(t, old, "DELETE FROM run_metadata WHERE run_id='r00000'") // a finished part is not repeated
		asIs := at
		asIs.AsIs = true
		if s, err := Open(asIs); err == nil {
			s.Close()
			t.Error("a store whose index is not complete was opened as it is")
		}
		s := open(t, at)
		if n := count(t, s, "SELECT count(*) FROM run_metadata"); n != runs-2+1 {
			t.Errorf("%d rows in the index, want %d", n, runs-2+1)
		}
	})
}

func execOld(t *testing.T, old Conn, query string) {
	t.Helper()
	if _, err := old.Exec(query, nil); err != nil {
		t.Fatal(err)
	}
}

// An older node of a fleet inserts runs without the index until it is replaced. The node that
// replaces it adds them.
func TestStartSoonAfterAnUpgradeAddsRunsOfOlderNodes(t *testing.T) {
	at := Options{URL: pool.New(t)}
	s := open(t, at)
	id := perdure.FirstID(perdure.At(time.Now()))
	must(t, s, tagged(tenant, id, map[string]string{"team": "red"}))
	execDirect(t, s, "DELETE FROM run_metadata")
	open(t, at)
	if got := listed(t, s, tenant, RunFilter{Metadata: map[string]string{"team": "red"}}); got != id {
		t.Errorf("runs with team=red after another node started: %q, want %q", got, id)
	}
}

func TestBackupCarriesTheMetadataIndex(t *testing.T) {
	both(t, func(t *testing.T, at Options) {
		from, path := open(t, Options{}), filepath.Join(t.TempDir(), "backup")
		must(t, from, tagged(tenant, "r1", map[string]string{"team": "red"}),
			tagged(tenant, "r2", map[string]string{"team": "blue", "job": "1"}))
		b, err := from.Backup(t.Context(), path, nil)
		if err != nil {
			t.Fatal(err)
		}
		// A backup from before the index has no rows of it.
		older := resealed(t, resealed(t, path, "DELETE FROM run_metadata"),
			"DELETE FROM meta WHERE name='metadata_index'")
		older = resealed(t, older, fmt.Sprintf("UPDATE meta SET value=replace(value,'\"rows\":%d','\"rows\":%d') "+
			"WHERE name='backup'", b.Rows, b.Rows-3))
		into := open(t, at)
		_, _, err = into.Restore(t.Context(), older, func(int64, perdure.Instant) Adoption {
			return Adoption{Run: func(r perdure.Run) (perdure.Run, []perdure.Line, error) { return r, nil, nil }}
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := listed(t, into, tenant, RunFilter{Metadata: map[string]string{"team": "blue"}}); got != "r2" {
			t.Errorf("runs with team=blue after a restore: %q, want r2", got)
		}
		checkMetadataIndex(t, into)
	})
}

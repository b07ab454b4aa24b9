package store

import (
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure"
)

// An insert leaves out the columns that are empty in every row, and only then.
func TestInsertOfNewRunsLeavesOutRareColumns(t *testing.T) {
	plain, child := newRun("a", 1), newRun("b", 1)
	child.ParentID = "a"
	for _, c := range []struct {
		d     *dialect
		runs  []perdure.Run
		short bool
	}{
		{postgresDialect, []perdure.Run{plain}, true},
		{postgresDialect, []perdure.Run{plain, plain}, true},
		{postgresDialect, slices.Repeat([]perdure.Run{plain}, fewAlike), true},
		{postgresDialect, []perdure.Run{plain, child}, false},
		{sqliteDialect, []perdure.Run{plain}, false},
	} {
		st := runTable.insert(c.d, c.runs)[0]
		want := len(runTable.cols)
		if c.short {
			want -= len(runTable.rare)
		}
		if args := len(st.args); args != want || strings.Contains(st.text, "given.*") != c.short {
			t.Errorf("insert of %d runs on %s has %d arguments, want %d: %s", len(c.runs), c.d.name, args, want,
				st.text)
		}
	}
}

// Both inserts store the same.
func TestRareColumnsAreStored(t *testing.T) {
	both(t, func(t *testing.T, at Options) {
		s := open(t, at)
		odd := newRun("odd", s.Now())
		odd.ParentID, odd.JournalKey = "plain", "k"
		must(t, s, insert("plain"))
		must(t, s, insert("x"), opFunc(func(tx *Tx) error { tx.Runs.Put(odd, nil); return nil }))
		s.cache.clear()
		must(t, s, opFunc(func(tx *Tx) error {
			for _, id := range []string{"plain", "x"} {
				r, ok, err := tx.Runs.Get(tenant, ref(id))
				want := newRun(id, r.CreatedAt)
				if err != nil || !ok || r.ParentID != "" || r.Worker != want.Worker || r.Epoch != want.Epoch ||
					r.Kind != want.Kind || r.State != want.State {
					t.Errorf("run %s = %+v, %t, %v, want %+v", id, r, ok, err, want)
				}
			}
			r, _, err := tx.Runs.Get(tenant, odd.ID)
			if r.ParentID != odd.ParentID || r.JournalKey != "k" {
				t.Errorf("run odd = %+v, %v, want its parent and its key", r, err)
			}
			return nil
		}))
	})
}

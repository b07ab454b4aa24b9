package store

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/store/pg"
)

// arrays counts the arguments that are an array.
func arrays(args []any) (n int) {
	for _, a := range args {
		if c, ok := a.(*pg.Column); ok && !c.Once {
			n++
		}
	}
	return n
}

// What the rows of a batch share is sent once.
func TestSharedValuesAreSentOnce(t *testing.T) {
	const n = 100
	runs, lines, changed := make([]perdure.Run, n), make([]eventRow, n), make([]changedRun, n)
	for i := range n {
		runs[i] = newRun(fmt.Sprint(i), 1)
		lines[i] = eventRow{tenant, runs[i].ID, perdure.Line{Seq: 1, Type: "run:created", At: 1, Data: "{}"}}
		changed[i] = changedRun{&runs[i], 1}
	}
	children := slices.Clone(runs)
	for i := range n {
		children[i].ParentID, children[i].JournalKey = "parent", fmt.Sprint(i)
	}
	mixed := slices.Clone(runs)
	mixed[n/2].Kind = "another"
	for _, c := range []struct {
		what string
		list []statement
		want int // arrays
	}{
		{"new runs", runTable.insert(postgresDialect, runs), 3}, // id, root, input
		{"too few to compare", runTable.insert(postgresDialect, runs[:fewAlike-1]),
			len(runTable.cols) - len(runTable.rare)},
		{"new runs of two kinds", runTable.insert(postgresDialect, mixed), 7}, // and a group of 4
		{"children", runTable.insert(postgresDialect, children), 6},           // and key, result, committed
		{"changed runs", saveRuns(postgresDialect, changed, onlyChanging), 6}, // the key, result, rest, committed
		{"lines", eventTable.insert(postgresDialect, lines), 1},               // the run
	} {
		if len(c.list) != 1 {
			t.Fatalf("%s: %d statements, want 1", c.what, len(c.list))
		}
		if got := arrays(c.list[0].args); got != c.want || strings.Count(c.list[0].text, "[]") != got ||
			strings.Count(c.list[0].text, "?") != len(c.list[0].args) {
			t.Errorf("%s: %d arrays and %d arguments, want %d arrays: %s", c.what, got, len(c.list[0].args), c.want,
				c.list[0].text)
		}
	}
	for _, st := range runTable.insert(sqliteDialect, runs) {
		if arrays(st.args) != 0 || strings.Contains(st.text, "unnest") {
			t.Errorf("SQLite gets arrays: %s", st.text)
		}
	}
}

// A key that an UPDATE finds rows by is never a single value, and every statement has an array.
func TestKeysAreInNoGroup(t *testing.T) {
	for i, names := range changeNames {
		for c, name := range names {
			if key := name == "tenant" || name == "id" || name == "read"; key && changeGroups[i][c] != 0 {
				t.Errorf("an update of runs has %s in group %d, want none", name, changeGroups[i][c])
			}
		}
	}
	for name, l := range map[string]*layout{"runs": &runTable.sql, "events": &eventTable.sql,
		"idempotency": &idempotencyTable.sql} {
		if most := slices.Max(l.groups); most > 4 || !slices.Contains(l.groups, 0) || most == 0 {
			t.Errorf("%s has the groups %v, want up to 4 and a column in none", name, l.groups)
		}
	}
	for i, groups := range append([][][]string{alikeNewRuns}, eventTable.groups, idempotencyTable.groups) {
		cols := [][]string{runTable.cols, eventTable.cols, idempotencyTable.cols}[i]
		for _, name := range slices.Concat(groups...) {
			if !slices.Contains(cols, name) {
				t.Errorf("%s is in a group, and no column of %v", name, cols)
			}
		}
	}
}

// Rows are stored as they are, whatever they share.
func TestSharedValuesAreStored(t *testing.T) {
	both(t, func(t *testing.T, at Options) {
		s := open(t, at)
		random := rand.New(rand.NewPCG(1, 2))
		const rounds, n = 8, fewAlike
		for round := range rounds {
			// Each round has another set of fields that differ between its runs.
			differ := random.Uint64()
			var want []perdure.Run
			for i := range n {
				r := newRun(fmt.Sprintf("r%d-%d", round, i), 1000)
				for field, change := range []func(){
					func() { r.Kind = fmt.Sprint("kind ", i) }, func() { r.Attempt = i + 1 },
					func() { r.DeadlineAt += perdure.Instant(i) }, func() { r.Priority = i },
					func() { r.RetryOf = perdure.RunID(fmt.Sprint("retried ", i)) },
					func() { r.ParentID, r.JournalKey = "parent", fmt.Sprint(round, "-", i) },
					func() { r.Worker = fmt.Sprint("worker ", i) }, func() { r.AlarmAt += perdure.Instant(i) },
					func() { r.Input = perdure.Value(fmt.Sprint(i)) }, func() { r.Late = i },
					func() { r.Options.Timeout = perdure.Duration(i + 1) }, func() { r.Ready = i%2 == 0 },
					func() { r.Activity = fmt.Sprint("busy ", i) }, func() { r.Seq = int64(i + 2) },
				} {
					if differ>>field&1 != 0 {
						change()
					}
				}
				want = append(want, r)
			}
			put := func() {
				must(t, s, opFunc(func(tx *Tx) error {
					for i := range want {
						was, known, err := tx.Runs.Get(tenant, want[i].ID)
						if err != nil {
							return err
						}
						if known && was.Version != want[i].Version-1 {
							t.Errorf("run %s has version %d, want %d", was.ID, was.Version, want[i].Version-1)
						}
						data := perdure.Value(fmt.Sprintf("{%q:%d}", want[i].ID, want[i].Priority))
						line := perdure.Line{Seq: want[i].Seq + want[i].Version, Type: "run:created",
							At: want[i].CreatedAt, Attempt: want[i].Attempt, Data: data}
						tx.Runs.Put(want[i], []perdure.Line{line})
					}
					return nil
				}))
				s.cache.clear()
				must(t, s, opFunc(func(tx *Tx) error {
					for i := range want {
						got, _, err := tx.Runs.Get(tenant, want[i].ID)
						if err != nil {
							return err
						}
						stored, put := runTable.bind(&got), runTable.bind(&want[i])
						for c, name := range runTable.cols {
							if stored[c] != put[c] {
								t.Errorf("%s of run %s is stored as %v, want %v", name, want[i].ID, stored[c], put[c])
								return nil
							}
						}
					}
					return nil
				}))
			}
			put()
			for i := range want {
				want[i].Version, want[i].Result = 2, perdure.Value(fmt.Sprint(differ>>20&1*uint64(i)))
				want[i].StartedAt += perdure.Instant(differ >> 21 & 1 * uint64(i))
			}
			put()
		}
		if lines := count(t, s, "SELECT count(*) FROM events WHERE data LIKE '{\"r%'"); lines != 2*rounds*n {
			t.Errorf("%d lines are stored, want %d", lines, 2*rounds*n)
		}
	})
}

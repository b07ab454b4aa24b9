package store

import (
	"fmt"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/store/scan"
)

// samples has two values of each column that does not take any text or number, by table and column.
var samples = map[string][2]any{
	"approvals.form": {formText([]perdure.FormField{{Name: "a", Label: "b", Type: "text"}}),
		formText([]perdure.FormField{{Name: "b", Options: []string{"c"}, Required: true}})},
	"approvals.state":        {"approved", "rejected"},
	"kinds.overrides":        definitions,
	"kind_builds.definition": definitions,
	"removals.kind":          {RemoveRun, "thread"},
	"runs.committed":         {"7\ndigest\nanswer\nid", "8\ndigest\nanswer\nother"},
	"runs.rest": {packRest(&perdure.Run{Progress: "1", Withheld: "2", Summary: "3", Fallback: "4", ContinuedBy: "5",
		Stopped: "6", ProgressOf: 7, ActivityAt: 8, Counter: 9, WatchUntil: 10, Former: 11}),
		packRest(&perdure.Run{Spent: true, Cancel: perdure.Cancel{Reason: "a"}, Options: perdure.Options{Webhook: "1",
			Opening: "2"}})},
	"runs.state": {"queued", "running"},
	"tenants.limits": {limitsText(perdure.TenantLimits{MaxCalls: 1, MaxPolls: 2}),
		limitsText(perdure.TenantLimits{MaxCalls: 2, MaxPolls: 1})},
	"webhooks.scope": {"thread", "tenant"},
	"workers.polls": {pollList{&[]perdure.WorkerPoll{{Node: "a", At: 1}}}.value(),
		pollList{&[]perdure.WorkerPoll{{Queues: []string{"b"}, At: 2}}}.value()},
}

var definitions = [2]any{defOf{&perdure.KindDef{Description: "a"}}.value(), defOf{&perdure.KindDef{Class: "b"}}.value()}

// A registered table is a *table[T] of any T.
type registered interface {
	described() (table string, columns []string)
	// lost tells which columns lose their value between a scan and a bind.
	lost() []string
	// alike tells whether two columns have values of the same type.
	alike(i, j int) bool
	// exchanged is the table with two columns exchanged in one direction.
	exchanged(i, j int, of direction) registered
	// differs tells which columns go to another field than those of another table with the same name.
	differs(from registered) []string
	// write inserts a row in which every column has another value, and changes all of it if the table
	// is versioned. It tells which columns are not as they were written.
	write(t *testing.T, s *Store) []string
}

// Every column of every table has a value of its own. A record that is scanned from these values binds
// the same ones, also when one of them changes.
func TestColumnsKeepTheirValues(t *testing.T) {
	if len(tables) < 40 {
		t.Fatalf("%d tables are registered: this test looks at nothing", len(tables))
	}
	for _, x := range tables {
		for _, what := range x.(registered).lost() {
			t.Error(what)
		}
	}
}

// Two columns that are exchanged in one direction alone don't go unnoticed, whichever two of a table.
func TestExchangedColumnsAreNoticed(t *testing.T) {
	for _, x := range tables {
		table, names := x.(registered).described()
		for i := range names {
			for j := range i {
				if !x.(registered).alike(i, j) {
					continue
				}
				for _, of := range []direction{binding, scanning} {
					if len(x.(registered).exchanged(i, j, of).lost()) == 0 {
						t.Errorf("%s: %s and %s are exchanged in direction %d, and nothing is lost", table, names[i],
							names[j], of)
					}
				}
			}
		}
	}
}

// Both databases give back what a table writes.
func TestTablesStoreTheirColumns(t *testing.T) {
	both(t, func(t *testing.T, at Options) {
		s := open(t, at)
		for _, x := range tables {
			if whole := wholeOf(x.(registered)); whole != x {
				for _, what := range x.(registered).differs(whole) {
					t.Error(what)
				}
				continue
			}
			for _, what := range x.(registered).write(t, s) {
				t.Error(what)
			}
		}
	})
}

// wholeOf gives the table with the same name that has the most columns.
func wholeOf(t registered) registered {
	name, most := t.described()
	for _, x := range tables {
		if other, columns := x.(registered).described(); other == name && len(columns) > len(most) {
			t, most = x.(registered), columns
		}
	}
	return t
}

func (t *table[T]) described() (string, []string) { return t.name, t.cols }

// bind gives the values of a record's columns.
func (t *table[T]) bind(v *T) []any {
	c := columns{of: binding, list: make([]any, 0, len(t.cols))}
	t.columns(&c, v)
	return c.list
}

// row gives a value for each column. changed tells which ones have their second value.
func (t *table[T]) row(changed func(i int) bool) []any {
	zero, dest, out := t.bind(new(T)), t.scan(new(T)), make([]any, len(t.cols))
	for i, name := range t.cols {
		n := 0
		if changed(i) {
			n = 1
		}
		sample, ok := samples[t.name+"."+name]
		switch _, isBit := dest[i].(bit); {
		case ok:
			out[i] = sample[n]
		case isBit:
			out[i] = int64(n)
		case isText(zero[i]):
			out[i] = fmt.Sprint(name, "-", n)
		default:
			out[i] = int64(100*(i+1) + n)
		}
	}
	return out
}

// unread tells whether a column is written and not read, or read and not written.
func (t *table[T]) unread(i int) bool {
	_, ignores := t.scan(new(T))[i].(ignored)
	return ignores || strings.Contains(t.cols[i], "(")
}

// read gives a record of the values of its columns.
func (t *table[T]) read(row []any) (v T, err error) {
	for i, dest := range t.scan(&v) {
		if err := scan.Value(dest, row[i]); err != nil {
			return v, fmt.Errorf("%s.%s: %w", t.name, t.cols[i], err)
		}
	}
	return v, nil
}

// missing tells in which columns a record has another value than a row.
func (t *table[T]) missing(v *T, row []any) (out []string) {
	for i, got := range t.bind(v) {
		if got != row[i] && !t.unread(i) {
			out = append(out, fmt.Sprintf("%s.%s = %#v, want %#v", t.name, t.cols[i], got, row[i]))
		}
	}
	return out
}

func (t *table[T]) lost() []string {
	for changed := range len(t.cols) + 1 {
		row := t.row(func(i int) bool { return i == changed })
		v, err := t.read(row)
		if err != nil {
			return []string{err.Error()}
		}
		if out := t.missing(&v, row); len(out) > 0 {
			return out
		}
	}
	return nil
}

func (t *table[T]) alike(i, j int) bool {
	zero := t.bind(new(T))
	return isText(zero[i]) == isText(zero[j]) && !t.unread(i) && !t.unread(j)
}

func (t *table[T]) exchanged(i, j int, of direction) registered {
	x := &table[T]{name: t.name, keys: t.keys, columns: func(c *columns, v *T) {
		t.columns(c, v)
		if c.of == of {
			c.list[i], c.list[j] = c.list[j], c.list[i]
		}
	}}
	return x.prepared()
}

func (t *table[T]) differs(from registered) (out []string) {
	v := new(T)
	whole := from.(*table[T])
	other := make(map[string]any)
	for i, dest := range whole.scan(v) {
		other[whole.cols[i]] = dest
	}
	for i, dest := range t.scan(v) {
		if !t.unread(i) && other[t.cols[i]] != dest {
			out = append(out, fmt.Sprintf("%s.%s is read into another field", t.name, t.cols[i]))
		}
	}
	return out
}

func (t *table[T]) write(tt *testing.T, s *Store) []string {
	tt.Helper()
	row := t.row(func(int) bool { return false })
	v, err := t.read(row)
	if err != nil {
		return []string{err.Error()}
	}
	out := t.written(tt, s, t.insert(s.dialect, []T{v}), row)
	if !t.versioned {
		return out
	}
	changing := t
	if t.heads != nil {
		changing = t.heads
	}
	row = t.row(func(i int) bool { return i >= len(t.keys) && i < len(changing.cols) })
	if v, err = t.read(row); err != nil {
		return []string{err.Error()}
	}
	return append(out, t.written(tt, s, changing.update(s.dialect, []T{v}), row)...)
}

// written executes statements, and tells which columns of the row are not as they should be.
func (t *table[T]) written(tt *testing.T, s *Store, list []statement, row []any) (out []string) {
	tt.Helper()
	must(tt, s, opFunc(func(tx *Tx) error {
		addRows(&tx.later, list...)
		return nil
	}))
	if err := s.View(tt.Context(), func(v *View) error {
		n := 0
		// Not query: that changes values which the program can't have written.
		err := v.sess.Query(t.selectText("WHERE "+strings.Join(t.keys, "=? AND ")+"=?"), row[:len(t.keys)],
			func(scan func(...any) error) error {
				n++
				var got T
				err := scan(t.scan(&got)...)
				out = append(out, t.missing(&got, row)...)
				return err
			})
		if n != 1 {
			out = append(out, fmt.Sprintf("%s has %d rows of the key, want 1", t.name, n))
		}
		return err
	}); err != nil {
		tt.Fatalf("%s: %v", t.name, err)
	}
	return out
}

// The statement that updates runs writes the same columns from the same fields as their table.
func TestUpdateOfRunsWritesTheirColumns(t *testing.T) {
	both(t, func(t *testing.T, at Options) {
		s := open(t, at)
		row := runTable.row(func(int) bool { return false })
		r, err := runTable.read(row)
		if err != nil {
			t.Fatal(err)
		}
		read := r.Version
		must(t, s, opFunc(func(tx *Tx) error {
			addRows(&tx.later, runTable.insert(s.dialect, []perdure.Run{r})...)
			return nil
		}))
		writes := make(map[string]bool)
		for _, c := range changeNames[alsoRenewed] {
			writes[c] = true
		}
		row = runTable.row(func(i int) bool { return i >= len(runTable.keys) && writes[runTable.cols[i]] })
		if r, err = runTable.read(row); err != nil {
			t.Fatal(err)
		}
		for _, what := range runTable.written(t, s, saveRuns(s.dialect, []changedRun{{&r, read}}, alsoRenewed), row) {
			t.Error(what)
		}
	})
}

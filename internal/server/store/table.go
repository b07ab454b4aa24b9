package store

import (
	"slices"
	"strings"
	"sync"

	"github.com/perdure/perdure/internal/server/plant"
	"github.com/perdure/perdure/internal/server/store/scan"
)

// A table maps a record to a row and back.
type table[T any] struct {
	name string
	keys []string
	// columns goes over the columns of a record. Those of the key come first.
	columns func(*columns, *T)
	// cols are the names of the columns. selects begins a query for all of them.
	cols    []string
	selects string
	// versioned tables have a column "version". An update applies only if the row still has the
	// version that was read. version points to that field of a record. heads, if set, is the table
	// with the columns that an update writes, where these are not all.
	versioned bool
	version   func(*T) *int64
	heads     *table[T]
	// once: a second insert of the same key is an error, not an update.
	once bool
	// quiet: a second insert of the same key changes nothing and is no error.
	quiet bool
	// lockColumn is set for a quiet table whose existing row is to be locked by an insert of the
	// same key. The insert sets this column to the value it has, so that a concurrent delete waits
	// for the commit. SQLite has a single writer and needs no lock.
	lockColumn string

	// rare are columns that are zero or empty in most new rows. An insert of rows in which all of them
	// are does not send them. That is for PostgreSQL, to which each column is an array.
	rare []string
	// groups are columns that often have one value in all rows of an insert; see alike.go.
	groups [][]string

	// unreadable is called for a column whose value can't be read. validate checks a record after
	// it was read. A row that was damaged from outside is still read: it must not block the rows
	// beside it.
	unreadable func(v *T, column string)
	validate   func(*T)

	// sql writes the table's statements.
	sql layout
}

// A layout is what statements depend on, of a table. It has no type parameter, so that their texts are
// compiled once and not for each table.
type layout struct {
	name             string
	keys, cols, rare []string
	// isRare tells for each column whether it is rare.
	isRare                 []bool
	groups                 grouping
	versioned, once, quiet bool
	lockColumn             string
	// texts caches statements by dialect and number of rows. Stores of one process share the table.
	texts sync.Map
}

// tables are all tables of the store. A test goes over them.
var tables []any

// register prepares a table. Every table of the store is registered once.
func register[T any](t *table[T]) *table[T] {
	tables = append(tables, t.prepared())
	return t
}

// prepared notes the names of the columns.
func (t *table[T]) prepared() *table[T] {
	t.cols = names(func(c *columns) { t.columns(c, new(T)) })
	t.selects = "SELECT " + strings.Join(t.cols, ",") + " FROM " + t.name + " "
	l := &t.sql
	l.name, l.keys, l.cols, l.rare, l.isRare = t.name, t.keys, t.cols, t.rare, make([]bool, len(t.cols))
	l.versioned, l.once, l.quiet, l.lockColumn = t.versioned, t.once, t.quiet, t.lockColumn
	for i, name := range t.cols {
		l.isRare[i] = slices.Contains(t.rare, name)
	}
	l.groups = group(t.cols, t.groups)
	return t
}

// scan gives the destinations of a record's columns.
func (t *table[T]) scan(v *T) []any {
	c := columns{of: scanning, list: make([]any, 0, len(t.cols))}
	t.columns(&c, v)
	return c.list
}

type textKey struct {
	d      *dialect
	n      int
	update bool
	// short is set for an INSERT without the rare columns.
	short bool
	// also is set for an UPDATE of runs with further columns.
	also alsoWritten
	// all are the groups of columns that are sent as single values.
	all sharing
}

// insert gives the statements that insert rows, or update them according to the table's flags.
func (t *table[T]) insert(d *dialect, rows []T) []statement {
	if len(rows) == 0 {
		return nil
	}
	return t.sql.insert(d, t.bound(rows))
}

func (t *layout) insert(d *dialect, bound [][]any) (out []statement) {
	for part := range d.parts(bound) {
		st := statement{want: anyNumber}
		if d.sizes == nil && t.withoutRare(part) {
			st.text, st.args = t.insertShort(d, part)
		} else {
			all := t.groups.alike(d, part)
			st.text, st.args = t.insertText(d, part, all), t.groups.args(d, part, all, nil)
		}
		if t.versioned {
			st.want = int64(len(part))
		}
		out = append(out, st)
	}
	return out
}

// update gives the statements that update rows of a versioned table. A row is updated only if it
// exists and has the version before this one.
func (t *table[T]) update(d *dialect, rows []T) []statement {
	if len(rows) == 0 {
		return nil
	}
	return t.sql.update(d, t.bound(rows))
}

func (t *layout) update(d *dialect, bound [][]any) (out []statement) {
	for part := range d.parts(bound) {
		out = append(out, statement{t.updateText(d, part), d.args(part), int64(len(part))})
	}
	return out
}

// change is update with the columns that an update writes, where these are not all.
func (t *table[T]) change(d *dialect, rows []T) []statement {
	if t.heads != nil {
		return t.heads.update(d, rows)
	}
	return t.update(d, rows)
}

func (t *table[T]) isVersioned() bool { return t.versioned }

// raise gives a record of a versioned table its next version.
func (t *table[T]) raise(v *T) { *t.version(v)++ }

// bound gives the columns of rows. They are sorted by key, unless rows are written only once. All of
// them are parts of one list, see flat.
func (t *table[T]) bound(rows []T) [][]any {
	bound, c := make([][]any, len(rows)), columns{of: binding, list: make([]any, 0, len(rows)*len(t.cols))}
	for i := range rows {
		from := len(c.list)
		t.columns(&c, &rows[i])
		bound[i] = c.list[from:]
	}
	if !t.once && len(rows) > 1 {
		// Sorted, so that two nodes that change the same rows lock them in the same order and can't
		// deadlock.
		t.sql.sort(bound)
	}
	return bound
}

func (t *layout) sort(bound [][]any) { slices.SortStableFunc(bound, t.byKey) }

// byKey compares bound rows by their keys, which come first in every table's columns.
func (t *layout) byKey(a, b []any) int {
	for i := range t.keys {
		switch x := a[i].(type) {
		case string:
			if c := strings.Compare(x, b[i].(string)); c != 0 {
				return c
			}
		case int64:
			if y := b[i].(int64); x != y {
				return int(max(-1, min(1, x-y)))
			}
		}
	}
	return 0
}

// insertText is the INSERT of so many rows.
func (t *layout) insertText(d *dialect, part [][]any, all sharing) string {
	k := textKey{d: d, n: d.textFor(len(part)), all: all}
	if text, ok := t.texts.Load(k); ok {
		return text.(string)
	}
	given := t.groups.given(d, part, all)
	var b strings.Builder
	b.WriteString("INSERT " + d.orFail + "INTO " + t.name + " (" + strings.Join(t.cols, ",") + ") " + given)
	switch {
	case t.once:
	case t.quiet && t.lockColumn != "" && !d.ownClock:
		b.WriteString(" ON CONFLICT (" + strings.Join(t.keys, ",") + ") DO UPDATE SET " + t.lockColumn + "=excluded." +
			t.lockColumn)
	case t.quiet:
		b.WriteString(" ON CONFLICT (" + strings.Join(t.keys, ",") + ") DO NOTHING")
	default:
		var set []string
		for _, c := range t.cols {
			if !slices.Contains(t.keys, c) {
				set = append(set, c+"=excluded."+c)
			}
		}
		b.WriteString(" ON CONFLICT (" + strings.Join(t.keys, ",") + ") DO UPDATE SET " + strings.Join(set, ","))
		if t.versioned {
			b.WriteString(" WHERE CAST(" + t.name + ".version AS BIGINT)=excluded.version-1") // as in guard
		}
	}
	t.texts.Store(k, b.String())
	return b.String()
}

// withoutRare tells whether the rare columns of all rows are zero or empty.
func (t *layout) withoutRare(part [][]any) bool {
	if len(t.rare) == 0 {
		return false
	}
	for i, rare := range t.isRare {
		if !rare {
			continue
		}
		for _, row := range part {
			if row[i] != any("") && row[i] != any(int64(0)) {
				return false
			}
		}
	}
	return true
}

// insertShort is the INSERT of rows whose rare columns are zero or empty, and its arguments.
func (t *layout) insertShort(d *dialect, part [][]any) (text string, args []any) {
	all := t.groups.alike(d, part)
	args = t.groups.args(d, part, all, t.isRare)
	k := textKey{d: d, short: true, all: all}
	if text, ok := t.texts.Load(k); ok {
		return text.(string), args
	}
	var cols, rare, zeros []string
	var first []any
	var groups grouping
	for i, c := range t.cols {
		switch {
		case !t.isRare[i]:
			cols, first, groups = append(cols, c), append(first, part[0][i]), append(groups, t.groups[i])
		case part[0][i] == any(""):
			rare, zeros = append(rare, c), append(zeros, "''")
		default:
			rare, zeros = append(rare, c), append(zeros, "0")
		}
	}
	text = "INSERT INTO " + t.name + " (" + strings.Join(append(cols, rare...), ",") + ") SELECT given.*," +
		strings.Join(zeros, ",") + " FROM (" + groups.given(d, [][]any{first}, all) + ") AS given"
	t.texts.Store(k, text)
	return text, args
}

// updateText is the UPDATE of so many rows, with the condition on their versions.
func (t *layout) updateText(d *dialect, part [][]any) string {
	k := textKey{d: d, n: d.textFor(len(part)), update: true}
	if text, ok := t.texts.Load(k); ok && !plant.Is("rows-without-version") {
		return text.(string)
	}
	var set, same []string
	for _, c := range t.cols {
		if slices.Contains(t.keys, c) {
			same = append(same, t.name+"."+c+"=input."+c)
		} else {
			set = append(set, c+"=input."+c)
		}
	}
	text := "WITH input(" + strings.Join(t.cols, ",") + ") AS (" + d.rows(part) + ") UPDATE " + d.orFail + t.name +
		" SET " + strings.Join(set, ",") +
		" FROM input WHERE " + strings.Join(same, " AND ")
	if plant.Is("rows-without-version") {
		return text
	}
	text += " AND CAST(" + t.name + ".version AS BIGINT)=input.version-1"
	t.texts.Store(k, text)
	return text
}

// selectText is a SELECT of whole records.
func (t *table[T]) selectText(rest string) string { return t.selects + rest }

// query calls row for every record that a condition selects.
func (t *table[T]) query(s Conn, rest string, args []any, row func(*T) error) error {
	c := columns{of: scanning, list: make([]any, 0, len(t.cols))}
	return s.Query(t.selectText(rest), args, func(scan func(...any) error) error {
		var v T
		c.list = c.list[:0]
		t.columns(&c, &v)
		if scan(c.list...) != nil {
			v = *new(T) // scanned again, column by column
			if err := t.scanDamaged(scan, &v); err != nil {
				return err
			}
		}
		if t.validate != nil {
			t.validate(&v)
		}
		return row(&v)
	})
}

// list reads the records that a query chooses.
func (t *table[T]) list(s Conn, rest string, args []any) (out []T, err error) {
	err = t.query(s, rest, args, func(v *T) error {
		out = append(out, *v)
		return nil
	})
	return out, err
}

// one reads the row that a condition selects. ok is false if there is none.
func (t *table[T]) one(s Conn, where string, args ...any) (v T, ok bool, err error) {
	err = t.query(s, where, args, func(x *T) error {
		v, ok = *x, true
		return nil
	})
	return v, ok, err
}

// scanDamaged reads a row that has values of the wrong type in some columns, or NULL. Those fields
// stay empty.
func (t *table[T]) scanDamaged(columns func(...any) error, v *T) error {
	raw, places := make([]any, len(t.cols)), make([]any, len(t.cols))
	for i := range raw {
		places[i] = &raw[i]
	}
	if err := columns(places...); err != nil {
		return err
	}
	for i, dest := range t.scan(v) {
		if err := scan.Value(dest, raw[i]); err != nil && t.unreadable != nil {
			t.unreadable(v, t.cols[i])
		}
	}
	return nil
}

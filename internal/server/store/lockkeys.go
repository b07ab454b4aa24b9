package store

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/perdure/perdure/internal/server/store/pg"
)

// The rows that a statement writes.
//
// An operation is set aside by what it stages, so that of every statement is known which rows it
// needs. A statement of a table has its rows as arguments. Of any other the text is read: one that
// compares all columns of a key with arguments names a row, and any other the rows that its condition
// selects. Nothing here runs unless something is locked.

// A lockKey names a row, the rows of an owner, or a whole table.
type lockKey string

// rowLock names a row by its table and key.
func rowLock(table string, key ...any) lockKey {
	var b strings.Builder
	b.WriteString(table)
	for _, k := range key {
		fmt.Fprintf(&b, "\x00%v", k)
	}
	return lockKey(b.String())
}

// tableLock names a whole table.
func tableLock(table string) lockKey { return lockKey(table) }

// ownerLock names all rows of a table whose keys begin with these columns.
func ownerLock(table string, key ...any) lockKey { return rowLock(table, key...) + "\x00*" }

// ownerColumns is the number of columns of a key that name an owner: the tenant, and a run or thread.
const ownerColumns = 2

// plainKeys are the keys of tables without a record type.
var plainKeys = map[string][]string{
	"meta": {"name"}, "contents": {"tenant", "hash"}, "chunks": {"tenant", "upload", "n"},
}

// keyColumns gives the columns of a table's key, or nil if the store has no such table.
func keyColumns(table string) []string {
	if keys, ok := plainKeys[table]; ok {
		return keys
	}
	for _, t := range tables {
		if l := t.(interface{ theLayout() *layout }).theLayout(); l.name == table {
			return l.keys
		}
	}
	return nil
}

// tableNames gives the names of all tables of the store.
func tableNames() (out []string) {
	for name := range plainKeys {
		out = append(out, name)
	}
	for _, t := range tables {
		out = append(out, t.(interface{ theLayout() *layout }).theLayout().name)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (t *table[T]) tableName() string { return t.name }

func (t *table[T]) theLayout() *layout { return &t.sql }

// lockKey names the row of a record.
func (t *table[T]) lockKey(v *T) lockKey { return t.sql.lockKey(t.bound([]T{*v})[0]) }

func (l *layout) lockKey(row []any) lockKey { return rowLock(l.name, row[:len(l.keys)]...) }

// A target is what a statement writes.
type target struct {
	table string
	// rows are the rows of a statement that has them as arguments.
	rows [][]any
	// key is the key of the one row that is written, or nil.
	key []any
	// where selects the written rows, and args are its arguments.
	where string
	args  []any
	// lock names the target.
	lock lockKey
	// free is set if the statement never waits for a row.
	free bool
}

var (
	targetText = regexp.MustCompile(`^(?:WITH input\([\w,]+\) AS \(.*?\) )?` +
		`(?:DELETE FROM|UPDATE|SELECT 1 FROM|INSERT INTO) (\w+)`)
	columnText  = regexp.MustCompile(`(\w+) *(<=|>=|=|<|>)$`)
	insertsText = regexp.MustCompile(`^INSERT INTO \w+ \(([\w,]+)\) VALUES \(([^()]*)\)`)
)

// targetOf reads a statement.
func targetOf(st *statement) (t target) {
	t.lock = textLock(st.text, st.args)
	m := targetText.FindStringSubmatch(st.text)
	if m == nil || keyColumns(m[1]) == nil {
		return t
	}
	t.table = m[1]
	insert := strings.HasPrefix(st.text, "INSERT")
	if rows := givenRows(st); rows != nil {
		t.rows, t.free = rows, insert && !strings.Contains(st.text, "DO UPDATE")
		return t
	}
	if t.free = strings.Contains(st.text, "SKIP LOCKED") || strings.Contains(st.text, "DO NOTHING"); t.free {
		return t
	}
	columns := keyColumns(t.table)
	if insert {
		t.key = insertedKey(st, columns)
	} else {
		t.readCondition(st, columns)
	}
	if t.key != nil {
		t.lock = rowLock(t.table, t.key...)
	}
	return t
}

// givenRows gives the rows that a statement has as arguments, or nil.
func givenRows(st *statement) [][]any {
	if len(st.args) == 0 {
		return nil
	}
	for _, a := range st.args {
		if _, ok := a.(*pg.Column); !ok {
			return nil
		}
	}
	return *st.args[0].(*pg.Column).Rows
}

// halved gives two statements with half of the rows of one each, or nil if it has no rows to halve.
func halved(st *statement) (out []statement) {
	rows := givenRows(st)
	if len(rows) < 2 {
		return nil
	}
	for _, half := range [][][]any{rows[:len(rows)/2], rows[len(rows)/2:]} {
		args := make([]any, len(st.args))
		for i, a := range st.args {
			c := a.(*pg.Column)
			args[i] = &pg.Column{Rows: &half, At: c.At, Once: c.Once}
		}
		out = append(out, statement{st.text, args, anyNumber})
	}
	return out
}

// keys gives the keys of the rows. They come first in the columns of a table.
func (t *target) keys() (out [][]any) {
	n := len(keyColumns(t.table))
	for _, row := range t.rows {
		out = append(out, row[:n])
	}
	return out
}

// insertedKey gives the key of the row that a statement inserts, or nil.
func insertedKey(st *statement, columns []string) []any {
	m := insertsText.FindStringSubmatch(st.text)
	if m == nil {
		return nil
	}
	given, values := make(map[string]any), strings.Split(m[2], ",")
	n := 0
	for i, name := range strings.Split(m[1], ",") {
		switch {
		case i >= len(values):
			return nil
		case values[i] == "?":
			given[name] = st.args[n]
			n++
		default:
			given[name] = strings.Trim(values[i], "'")
		}
	}
	return keyIn(given, columns)
}

// readCondition reads the condition of an UPDATE, a DELETE or a SELECT.
func (t *target) readCondition(st *statement, columns []string) {
	before, cond, ok := strings.Cut(st.text, " WHERE ")
	if !ok {
		return
	}
	cond, _, _ = strings.Cut(cond, " ORDER BY ")
	cond, _, _ = strings.Cut(cond, " FOR UPDATE")
	args := st.args[strings.Count(before, "?"):]
	same, rest := make(map[string]any), []any{}
	parts := strings.Split(cond, "?")
	for i, a := range args[:min(len(args), len(parts)-1)] {
		switch m := columnText.FindStringSubmatch(parts[i]); {
		case m == nil:
			rest = append(rest, a)
		case m[2] == "=":
			if _, twice := same[m[1]]; !twice {
				same[m[1]] = a
			}
		}
	}
	t.where, t.args = cond, args[:min(len(args), len(parts)-1)]
	owner := min(ownerColumns, len(columns))
	switch t.key = keyIn(same, columns); {
	case t.key != nil:
	case len(rest) == 0 && keyIn(same, columns[:owner]) != nil:
		t.lock = ownerLock(t.table, keyIn(same, columns[:owner])...)
	default: // instants that a column is compared with change with every try, and are left out
		t.lock = textLock(cond, append(rest, same))
	}
}

// keyIn gives the values of columns, or nil if one is missing.
func keyIn(given map[string]any, columns []string) (key []any) {
	for _, c := range columns {
		v, ok := given[c]
		if !ok {
			return nil
		}
		if n, ok := v.(int); ok {
			v = int64(n)
		}
		key = append(key, v)
	}
	return key
}

// textLock names a statement by its text and arguments.
func textLock(text string, args []any) lockKey {
	var b strings.Builder
	b.WriteString(text)
	for _, a := range args {
		if c, ok := a.(*pg.Column); ok {
			for _, row := range *c.Rows {
				fmt.Fprintf(&b, "\x00%v", row[c.At])
			}
			continue
		}
		if data, ok := a.([]byte); ok {
			a = Digest(string(data))
		}
		fmt.Fprintf(&b, "\x00%v", a)
	}
	return lockKey(b.String())
}

package store

import (
	"iter"
	"slices"
	"strings"

	"github.com/perdure/perdure/internal/server/store/pg"
)

// A dialect is everything that differs between the databases.
type dialect struct {
	name   string
	schema *strings.Replacer // the words in schema/ that the databases write differently
	// ownClock is set for a database without a clock of its own: the process keeps the time. Such a
	// database also has a single writer.
	ownClock bool
	// fatal is set if a failed commit leaves the contents of the file unknown until a restart.
	fatal bool

	tableExists string // a query that counts the tables with a name
	// invalidIndex counts the unfinished indexes with a name. It is empty where an index is built in a
	// transaction.
	invalidIndex string
	contains     func(column string) string // a condition: the column contains a text
	// anyOf is a condition that a column has one of the values, with its arguments.
	anyOf func(column string, values []string) (string, []any)
	// keyed selects the rows of a table by columns that are an index. The first columns have the
	// fixed values, the last one has one of the values. More conditions may follow.
	keyed func(table string, columns, fixed, values []string) (string, []any)
	// among selects the rows of a table whose columns, all those of an index, are a row of the
	// relation that rows makes. More conditions may follow.
	among func(table string, columns []string, rows string) string
	// sizes are the numbers of rows that are written together, decreasing to 1, so that few
	// statements have to be prepared. nil means that one statement takes any number.
	sizes []int
	// orFail is the conflict clause of a write. With OR FAIL SQLite need not be able to undo the
	// single statement: the whole transaction is rolled back.
	orFail string
	// skipLocked ends a subquery that leaves out rows locked by other sessions.
	skipLocked string
	// skipRows is the same for the rows of a table in a join. It is nil where no row can be locked.
	skipRows func(table string) string
	// lockTables is a statement that takes the lock that a write takes of each of some tables. It is nil
	// where a table can't be locked.
	lockTables func(tables []string) string
	// recursive is set if a query may search again for each of its rows.
	recursive bool
	// indexed names the index that a query has to use, where the planner would prefer the primary
	// key.
	indexed func(index string) string
	// rows is a relation of given rows, and args are its arguments.
	rows func(part [][]any) string
	args func(part [][]any) []any
	// shared is the relation of rows in which some columns have one value each, see alike.go. It is
	// nil where this saves nothing.
	shared func(first []any, g grouping, all sharing) string

	// The following functions classify errors. conflict means that another writer changed a row
	// first. lost means that the connection is gone and nothing was committed.
	conflict func(error) bool
	lost     func(error) bool
	// readOnly means that the database takes no writes.
	readOnly func(error) bool
	// locked means that another session holds a row locked.
	locked func(error) bool
	// blocked means that another program holds the whole database locked.
	blocked func(error) bool
	// late means that a query exceeded its time limit.
	late func(error) bool
	// busy means that another try would only add load.
	busy func(error) bool
}

// parts splits rows into the parts that one statement writes.
func (d *dialect) parts(rows [][]any) iter.Seq[[][]any] {
	return func(yield func([][]any) bool) {
		if d.sizes == nil {
			yield(rows)
			return
		}
		for _, n := range d.sizes {
			for ; len(rows) >= n; rows = rows[n:] {
				if !yield(rows[:n]) {
					return
				}
			}
		}
	}
}

// inserts gives the statements that insert rows. text begins each of them and names the table and
// its columns.
func (d *dialect) inserts(text string, rows [][]any) iter.Seq2[string, []any] {
	return func(yield func(string, []any) bool) {
		for part := range d.parts(rows) {
			if !yield(text+d.rows(part), d.args(part)) {
				return
			}
		}
	}
}

// padded repeats the last row, so that few different statements are needed for any number of rows.
// among finds a repeated row once.
func (d *dialect) padded(rows [][]any) [][]any {
	if d.sizes == nil || len(rows) == 0 {
		return rows
	}
	left := len(rows) % d.sizes[0]
	if left == 0 {
		return rows
	}
	fits := d.sizes[0]
	for _, n := range d.sizes {
		if n >= left {
			fits = n
		}
	}
	return append(rows, slices.Repeat(rows[len(rows)-1:], fits-left)...)
}

// textFor is the key of a bulk statement's text: the number of rows, where the text depends on it.
func (d *dialect) textFor(rows int) int {
	if d.sizes == nil {
		return 0
	}
	return rows
}

// eachPart calls f with parts of a list of values, each small enough for one query.
func eachPart[T any](d *dialect, values []T, f func(part []T) error) error {
	if d.sizes == nil {
		if len(values) == 0 {
			return nil
		}
		return f(values)
	}
	for _, n := range d.sizes {
		for ; len(values) >= n; values = values[n:] {
			if err := f(values[:n]); err != nil {
				return err
			}
		}
	}
	return nil
}

// texts converts a list of string types.
func texts[S ~string](list []S) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = string(s)
	}
	return out
}

// redact replaces secrets in the arguments of statements.
func redact(list []statement, f func(string) string) {
	for _, st := range list {
		for i, a := range st.args {
			switch a := a.(type) {
			case string:
				st.args[i] = f(a)
			case *pg.Column:
				for _, row := range *a.Rows {
					if text, ok := row[a.At].(string); ok {
						row[a.At] = f(text)
					}
				}
			}
		}
	}
}

// flat gives the values of rows as one list of arguments. Rows that follow each other in one list are
// not copied.
func flat(part [][]any) []any {
	if len(part) == 0 {
		return nil
	}
	width := len(part[0])
	if n := len(part) * width; cap(part[0]) >= n {
		all := part[0][:n:n]
		for i, row := range part {
			if len(row) != width || &row[0] != &all[i*width] {
				return slices.Concat(part...)
			}
		}
		return all
	}
	return slices.Concat(part...)
}

package store

import (
	"iter"
	"slices"
	"strings"

	"github.com/perdure/perdure/internal/store/pg"
)

// A dialect is all that differs between the databases.
type dialect struct {
	name     string
	schema   *strings.Replacer // the words of schema/ that the databases write differently
	ownClock bool              // the database has no clock of its own: the process keeps it
	// fatal tells whether a commit that failed leaves the process in doubt of its own file, so that only a
	// restart finds out what is in it.
	fatal bool

	tableExists string // a query that counts tables of a name
	contains    string // a condition: a text column holds a text
	// anyOf is a condition: a column has one of the values; and its arguments.
	anyOf func(column string, values []string) (string, []any)
	// keyed chooses the rows of a table whose columns are an index: the first ones have the fixed values, the last
	// one has one of the values. More conditions may follow.
	keyed func(table string, columns, fixed, values []string) (string, []any)
	// among chooses the rows of a table whose columns, all those of an index, are a row of a relation that rows has made.
	// More conditions may follow.
	among func(table string, columns []string, rows string) string
	// sizes are the numbers of rows that are written together, falling to 1, so that few statements have to be
	// kept prepared; nil means that one statement takes any number.
	sizes []int
	// orFail has a statement that breaks a constraint leave what it did, which is rolled back with everything else: the
	// database need not be able to take back that one statement.
	orFail string
	// skipLocked ends a subquery that leaves out the rows that somebody else is changing.
	skipLocked string
	// indexed names the index that a query is to use, where the planner would rather read the table in its own order.
	indexed func(index string) string
	// rows is a relation of given rows, and args are its arguments.
	rows func(part [][]any) string
	args func(part [][]any) []any

	// conflict tells an error that means "somebody else was quicker", lost one that means "the connection is
	// gone, and nothing was committed".
	conflict func(error) bool
	lost     func(error) bool
	// readOnly tells an error that means "the database takes no writes".
	readOnly func(error) bool
	// locked tells an error that means "somebody else holds a row locked".
	locked func(error) bool
	// blocked tells one that means "another program holds the whole database locked".
	blocked func(error) bool
	// late tells an error that means "the query took longer than it may".
	late func(error) bool
	// busy tells an error that trying again would only make worse.
	busy func(error) bool
}

// parts splits rows into those that are written together.
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

// inserts gives the statements that write rows. Each begins with a text that names a table and its columns.
func (d *dialect) inserts(text string, rows [][]any) iter.Seq2[string, []any] {
	return func(yield func(string, []any) bool) {
		for part := range d.parts(rows) {
			if !yield(text+d.rows(part), d.args(part)) {
				return
			}
		}
	}
}

// padded repeats the last row as often as it takes to ask for all of them in as few parts as there can be. Who is asked for
// twice by among is found once.
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

// textFor is by what the text of a bulk write is known: the number of rows, where that matters.
func (d *dialect) textFor(rows int) int {
	if d.sizes == nil {
		return 0
	}
	return rows
}

// eachPart calls f with parts of a list of values, as many as a query names at once.
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

func texts[S ~string](list []S) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = string(s)
	}
	return out
}

// redact takes secrets out of what is about to be written.
func redact(list []statement, f func(string) string) {
	for _, st := range list {
		for i, a := range st.args {
			switch a := a.(type) {
			case string:
				st.args[i] = f(a)
			case pg.Column:
				for _, row := range a.Rows {
					if text, ok := row[a.At].(string); ok {
						row[a.At] = f(text)
					}
				}
			}
		}
	}
}

func flat(part [][]any) []any { return slices.Concat(part...) }

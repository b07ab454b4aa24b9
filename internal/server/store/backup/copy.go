package backup

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
)

// A Session is a database to read from or to write into.
type Session interface {
	Exec(query string, args []any) (affected int64, err error)
	Query(query string, args []any, row func(scan func(dest ...any) error) error) error
}

// A Table has the columns of a table. They are read from a database with the schema, so that tables
// of later versions are copied too.
type Table struct {
	Name  string
	cols  []string
	bytes []bool // which columns hold bytes
}

// Tables gives the tables of a SQLite database by name, without meta.
func Tables(s Session) (out []Table, err error) {
	err = s.Query("SELECT m.name, c.name, c.type FROM sqlite_master m, pragma_table_info(m.name) c "+
		"WHERE m.type='table' AND m.name<>'meta' "+
		"AND m.name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY m.name, c.cid", nil,
		func(scan func(...any) error) error {
			var table, column, kind string
			if err := scan(&table, &column, &kind); err != nil {
				return err
			}
			if len(out) == 0 || out[len(out)-1].Name != table {
				out = append(out, Table{Name: table})
			}
			t := &out[len(out)-1]
			t.cols, t.bytes = append(t.cols, column), append(t.bytes, kind == "BLOB")
			return nil
		})
	return out, err
}

// read calls f with every row of a table.
func (t *Table) read(from Session, f func(row []any) error) error {
	return from.Query("SELECT "+strings.Join(t.cols, ",")+" FROM "+t.Name, nil, func(scan func(...any) error) error {
		row, places, data := make([]any, len(t.cols)), make([]any, len(t.cols)), make([][]byte, len(t.cols))
		for i := range row {
			if places[i] = &row[i]; t.bytes[i] {
				places[i] = &data[i]
			}
		}
		if err := scan(places...); err != nil {
			return err
		}
		for i := range row {
			if t.bytes[i] {
				row[i] = data[i]
			}
		}
		return f(row)
	})
}

// A Progress is the progress of a copy.
type Progress struct {
	Table string
	Rows  int64 // copied so far, of all tables
}

// A Copier writes rows into a database, many at a time.
type Copier struct {
	Into Session
	// Inserts gives the statements that insert rows. text begins each of them and names the table
	// and the columns.
	Inserts func(text string, rows [][]any) iter.Seq2[string, []any]
	Told    func(Progress) // called with the progress; may be nil
	Rows    int64          // rows written, of all tables
}

// MaxRows and maxBytes bound the part of a copy that is in memory.
const (
	MaxRows  = 256
	maxBytes = 4 << 20
)

// Table copies all rows of a table, and gives how many there are.
func (c *Copier) Table(ctx context.Context, t *Table, from Session) (rows int64, err error) {
	var part [][]any
	size, before := 0, c.Rows
	err = t.read(from, func(row []any) error {
		part = append(part, row)
		for _, v := range row {
			switch v := v.(type) {
			case string:
				size += len(v)
			case []byte:
				size += len(v)
			}
		}
		if len(part) < MaxRows && size < maxBytes {
			return nil
		}
		err := c.write(ctx, t, part)
		part, size = part[:0], 0
		return err
	})
	if err == nil {
		err = c.write(ctx, t, part)
	}
	if err != nil {
		return 0, fmt.Errorf("copy %s: %w", t.Name, err)
	}
	return c.Rows - before, nil
}

// write inserts rows of a table.
func (c *Copier) write(ctx context.Context, t *Table, rows [][]any) error {
	if len(rows) == 0 {
		return nil
	}
	text := "INSERT INTO " + t.Name + " (" + strings.Join(t.cols, ",") + ") "
	list := c.Inserts(text, rows)
	if slices.Contains(t.bytes, true) { // package pg has no arrays of bytes
		list = oneByOne(text, rows)
	}
	return c.exec(ctx, t.Name, len(rows), list)
}

// oneByOne gives one statement per row.
func oneByOne(text string, rows [][]any) iter.Seq2[string, []any] {
	return func(yield func(string, []any) bool) {
		for _, row := range rows {
			marks := strings.TrimSuffix(strings.Repeat("?,", len(row)), ",")
			if !yield(text+"VALUES ("+marks+")", row) {
				return
			}
		}
	}
}

// Write executes statements that write so many rows of a table.
func (c *Copier) Write(ctx context.Context, table string, rows int, list iter.Seq2[string, []any]) error {
	if err := c.exec(ctx, table, rows, list); err != nil {
		return fmt.Errorf("copy %s: %w", table, err)
	}
	return nil
}

// exec executes statements, counts the rows and reports the progress.
func (c *Copier) exec(ctx context.Context, table string, rows int, list iter.Seq2[string, []any]) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	for text, args := range list {
		if _, err := c.Into.Exec(text, args); err != nil {
			return err
		}
	}
	c.Rows += int64(rows)
	if c.Told != nil {
		c.Told(Progress{table, c.Rows})
	}
	return nil
}

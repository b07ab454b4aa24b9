package store

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// A shape is what a table looks like. It is read from a database that has the schema, so that a table that comes with a
// later one is copied as well.
type shape struct {
	name  string
	cols  []string
	bytes []bool // which of them hold bytes
}

// shapes gives the tables of a SQLite database, all but meta.
func shapes(s Session) (out []shape, err error) {
	err = s.Query("SELECT m.name, c.name, c.type FROM sqlite_master m, pragma_table_info(m.name) c WHERE m.type='table' AND m.name<>'meta' "+
		"AND m.name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY m.name, c.cid", nil, func(scan func(...any) error) error {
		var table, column, kind string
		if err := scan(&table, &column, &kind); err != nil {
			return err
		}
		if len(out) == 0 || out[len(out)-1].name != table {
			out = append(out, shape{name: table})
		}
		t := &out[len(out)-1]
		t.cols, t.bytes = append(t.cols, column), append(t.bytes, kind == "BLOB")
		return nil
	})
	return out, err
}

// read calls f with every row of a table.
func (t *shape) read(from Session, f func(row []any) error) error {
	return from.Query("SELECT "+strings.Join(t.cols, ",")+" FROM "+t.name, nil, func(scan func(...any) error) error {
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

// A copying writes rows into a database, many at a time.
type copying struct {
	ctx  context.Context
	into Session
	d    *dialect
	told func(Copied)
	rows int64 // written, of all tables
}

// copyRows and copyBytes bound what of a copy is in memory.
const (
	copyRows  = 256
	copyBytes = 4 << 20
)

// table copies all rows of a table.
func (c *copying) table(t *shape, from Session) (rows int64, err error) {
	var part [][]any
	size, before := 0, c.rows
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
		if len(part) < copyRows && size < copyBytes {
			return nil
		}
		err := c.write(t, part)
		part, size = part[:0], 0
		return err
	})
	if err == nil {
		err = c.write(t, part)
	}
	if err != nil {
		return 0, fmt.Errorf("copy %s: %w", t.name, err)
	}
	return c.rows - before, nil
}

func (c *copying) write(t *shape, rows [][]any) error {
	if len(rows) == 0 {
		return nil
	}
	if err := c.ctx.Err(); err != nil {
		return err
	}
	into := "INSERT INTO " + t.name + " (" + strings.Join(t.cols, ",") + ") "
	if slices.Contains(t.bytes, true) { // there is no array of bytes
		for _, row := range rows {
			if _, err := c.into.Exec(into+"VALUES ("+marks(len(row))+")", row); err != nil {
				return err
			}
		}
	} else {
		for part := range c.d.parts(rows) {
			if _, err := c.into.Exec(into+c.d.rows(part), c.d.args(part)); err != nil {
				return err
			}
		}
	}
	c.count(t.name, len(rows))
	return nil
}

// statements writes records that have a table of their own.
func (c *copying) statements(name string, rows int, list []statement) error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	for _, st := range list {
		if _, err := c.into.Exec(st.text, st.args); err != nil {
			return fmt.Errorf("copy %s: %w", name, err)
		}
	}
	c.count(name, rows)
	return nil
}

func (c *copying) count(name string, rows int) {
	c.rows += int64(rows)
	if c.told != nil {
		c.told(Copied{name, c.rows})
	}
}

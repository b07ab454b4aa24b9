package store

import (
	"strings"
	"sync"
)

// A table knows how a record becomes a row and back. cols, bind and scan are in the same order.
type table[T any] struct {
	name string
	cols []string
	keys []string
	bind func(*T) []any
	scan func(*T) []any
	// versioned tables have a column "version": an update holds only for the version that was read.
	versioned bool
	// written once: a second insert of the same key is an error, not an update.
	once bool
	// quiet: a second insert of the same key changes nothing and is no error.
	quiet bool

	writing sync.Once      // stores of one process share the table
	texts   map[int]string // the insert statement by number of rows
}

// chunks are the sizes in which rows are written together: few, so that the statements stay prepared.
var chunks = []int{64, 16, 4, 1}

func eachChunk[T any](rows []T, f func([]T) error) error {
	for _, n := range chunks {
		for len(rows) >= n {
			if err := f(rows[:n]); err != nil {
				return err
			}
			rows = rows[n:]
		}
	}
	return nil
}

func (t *table[T]) insert(s Session, rows []T) error {
	t.writing.Do(func() {
		t.texts = make(map[int]string)
		for _, n := range chunks {
			t.texts[n] = t.insertText(n)
		}
	})
	return eachChunk(rows, func(part []T) error {
		args := make([]any, 0, len(part)*len(t.cols))
		for i := range part {
			args = append(args, t.bind(&part[i])...)
		}
		n, err := s.Exec(t.texts[len(part)], args)
		if err != nil {
			return err
		}
		if t.versioned && n != int64(len(part)) {
			return errConflict
		}
		return nil
	})
}

func (t *table[T]) insertText(rows int) string {
	row := "(" + strings.TrimSuffix(strings.Repeat("?,", len(t.cols)), ",") + ")"
	var b strings.Builder
	b.WriteString("INSERT INTO " + t.name + " (" + strings.Join(t.cols, ",") + ") VALUES " +
		strings.TrimSuffix(strings.Repeat(row+",", rows), ","))
	if t.once {
		return b.String()
	}
	b.WriteString(" ON CONFLICT (" + strings.Join(t.keys, ",") + ") DO ")
	if t.quiet {
		b.WriteString("NOTHING")
		return b.String()
	}
	b.WriteString("UPDATE SET ")
	first := true
	for _, c := range t.cols {
		if contains(t.keys, c) {
			continue
		}
		if !first {
			b.WriteString(",")
		}
		first = false
		b.WriteString(c + "=excluded." + c)
	}
	if t.versioned {
		b.WriteString(" WHERE " + t.name + ".version=excluded.version-1")
	}
	return b.String()
}

// selectText is a SELECT of the whole record.
func (t *table[T]) selectText(rest string) string {
	return "SELECT " + strings.Join(t.cols, ",") + " FROM " + t.name + " " + rest
}

func (t *table[T]) query(s Session, rest string, args []any, row func(*T) error) error {
	return s.Query(t.selectText(rest), args, func(scan func(...any) error) error {
		var v T
		if err := scan(t.scan(&v)...); err != nil {
			return err
		}
		return row(&v)
	})
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

// bit scans 0 and 1 into a bool.
type bit struct{ b *bool }

func (x bit) Scan(v any) error {
	n, _ := v.(int64)
	*x.b = n != 0
	return nil
}

func toBit(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// nullable scans NULL into zero.
type nullable[T ~int64] struct{ p *T }

func (x nullable[T]) Scan(v any) error {
	n, _ := v.(int64)
	*x.p = T(n)
	return nil
}

func orNull[T ~int64](v T) any {
	if v == 0 {
		return nil
	}
	return int64(v)
}

package store

import (
	"slices"
	"strings"
	"sync"

	"github.com/perdure/perdure"
)

// A table knows how a record becomes a row and back. cols, bind and scan are in the same order.
type table[T any] struct {
	name string
	cols []string
	keys []string
	bind func(*T) []any
	scan func(*T) []any
	// versioned tables have a column "version": an update holds only for the version that was read. version points to
	// it in a record. heads, if set, has the columns that an update writes, where these are not all.
	versioned bool
	version   func(*T) *int64
	heads     *table[T]
	// written once: a second insert of the same key is an error, not an update.
	once bool
	// quiet: a second insert of the same key changes nothing and is no error.
	quiet bool
	// held: a quiet insert of a key that is there holds its row, by setting this column to what it is, against who would
	// remove it meanwhile. Where there is one writer there is no meanwhile.
	held string

	// unread is told of a column that holds something else than it should; sound looks at a record that was read. A row that
	// something happened to outside of the program is read all the same: it must not stand in the way of the others.
	unread func(v *T, column string)
	sound  func(*T)

	texts sync.Map // the statement by dialect and number of rows: stores of one process share the table
}

type textKey struct {
	d      *dialect
	n      int
	update bool
}

// insert gives the statements that write rows.
func (t *table[T]) insert(d *dialect, rows []T) (out []statement) {
	if len(rows) == 0 {
		return nil
	}
	for part := range d.parts(t.bound(rows)) {
		st := statement{text: t.insertText(d, part), args: d.args(part), want: anyNumber}
		if t.versioned {
			st.want = int64(len(part))
		}
		out = append(out, st)
	}
	return out
}

// update gives the statements that change rows of a versioned table, each only if it is there and is what was read.
func (t *table[T]) update(d *dialect, rows []T) (out []statement) {
	if len(rows) == 0 {
		return nil
	}
	for part := range d.parts(t.bound(rows)) {
		out = append(out, statement{t.updateText(d, part), d.args(part), int64(len(part))})
	}
	return out
}

func (t *table[T]) bound(rows []T) [][]any {
	bound := make([][]any, len(rows))
	for i := range rows {
		bound[i] = t.bind(&rows[i])
	}
	if !t.once && len(rows) > 1 {
		// Two nodes that change the same rows do it in the same order, so that they can't lock each other out.
		slices.SortStableFunc(bound, t.byKey)
	}
	return bound
}

// byKey compares bound rows by their keys, which come first in every table's columns.
func (t *table[T]) byKey(a, b []any) int {
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

func (t *table[T]) insertText(d *dialect, part [][]any) string {
	k := textKey{d: d, n: d.textFor(len(part))}
	if text, ok := t.texts.Load(k); ok {
		return text.(string)
	}
	var b strings.Builder
	b.WriteString("INSERT " + d.orFail + "INTO " + t.name + " (" + strings.Join(t.cols, ",") + ") " + d.rows(part))
	switch {
	case t.once:
	case t.quiet && t.held != "" && !d.ownClock:
		b.WriteString(" ON CONFLICT (" + strings.Join(t.keys, ",") + ") DO UPDATE SET " + t.held + "=excluded." + t.held)
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

func (t *table[T]) updateText(d *dialect, part [][]any) string {
	k := textKey{d, d.textFor(len(part)), true}
	if text, ok := t.texts.Load(k); ok {
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
	text := "WITH input(" + strings.Join(t.cols, ",") + ") AS (" + d.rows(part) + ") UPDATE " + d.orFail + t.name + " SET " + strings.Join(set, ",") +
		" FROM input WHERE " + strings.Join(same, " AND ") + " AND CAST(" + t.name + ".version AS BIGINT)=input.version-1"
	t.texts.Store(k, text)
	return text
}

// selectText is a SELECT of the whole record.
func (t *table[T]) selectText(rest string) string {
	return "SELECT " + strings.Join(t.cols, ",") + " FROM " + t.name + " " + rest
}

func (t *table[T]) query(s Session, rest string, args []any, row func(*T) error) error {
	return s.Query(t.selectText(rest), args, func(scan func(...any) error) error {
		var v T
		if scan(t.scan(&v)...) != nil {
			v = *new(T) // what was read of it comes again
			if err := t.scanAnyhow(scan, &v); err != nil {
				return err
			}
		}
		if t.sound != nil {
			t.sound(&v)
		}
		return row(&v)
	})
}

// one reads the row that a condition holds for: ok is false if there is none.
func (t *table[T]) one(s Session, where string, args ...any) (v T, ok bool, err error) {
	err = t.query(s, where, args, func(x *T) error {
		v, ok = *x, true
		return nil
	})
	return v, ok, err
}

// ignored scans what is not needed.
type ignored struct{}

func (ignored) Scan(any) error { return nil }

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

type idList struct{ ids *[]perdure.RunID }

// ids joins run ids for a column; splitIDs is its inverse.
func joinIDs(ids []perdure.RunID) string {
	var b strings.Builder
	for i, id := range ids {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(string(id))
	}
	return b.String()
}

func (l idList) Scan(v any) error {
	s, _ := v.(string)
	*l.ids = nil
	if s != "" {
		for part := range strings.SplitSeq(s, "\n") {
			*l.ids = append(*l.ids, perdure.RunID(part))
		}
	}
	return nil
}

package store

import (
	"strings"
	"unsafe"

	"github.com/perdure/perdure"
)

// The columns of a record.
//
// A table has one function that goes over the columns of a record, with one row for each:
//
//	text(c, "tenant", &n.Tenant)
//	number(c, "at", &n.At)
//
// The same row serves all directions. It names the column, gives the value to write, and gives the
// place to read into, according to what the function is called for. Two columns can therefore not be
// exchanged in one direction alone. Calls, and no list of descriptions, because they cost nothing for
// a row: the values of a bulk write are collected in one list.

// columns collects one thing of each column, in the order of the columns.
type columns struct {
	of direction
	// list has the names of the columns, their values, or their destinations.
	list []any
	// texts and numbers hold the values in list; see boxText.
	texts   []string
	numbers []int64
}

// boxesAtOnce is how many values get a place with one allocation. A run has about as many texts.
const boxesAtOnce = 32

// boxText gives a text as an any. An any points to its value, and so each text would be an allocation of
// its own; here they are elements of a list. No element ever changes.
func (c *columns) boxText(s string) (v any) {
	if s == "" {
		return ""
	}
	if len(c.texts) == cap(c.texts) {
		c.texts = make([]string, 0, boxesAtOnce)
	}
	c.texts = append(c.texts, s)
	v = ""
	(*anyLayout)(unsafe.Pointer(&v)).value = unsafe.Pointer(&c.texts[len(c.texts)-1])
	return v
}

// boxNumber gives a number as an any, as boxText does. Go has places for the numbers of one byte.
func (c *columns) boxNumber(n int64) (v any) {
	if n == int64(uint8(n)) {
		return n
	}
	if len(c.numbers) == cap(c.numbers) {
		c.numbers = make([]int64, 0, boxesAtOnce)
	}
	c.numbers = append(c.numbers, n)
	v = int64(0)
	(*anyLayout)(unsafe.Pointer(&v)).value = unsafe.Pointer(&c.numbers[len(c.numbers)-1])
	return v
}

// anyLayout is the layout of an any that holds no pointer.
type anyLayout struct{ kind, value unsafe.Pointer }

// names goes over columns and gives their names.
func names(of func(*columns)) []string {
	var c columns
	of(&c)
	out := make([]string, len(c.list))
	for i, name := range c.list {
		out[i] = name.(string)
	}
	return out
}

// A direction says whether columns collects names, values or places to read into.
type direction int8

const (
	naming direction = iota
	binding
	scanning
)

// text is a column with a text.
func text[S ~string](c *columns, name string, field *S) {
	switch c.of {
	case binding:
		c.list = append(c.list, c.boxText(string(*field)))
	case scanning:
		c.list = append(c.list, field)
	default:
		c.list = append(c.list, name)
	}
}

// number is a column with a whole number.
func number[N ~int | ~int64](c *columns, name string, field *N) {
	switch c.of {
	case binding:
		c.list = append(c.list, c.boxNumber(int64(*field)))
	case scanning:
		c.list = append(c.list, field)
	default:
		c.list = append(c.list, name)
	}
}

// flag is a column with 0 or 1.
func flag(c *columns, name string, field *bool) {
	switch c.of {
	case binding:
		c.list = append(c.list, toBit(*field))
	case scanning:
		c.list = append(c.list, bit{field})
	default:
		c.list = append(c.list, name)
	}
}

// optional is a column with a whole number, in which NULL stands for zero.
func optional[N ~int64](c *columns, name string, field *N) {
	switch c.of {
	case binding:
		if *field == 0 {
			c.list = append(c.list, nil)
		} else {
			c.list = append(c.list, c.boxNumber(int64(*field)))
		}
	case scanning:
		c.list = append(c.list, nullable[N]{field})
	default:
		c.list = append(c.list, name)
	}
}

// A scanner takes the value of a column, as a sql.Scanner does.
type scanner interface{ Scan(v any) error }

// A coded value has a form of its own in the database. value gives that form, and Scan reads it.
type coded interface {
	scanner
	value() any
}

// packed is a column with a coded value.
func packed(c *columns, name string, v coded) {
	switch c.of {
	case binding:
		c.list = append(c.list, v.value())
	case scanning:
		c.list = append(c.list, v)
	default:
		c.list = append(c.list, name)
	}
}

// derived is a column for queries. It follows from other columns and is never read back.
func derived[T any](c *columns, name string, record *T, value func(*T) any) {
	switch c.of {
	case binding:
		c.list = append(c.list, value(record))
	case scanning:
		c.list = append(c.list, ignored{})
	default:
		c.list = append(c.list, name)
	}
}

// computed is an expression that is read. There is no column to write.
func computed(c *columns, expression string, to scanner) {
	switch c.of {
	case binding:
		c.list = append(c.list, nil)
	case scanning:
		c.list = append(c.list, to)
	default:
		c.list = append(c.list, expression)
	}
}

// ignored is the destination of a column that is not needed.
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

// nullable scans NULL, and any value that is no number, into zero.
type nullable[T ~int64] struct{ p *T }

func (x nullable[T]) Scan(v any) error {
	n, _ := v.(int64)
	*x.p = T(n)
	return nil
}

// orNull is the argument for a column that holds NULL instead of zero.
func orNull[T ~int64](v T) any {
	if v == 0 {
		return nil
	}
	return int64(v)
}

// idList is a column with run ids, one in each line.
type idList struct{ ids *[]perdure.RunID }

func (l idList) value() any {
	var b strings.Builder
	for i, id := range *l.ids {
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

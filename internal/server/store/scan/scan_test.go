package scan

import (
	"database/sql"
	"reflect"
	"testing"
)

type (
	word   string
	number int32
)

func TestValuesAreConverted(t *testing.T) {
	for _, x := range []struct {
		name string
		dest any
		put  func(dest any) error
		want any
	}{
		{"a number into an int64", new(int64), number7, int64(7)},
		{"a number into an int", new(int), number7, 7},
		{"a number into a kind of int32", new(number), number7, number(7)},
		{"a number into a string", new(string), number7, "7"},
		{"a number into an any", new(any), number7, int64(7)},
		{"a number into a Scanner", new(sql.NullString), number7, sql.NullString{String: "7", Valid: true}},
		{"a text into a string", new(string), text("x"), "x"},
		{"a text into a kind of string", new(word), text("x"), word("x")},
		{"a text into an any", new(any), text("x"), "x"},
		{"a text into a Scanner", new(sql.NullString), text("x"), sql.NullString{String: "x", Valid: true}},
		{"a text that spells a number", new(int64), text("-12"), int64(-12)},
		{"NULL into a string", ptr("before"), null, ""},
		{"NULL into an any", ptr[any]("before"), null, nil},
		{"NULL into a Scanner", &sql.NullString{Valid: true}, null, sql.NullString{}},
		{"whatever is a number", new(int), value(int64(8)), 8},
		{"whatever is a text", new(string), value("y"), "y"},
		{"whatever is bytes", new(word), value([]byte("y")), word("y")},
		{"whatever is nothing, into a Scanner", &sql.NullString{Valid: true}, value(nil), sql.NullString{}},
	} {
		err := x.put(x.dest)
		if got := reflect.ValueOf(x.dest).Elem().Interface(); err != nil || got != x.want {
			t.Errorf("%s: %v, %v, want %v", x.name, got, err, x.want)
		}
	}
}

func TestValuesThatDoNotFitAreRefused(t *testing.T) {
	for _, x := range []struct {
		name string
		dest any
		put  func(dest any) error
	}{
		{"a number into a bool", new(bool), number7},
		{"a text into a bool", new(bool), text("t")},
		{"a text that spells no number", new(int), text("x")},
		{"a text that spells a number that is too large", new(int64), text("9223372036854775808")},
		{"nothing into a string", new(string), value(nil)},
		{"a fraction into an int", new(int), value(1.5)},
	} {
		if err := x.put(x.dest); err == nil {
			t.Errorf("%s: no error, and it is %v", x.name, reflect.ValueOf(x.dest).Elem())
		}
	}
}

func number7(dest any) error { return Int(dest, 7) }
func null(dest any) error    { return Text(dest, nil) }

func text(s string) func(any) error { return func(dest any) error { return Text(dest, []byte(s)) } }
func value(v any) func(any) error   { return func(dest any) error { return Value(dest, v) } }

func ptr[T any](v T) *T { return &v }

package scan

import (
	"database/sql"
	"testing"
)

type (
	word   string
	number int32
)

func TestValuesArePutWhereTheyFit(t *testing.T) {
	var (
		i64    int64
		i      int
		n      number
		s      string
		w      word
		a      any
		null   sql.NullString
		broken bool
	)
	for _, x := range []struct {
		name string
		put  error
		ok   bool
	}{
		{"a number into an int64", Int(&i64, -7), i64 == -7},
		{"a number into an int", Int(&i, 7), i == 7},
		{"a number into a kind of int32", Int(&n, 7), n == 7},
		{"a number into a string", Int(&s, 7), s == "7"},
		{"a number into an any", Int(&a, 7), a == any(int64(7))},
		{"a number into a Scanner", Int(&null, 7), null.Valid && null.String == "7"},
		{"a text into a string", Text(&s, []byte("x")), s == "x"},
		{"a text into a kind of string", Text(&w, []byte("x")), w == "x"},
		{"a text into an any", Text(&a, []byte("x")), a == any("x")},
		{"a text into a Scanner", Text(&null, []byte("x")), null.Valid && null.String == "x"},
		{"a text that spells a number", Text(&i64, []byte("12")), i64 == 12},
		{"NULL into a string", Text(&s, nil), s == ""},
		{"NULL into an any", Text(&a, nil), a == nil},
		{"NULL into a Scanner", Text(&null, nil), !null.Valid},
	} {
		if x.put != nil || !x.ok {
			t.Errorf("%s: put wrongly, or %v", x.name, x.put)
		}
	}
	for name, err := range map[string]error{
		"a number into a bool":          Int(&broken, 1),
		"a text into a bool":            Text(&broken, []byte("t")),
		"a text that spells no number":  Text(&i, []byte("x")),
		"a number that is one too many": Text(&i64, []byte("9223372036854775808")),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

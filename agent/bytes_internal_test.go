package agent

import (
	"encoding/json"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/perdure/perdure/agent/internal/journal"
)

type inner struct {
	Raw  []byte `json:"raw,omitempty"`
	Name string
}

type marked struct {
	inner
	List  []inner
	Named map[string]*inner `json:"named"`
	At    time.Time
	JSON  json.RawMessage
	Any   any
	Dash  []byte `json:"-"`
	Slash []byte `json:"a/b"`
	own   []byte
}

// Marks are where bytes are, and strings that could be taken for bytes. Values that read themselves, and
// those of any type, have none.
func TestMarksOfResults(t *testing.T) {
	t.Parallel()
	b := []byte("hi")
	all := marked{inner: inner{b, "abcd"}, List: []inner{{Name: "no, not base64"}, {Raw: b}, {Raw: b}},
		Named: map[string]*inner{"x": {Name: "abcd"}, "nil": nil}, JSON: json.RawMessage(`"abcd"`), Any: "abcd",
		Dash: b, Slash: b, own: b}
	for _, row := range []struct {
		v    any
		want marks
	}{
		{"", nil}, {"abc", nil}, {"abcd", marks{"t:"}}, {"ab==", marks{"t:"}}, {"ab c", nil}, {1, nil}, {[]byte{}, nil},
		{b, marks{"b:"}}, {[][]byte{b}, marks{"b:/*"}}, {&b, marks{"b:"}}, {[]string{"x", "abcd"}, marks{"t:/*"}},
		{map[string]string{"x": "abcd"}, marks{"t:/*"}}, {json.RawMessage(`"abcd"`), nil}, {[4]byte{1}, nil},
		{all, marks{"b:/raw", "t:/Name", "b:/List/*/raw", "t:/named/*/Name"}},
	} {
		got := marksOf(reflect.ValueOf(row.v))
		slices.Sort(got)
		slices.Sort(row.want)
		if !slices.Equal(got, row.want) {
			t.Errorf("marks of %#v = %q, want %q", row.v, got, row.want)
		}
		if err := got.check(reflect.TypeOf(row.v)); err != nil {
			t.Errorf("%#v does not fit its own type: %v", row.v, err)
		}
		var rec, back journal.Step
		rec.As, rec.OK = got, json.RawMessage(`1`)
		if err := json.Unmarshal(rec.Encode(), &back); err != nil || !slices.Equal(back.As, got) {
			t.Errorf("the marks %q are written as %s", got, rec.Encode())
		}
	}
}

func TestTypesThatMarksContradict(t *testing.T) {
	t.Parallel()
	type textual struct{ Raw string }
	type binary struct{ Name []byte }
	for _, row := range []struct {
		m    marks
		t    reflect.Type
		fits bool
	}{
		{marks{"b:"}, reflect.TypeFor[string](), false}, {marks{"b:"}, reflect.TypeFor[[]byte](), true},
		{marks{"t:"}, reflect.TypeFor[[]byte](), false}, {marks{"t:"}, reflect.TypeFor[*string](), true},
		{marks{"b:"}, reflect.TypeFor[any](), true}, {marks{"b:"}, reflect.TypeFor[json.RawMessage](), true},
		{marks{"b:/raw"}, reflect.TypeFor[textual](), false}, {marks{"b:/raw"}, reflect.TypeFor[*textual](), false},
		{marks{"b:/raw"}, reflect.TypeFor[binary](), true}, {marks{"t:/Name"}, reflect.TypeFor[binary](), false},
		{marks{"t:/*/Name"}, reflect.TypeFor[[]binary](), false},
		{marks{"t:/*/Name"}, reflect.TypeFor[map[string]binary](), false},
		{marks{"t:/x/y"}, reflect.TypeFor[int](), true},
	} {
		if err := row.m.check(row.t); (err == nil) != row.fits {
			t.Errorf("%q read as %s: error %v, want it to fit: %t", row.m, row.t, err, row.fits)
		}
	}
}

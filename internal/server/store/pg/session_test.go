package pg

import (
	"bytes"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/testkit/pgtest"
)

// openSession gives a session of an empty database.
func openSession(t *testing.T) *Conn {
	t.Helper()
	p, err := Open(Options{URL: pgtest.New(t)})
	if err != nil {
		t.Fatal(err)
	}
	s := p.Writer(WriterOptions{Timeout: 30 * time.Second})
	t.Cleanup(func() { s.Close() })
	return s
}

// one reads a row.
func one(t *testing.T, s *Conn, query string, args []any, dest ...any) {
	t.Helper()
	rows := 0
	err := s.Query(query, args, func(scan func(...any) error) error {
		rows++
		return scan(dest...)
	})
	if err != nil || rows != 1 {
		t.Fatalf("%s: %d rows, %v", query, rows, err)
	}
}

func TestQuestionMarksAreNumberedOutsideQuotes(t *testing.T) {
	for query, want := range map[string]string{
		"SELECT 1":                         "SELECT 1",
		"SELECT ?, ?":                      "SELECT $1, $2",
		"SELECT '?', ?":                    "SELECT '?', $1",
		"SELECT 'it''s ?', ?, '' || ?":     "SELECT 'it''s ?', $1, '' || $2",
		"SELECT " + strings.Repeat("?", 3): "SELECT $1$2$3",
	} {
		if got := numbered(query); got != want {
			t.Errorf("numbered(%q) = %q, want %q", query, got, want)
		}
	}
}

func TestValuesRoundTrip(t *testing.T) {
	t.Parallel()
	s := openSession(t)
	for _, text := range []string{"", "a", "it's ?", "größer 🙂", strings.Repeat("x", 1<<16)} {
		var got string
		var found any
		one(t, s, "SELECT ?::text, ?::text", []any{text, text}, &got, &found)
		if got != text || found != any(text) {
			t.Errorf("the text %.40q came back as %.40q and %.40q", text, got, found)
		}
	}
	for _, n := range []int64{0, 1, -1, math.MaxInt32, math.MinInt32, math.MaxInt64, math.MinInt64} {
		var got int64
		var found any
		var spelled string
		one(t, s, "SELECT ?::bigint, ?::bigint, ?::bigint", []any{n, n, n}, &got, &found, &spelled)
		if got != n || found != any(n) {
			t.Errorf("the number %d came back as %d, %v and %s", n, got, found, spelled)
		}
		var small int
		if n >= math.MinInt32 && n <= math.MaxInt32 {
			if one(t, s, "SELECT ?::integer", []any{n}, &small); int64(small) != n {
				t.Errorf("the number %d came back from four bytes as %d", n, small)
			}
		}
	}
	short, sum := 0, int64(0)
	numbers := Columns([][]any{{int64(1)}, {int64(2)}})
	one(t, s, "SELECT (-2)::smallint, sum(n) FROM unnest(?::bigint[]) AS n", numbers, &short, &sum)
	if short != -2 || sum != 3 { // a sum is a numeric, which arrives as a text
		t.Errorf("a number of two bytes is %d, want -2; a sum is %d, want 3", short, sum)
	}
	data, got := []byte{0, 1, 255}, []byte(nil)
	if one(t, s, "SELECT ?::bytea", []any{data}, &got); !bytes.Equal(got, data) {
		t.Errorf("the bytes %v came back as %v", data, got)
	}
	var nothing any = "something"
	empty := "something"
	if one(t, s, "SELECT ?::text, ?::text", []any{nil, nil}, &nothing, &empty); nothing != nil || empty != "" {
		t.Errorf("NULL came back as %v and %q", nothing, empty)
	}
}

func TestColumnsRoundTripAsRows(t *testing.T) {
	t.Parallel()
	s := openSession(t)
	rows := [][]any{{"a", int64(1), nil}, {"", int64(-1), int64(3)}, {"ü", int64(math.MaxInt64), nil}}
	var got [][]any
	const query = "SELECT * FROM unnest(?::text[],?::bigint[],?::bigint[])"
	err := s.Query(query, Columns(rows), func(scan func(...any) error) error {
		row := make([]any, 3)
		got = append(got, row)
		return scan(&row[0], &row[1], &row[2])
	})
	if err != nil || !reflect.DeepEqual(got, rows) {
		t.Errorf("%v came back as %v, %v", rows, got, err)
	}
	n := 0
	one(t, s, "SELECT count(*) FROM unnest(?::text[]) AS x WHERE x = ANY(?::text[])",
		[]any{[]string{"a", "b", ""}, []string{"", "b", "c"}}, &n)
	if n != 2 {
		t.Errorf("%d texts are in both lists, want 2", n)
	}
}

// The server would convert some of these arguments. The store would not notice that a column has
// another type than expected.
func TestArgumentOfAnotherTypeIsRefused(t *testing.T) {
	t.Parallel()
	s := openSession(t)
	for _, x := range []struct {
		query string
		args  []any
		want  string
	}{
		{"SELECT ?::bigint", []any{"1"}, "argument 1 is a text"},
		{"SELECT ?::text, ?::text", []any{"a", int64(1)}, "argument 2 is a number"},
		{"SELECT ?::text", []any{[]byte("a")}, "argument 1 is bytes"},
		{"SELECT ?::text", []any{1.5}, "argument 1 has type float64"},
		{"SELECT ?::text[]", Columns([][]any{{true}}), "argument 1: an array of bool"},
		{"SELECT ?::text[]", Columns([][]any{{"a"}, {int64(1)}}), "argument 1: an array of int64"},
		// This text has the length of a number.
		{"SELECT ?::bigint[]", Columns([][]any{{nil}, {"12345678"}}), "argument 1: an array of string"},
		{"SELECT ?::integer[]", Columns([][]any{{int64(1)}}), "argument 1: an array"},
		{"SELECT ?::bigint", Columns([][]any{{int64(1)}}), "argument 1: an array"},
		{"SELECT ?::bigint[]", []any{[]string{"a"}}, "argument 1: an array"},
		{"SELECT ?::text", []any{"a", "b"}, "2 arguments for 1 parameters"},
	} {
		err := s.Query(x.query, x.args, func(func(...any) error) error { return nil })
		if err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s with %v: %v, want %q", x.query, x.args, err, x.want)
		}
	}
	n := 0
	if one(t, s, "SELECT 1", nil, &n); n != 1 {
		t.Errorf("the session reads %d after the refusals, want 1", n)
	}
}

func TestExecAllCountsChangedRows(t *testing.T) {
	t.Parallel()
	s := openSession(t)
	if _, err := s.Exec("CREATE TABLE numbers (n BIGINT)", nil); err != nil {
		t.Fatal(err)
	}
	three := Columns([][]any{{int64(1)}, {int64(2)}, {int64(3)}})
	list := func(yield func(string, []any) bool) {
		_ = yield("INSERT INTO numbers SELECT unnest(?::bigint[])", three) &&
			yield("UPDATE numbers SET n=n+10 WHERE n>?::bigint", []any{int64(1)}) &&
			yield("DELETE FROM numbers WHERE n=?::bigint", []any{int64(99)})
	}
	rows := func() (n int) {
		one(t, s, "SELECT count(*) FROM numbers", nil, &n)
		return n
	}
	for _, x := range []struct {
		end  func() error
		rows int
	}{{s.Rollback, 0}, {s.Commit, 3}} {
		counts, err := s.ExecAll(list)
		if err != nil || !slices.Equal(counts, []int64{3, 2, 0}) {
			t.Fatalf("the statements changed %v rows, %v, want 3, 2 and 0", counts, err)
		}
		if err := x.end(); err != nil {
			t.Fatal(err)
		}
		if got := rows(); got != x.rows {
			t.Errorf("%d rows after the end, want %d", got, x.rows)
		}
	}
}

// Four bytes would hold the lower half of it, which is another number.
func TestNumberOutOfRangeIsRefused(t *testing.T) {
	t.Parallel()
	s := openSession(t)
	for _, n := range []int64{math.MaxInt32 + 1, math.MinInt32 - 1, math.MaxInt64} {
		got := int64(0)
		err := s.Query("SELECT ?::integer", []any{n}, func(scan func(...any) error) error { return scan(&got) })
		if err == nil || !strings.Contains(err.Error(), "argument 1") {
			t.Errorf("%d as four bytes: %d, %v, want a refusal", n, got, err)
		}
	}
}

package sqlite

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

func memory(t *testing.T) *Conn {
	t.Helper()
	s, err := OpenMemory()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// Values come back as they were given, whatever their size.
func TestValuesComeBack(t *testing.T) {
	s := memory(t)
	if _, err := s.Exec("CREATE TABLE x (v)", nil); err != nil {
		t.Fatal(err)
	}
	large := strings.Repeat("0123456789abcdef", 1<<16)
	for _, v := range []any{nil, int64(0), int64(-1), int64(1) << 62, "", "a", "zero \x00 byte", "ünïcode", large,
		[]byte{}, []byte{0, 255}, []byte(large)} {
		name := fmt.Sprintf("%.20q", fmt.Sprint(v))
		if n, err := s.Exec("INSERT INTO x (v) VALUES (?)", []any{v}); n != 1 || err != nil {
			t.Fatalf("insert %s = %d, %v, want one row", name, n, err)
		}
		var got any
		if err := s.one("SELECT v FROM x", &got); err != nil {
			t.Fatalf("read %s: %v", name, err)
		}
		same := got == any(nil) && v == nil
		switch v := v.(type) {
		case int64, float64, string:
			same = got == v
		case []byte:
			b, ok := got.([]byte)
			same = ok && slices.Equal(b, v)
		}
		if !same {
			t.Errorf("%s came back as %.40q", name, fmt.Sprint(got))
		}
		if n, err := s.Exec("DELETE FROM x", nil); n != 1 || err != nil {
			t.Fatalf("delete = %d, %v, want one row", n, err)
		}
	}
}

// Arguments that were built on a stack that grows meanwhile arrive whole.
func TestArgumentsSurviveGrowingStacks(t *testing.T) {
	s := memory(t)
	for i := range 200 {
		done := make(chan string)
		go func() { // a new goroutine has a small stack
			var small [8]byte
			text := string(fmt.Appendf(small[:0], "n%d", i))
			var got, deep string
			err := s.Query("SELECT ?, "+strings.Repeat("(", 40)+"?"+strings.Repeat(")", 40), []any{text, text + "!"},
				func(scan func(...any) error) error { return scan(&got, &deep) })
			done <- fmt.Sprint(got, " ", deep, " ", err)
		}()
		if got, want := <-done, fmt.Sprintf("n%d n%d! <nil>", i, i); got != want {
			t.Fatalf("got %s, want %s", got, want)
		}
	}
}

func TestScriptsAreExecutedWhole(t *testing.T) {
	s := memory(t)
	_, err := s.Exec("CREATE TABLE a (n); -- a comment; with a semicolon\nCREATE TABLE b (n);\n\n-- the end\n", nil)
	if err != nil {
		t.Fatal(err)
	}
	var tables int
	if err := s.one("SELECT count(*) FROM sqlite_master", &tables); err != nil || tables != 2 {
		t.Errorf("%d tables, %v, want 2", tables, err)
	}
	_, err = s.Exec("CREATE TABLE c (n); CREATE TABLE a (n); CREATE TABLE d (n)", nil)
	if err == nil || !strings.Contains(err.Error(), "already exists") {
		t.Errorf("a script whose second statement fails = %v, want that error", err)
	}
	if err := s.one("SELECT count(*) FROM sqlite_master", &tables); err != nil || tables != 3 {
		t.Errorf("%d tables, %v, want 3: the script ends at the statement that fails", tables, err)
	}
}

// A statement that fails leaves the session usable, and its error tells what kind it is.
func TestFailedStatements(t *testing.T) {
	s := memory(t)
	if _, err := s.Exec("CREATE TABLE x (n INTEGER PRIMARY KEY)", nil); err != nil {
		t.Fatal(err)
	}
	insert := func(args ...any) error {
		_, err := s.Exec("INSERT INTO x (n) VALUES (?)", args)
		return err
	}
	if err := insert(int64(1)); err != nil {
		t.Fatal(err)
	}
	if err := insert(int64(1)); !IsConflict(err) {
		t.Errorf("the same key again = %v, want a conflict", err)
	}
	for _, args := range [][]any{{}, {int64(2), int64(3)}, {3}, {true}} {
		if err := insert(args...); err == nil {
			t.Errorf("insert with %v is accepted, want an error", args)
		}
	}
	stop := errors.New("stop")
	if err := s.Query("SELECT n FROM x", nil, func(func(...any) error) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("a query whose caller stops = %v, want its error", err)
	}
	var n, m int64
	if err := s.one("SELECT n FROM x", &n, &m); err == nil {
		t.Error("one column into two places is accepted, want an error")
	}
	if err := s.one("SELECT NULL", &n); err == nil {
		t.Error("NULL into a number is accepted, want an error")
	}
	if err := insert(int64(2)); err != nil {
		t.Errorf("after the failures: %v", err)
	}
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Error(err)
	}
	if err := insert(int64(3)); !errors.Is(err, errClosed) {
		t.Errorf("insert after Close = %v, want %v", err, errClosed)
	}
}

// More statements than a session keeps are prepared again.
func TestManyStatements(t *testing.T) {
	s := memory(t)
	for i := range 2*maxStatements + 10 {
		var n int
		if err := s.one(fmt.Sprintf("SELECT %d", i), &n); err != nil || n != i {
			t.Fatalf("statement %d gives %d, %v", i, n, err)
		}
	}
	if n := len(s.stmts); n > maxStatements+1 {
		t.Errorf("%d statements are kept, want %d at most", n, maxStatements+1)
	}
}

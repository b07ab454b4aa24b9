package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestClockIsMovedByLines(t *testing.T) {
	c, out := newMovedClock(), new(strings.Builder)
	before := c.now()
	if err := c.follow(strings.NewReader("24h\n-1h\nsoon\n1000000h\n30m\n"), out); err != nil {
		t.Fatal(err)
	}
	want := []string{"ahead 24h0m0s", "error: -1h0m0s is not", `error: time: invalid duration "soon"`,
		"error: 1000000h0m0s is not", "ahead 24h30m0s"}
	got := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(got) != len(want) {
		t.Fatalf("the answers are %q, want %q", got, want)
	}
	for i := range want {
		if !strings.HasPrefix(got[i], want[i]) {
			t.Errorf("answer %d = %q, want %q", i, got[i], want[i])
		}
	}
	if moved := c.now().Sub(before); moved < 24*time.Hour+30*time.Minute {
		t.Errorf("the clock has moved by %s, want 24h30m at least", moved)
	}
}

// A clock that is moved is for a new folder on this machine, and "perdure serve" has none.
func TestClockOfProductionIsNotMoved(t *testing.T) {
	used := t.TempDir()
	if err := os.WriteFile(filepath.Join(used, "perdure.db"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"serve", "--clock-from-stdin", "--data", t.TempDir()}, "clock-from-stdin"},
		{[]string{"dev", "--clock-from-stdin", "--data", used}, "has data already"},
		{[]string{"dev", "--clock-from-stdin", "--data", t.TempDir(), "--listen", "0.0.0.0:0", "--insecure"},
			"reachable from elsewhere"},
		{[]string{"dev", "--clock-from-stdin", "--store", "postgres://u@127.0.0.1:1/d"}, "nodes share"},
	} {
		var out, stderr strings.Builder
		if code := run(c.args, &out, &stderr); code == 0 || !strings.Contains(stderr.String(), c.want) {
			t.Errorf("perdure %q exits with %d and %q, want an error with %q", c.args, code, stderr.String(), c.want)
		}
	}
}

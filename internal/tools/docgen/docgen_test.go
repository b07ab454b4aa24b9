package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/settings"
	"github.com/perdure/perdure/internal/server/watchdog"
)

func TestCheckFindsAPageThatDrifted(t *testing.T) {
	dir := t.TempDir()
	var out, complaint bytes.Buffer
	if code := run([]string{"-check", "-dir", dir}, &out, &complaint); code != 1 {
		t.Errorf("no pages: exit code %d, want 1", code)
	}
	if code := run([]string{"-dir", dir}, &out, &complaint); code != 0 {
		t.Fatalf("writing: exit code %d\n%s", code, complaint.String())
	}
	complaint.Reset()
	if code := run([]string{"-check", "-dir", dir}, &out, &complaint); code != 0 {
		t.Errorf("just written: exit code %d\n%s", code, complaint.String())
	}
	path := filepath.Join(dir, "watchdog.md")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, bytes.Replace(text, []byte("W6"), []byte("W66"), 1), 0o644); err != nil {
		t.Fatal(err)
	}
	if code := run([]string{"-check", "-dir", dir}, &out, &complaint); code != 1 ||
		!strings.Contains(complaint.String(), "run make docs") {
		t.Errorf("drifted: exit code %d, %q", code, complaint.String())
	}
	if code := run([]string{"-nonsense"}, &out, &complaint); code != 2 {
		t.Errorf("a wrong flag: exit code %d, want 2", code)
	}
}

// Every row of the table is on the page, and the rows of all live states are told once.
func TestEveryTransitionIsTold(t *testing.T) {
	everywhere, everyLive, everyEnd, own := groupTransitions()
	live := 0
	for _, s := range perdure.States {
		if s.Live() {
			live++
		}
	}
	n := len(everywhere)*len(perdure.States) + len(everyLive)*live + len(everyEnd)*(len(perdure.States)-live) + len(own)
	if n != len(perdure.Transitions) {
		t.Errorf("the page tells of %d rows, the table has %d", n, len(perdure.Transitions))
	}
	for _, r := range own {
		for _, e := range everyLive {
			if r.On == e.On {
				t.Errorf("%s is told for %s and for every live state", r.On, r.From)
			}
		}
	}
	var page strings.Builder
	lifecycle(&page)
	for _, r := range perdure.Transitions {
		if !strings.Contains(page.String(), "\n| `"+r.On+"` |") {
			t.Errorf("the page has no row for %s, which may happen in %s", r.On, r.From)
		}
	}
}

// A clock whose rule is missing would ring and nothing would happen.
func TestEveryClockHasARule(t *testing.T) {
	rules := make(map[string]string)
	for _, r := range watchdog.Rules {
		if r.Clock != "" {
			rules[r.Clock] = r.ID
		}
	}
	for _, c := range perdure.Clocks {
		if rules[c.Name] != c.Rule {
			t.Errorf("clock %s calls %s, and the rule with that clock is %q", c.Name, c.Rule, rules[c.Name])
		}
	}
}

func TestEverySettingIsExplained(t *testing.T) {
	names := make(map[string]bool)
	for _, s := range settings.Default().Table() {
		if names[s.Name] {
			t.Errorf("%s has two rows", s.Name)
		}
		names[s.Name] = true
		if s.Help == "" {
			t.Errorf("%s is not explained", s.Name)
		}
	}
	for name := range aliases {
		if !names["policy."+name] {
			t.Errorf("%s has another name, and is no setting of the policy", name)
		}
	}
}

func TestWords(t *testing.T) {
	for in, want := range map[time.Duration]string{500 * time.Millisecond: "500 ms", time.Minute: "1 min",
		90 * time.Second: "90 s", 24 * time.Hour: "24 h", 720 * time.Hour: "30 d"} {
		if got := duration(in); got != want {
			t.Errorf("duration(%s) = %q, want %q", in, got, want)
		}
	}
	for in, want := range map[time.Duration]string{time.Minute: "1m", 90 * time.Second: "1m30s", 24 * time.Hour: "24h",
		10 * time.Second: "10s", time.Hour + time.Second: "1h0m1s"} {
		if got := short(in); got != want {
			t.Errorf("short(%s) = %q, want %q", in, got, want)
		}
	}
}

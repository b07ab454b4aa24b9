package main

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/watchdog"
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
	if code := run([]string{"-check", "-dir", dir}, &out, &complaint); code != 1 || !strings.Contains(complaint.String(), "run make docs") {
		t.Errorf("drifted: exit code %d, %q", code, complaint.String())
	}
	if code := run([]string{"-nonsense"}, &out, &complaint); code != 2 {
		t.Errorf("a wrong flag: exit code %d, want 2", code)
	}
}

// Every row of the table is on the page, and the rows of all live states are told once.
func TestEveryTransitionIsTold(t *testing.T) {
	everywhere, everyLive, own := groupTransitions()
	live := 0
	for _, s := range perdure.States {
		if s.Live() {
			live++
		}
	}
	if n := len(everywhere)*len(perdure.States) + len(everyLive)*live + len(own); n != len(perdure.Transitions) {
		t.Errorf("the page tells of %d rows, the table has %d", n, len(perdure.Transitions))
	}
	for _, r := range own {
		for _, e := range everyLive {
			if r.On == e.On {
				t.Errorf("%s is told for %s and for every live state", r.On, r.From)
			}
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

func TestEveryItemOfThePolicyIsExplained(t *testing.T) {
	fields := make(map[string]bool)
	policy := reflect.TypeOf(perdure.Policy{})
	for i := range policy.NumField() {
		fields[snake(policy.Field(i).Name)] = true
	}
	for name := range notes {
		if !fields[name] {
			t.Errorf("%s is explained and is not in the policy", name)
		}
	}
	for name := range fields {
		if notes[name].note == "" {
			t.Errorf("%s is in the policy and not explained", name)
		}
	}
}

func TestWords(t *testing.T) {
	for in, want := range map[time.Duration]string{500 * time.Millisecond: "500 ms", time.Minute: "1 min", 90 * time.Second: "90 s", 24 * time.Hour: "24 h", 720 * time.Hour: "30 d"} {
		if got := duration(in); got != want {
			t.Errorf("duration(%s) = %q, want %q", in, got, want)
		}
	}
	for in, want := range map[string]string{"Lease": "lease", "WatchdogInterval": "watchdog_interval", "DeadLetterTTL": "dead_letter_ttl"} {
		if got := snake(in); got != want {
			t.Errorf("snake(%s) = %q, want %q", in, got, want)
		}
	}
}

package agenttest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
)

// failures collects the findings of a scenario's trials. Many crashes mostly fail for few reasons, so one
// log is enough, and a summary names the reasons.
type failures struct {
	mu     sync.Mutex
	logged bool
	causes []cause
}

// A cause is a difference, and the crashes after which it was found.
type cause struct {
	text    string
	crashes []string
}

// first tells whether no trial has printed its log.
func (f *failures) first() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	first := !f.logged
	f.logged = true
	return first
}

// report fails the test if there are differences, and keeps them for the summary.
func (f *failures) report(t *testing.T, crash, what string, diff []string) {
	t.Helper()
	if len(diff) == 0 {
		return
	}
	text := strings.Join(diff, "\n")
	t.Errorf("%s: %s:\n%s", crash, what, text)
	f.mu.Lock()
	defer f.mu.Unlock()
	n := slices.IndexFunc(f.causes, func(c cause) bool { return c.text == text })
	if n < 0 {
		n = len(f.causes)
		f.causes = append(f.causes, cause{text: text})
	}
	f.causes[n].crashes = append(f.causes[n].crashes, crash)
}

// summarize lists the causes, the most frequent first, if several trials failed.
func (f *failures) summarize(t *testing.T) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	total := 0
	var text strings.Builder
	slices.SortStableFunc(f.causes, func(a, b cause) int { return cmp.Compare(len(b.crashes), len(a.crashes)) })
	for _, c := range f.causes {
		total += len(c.crashes)
		fmt.Fprintf(&text, "\n%d times, such as: %s\n%s", len(c.crashes), slices.Min(c.crashes),
			"    "+strings.ReplaceAll(c.text, "\n", "\n    "))
	}
	if total > 1 {
		t.Errorf("%d trials ended in another way, for %d reasons (the log is that of one of them):%s", total,
			len(f.causes), &text)
	}
}

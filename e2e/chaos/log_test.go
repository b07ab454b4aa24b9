package chaos

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// startMark is a line that separates the processes of a node in its log.
const startMark = "---- a process of the node starts"

// loudest bounds the lines at level warn and above that one process logs within a minute, whatever is
// away and however much is called.
const loudest = 5

// startLine is in the line about standbys. Each start has one, whatever is away.
const startLine = "a failover of PostgreSQL may lose acknowledged work"

// loudLines gives the lines at level warn and above of the minute that has the most, of all processes in
// a log.
func loudLines(log string) (most []string) {
	for life := range strings.SplitSeq(log, startMark) {
		var lines []string
		var at []time.Time
		for line := range strings.Lines(life) {
			rest, ok := strings.CutPrefix(line, "time=")
			stamp, rest, _ := strings.Cut(rest, " ")
			if !ok || !strings.HasPrefix(rest, "level=WARN ") && !strings.HasPrefix(rest, "level=ERROR ") ||
				strings.Contains(rest, startLine) {
				continue
			}
			when, err := time.Parse(time.RFC3339Nano, stamp)
			if err != nil {
				continue
			}
			lines, at = append(lines, line), append(at, when)
			for at[len(at)-1].Sub(at[0]) > time.Minute {
				lines, at = lines[1:], at[1:]
			}
			if len(lines) > len(most) {
				most = append([]string(nil), lines...)
			}
		}
	}
	return most
}

// quiet notes every node that has logged more than it may.
func (l *load) quiet() {
	for i := range l.nodes {
		text, err := os.ReadFile(l.logOf(i))
		if err != nil {
			l.problem("the log of node %d: %v", i, err)
			continue
		}
		if lines := loudLines(string(text)); len(lines) > loudest {
			l.problem("node %d has logged %d lines at level warn and above within a minute, want at most %d:\n%s", i,
				len(lines), loudest, strings.Join(lines, ""))
		}
	}
}

func TestLoudLinesAreFound(t *testing.T) {
	var b strings.Builder
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range 30 { // a line every 10 s: 7 within a minute
		if i%15 == 0 {
			fmt.Fprintln(&b, startMark)
		}
		level := []string{"WARN", "ERROR"}[i%2]
		for _, level := range []string{level, "INFO"} {
			fmt.Fprintf(&b, "time=%s level=%s msg=\"away\"\n", begin.Add(time.Duration(i)*10*time.Second).Format(
				"2006-01-02T15:04:05.000Z07:00"), level)
		}
	}
	if n := len(loudLines(b.String())); n != 7 {
		t.Errorf("%d lines within a minute, want 7", n)
	}
	if n := len(loudLines(startMark + "\nhttp://127.0.0.1:1\npanic: x\n")); n != 0 {
		t.Errorf("%d lines within a minute of a log without any, want none", n)
	}
}

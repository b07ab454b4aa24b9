package sim

import (
	"fmt"
	"hash/fnv"
	"io"
	"sort"
	"strings"
	"time"

	"github.com/perdure/perdure"
)

// kept is how many lines of the trace a failure shows.
const kept = 40

// A trace is what happened, line by line: its hash says whether two simulations were the same, its end says
// what led to a failure.
type trace struct {
	hash  uint64
	lines []string
	out   io.Writer // all of it, if somebody wants to read it
	epoch perdure.Instant
}

func (t *trace) add(now perdure.Instant, format string, args ...any) {
	line := fmt.Sprintf("%12s  ", now.Sub(t.epoch).Round(time.Microsecond)) + fmt.Sprintf(format, args...)
	h := fnv.New64a()
	var before [8]byte
	for i := range before {
		before[i] = byte(t.hash >> (8 * i))
	}
	h.Write(before[:])
	io.WriteString(h, line)
	t.hash = h.Sum64()
	if len(t.lines) >= 2*kept {
		t.lines = append(t.lines[:0], t.lines[kept:]...)
	}
	t.lines = append(t.lines, line)
	if t.out != nil {
		fmt.Fprintln(t.out, line)
	}
}

func (t *trace) tail() []string { return t.lines[max(0, len(t.lines)-kept):] }

// Counts tell how often something happened: faults that were injected, and situations that a simulation
// exists to reach. A campaign in which one of them never came up has not shown anything about it.
type Counts map[string]int

// Add puts other counts on top.
func (c Counts) Add(o Counts) {
	for k, n := range o {
		c[k] += n
	}
}

// Faults is how many faults were injected.
func (c Counts) Faults() (n int) {
	for k, v := range c {
		if strings.HasPrefix(k, "fault: ") {
			n += v
		}
	}
	return n
}

// String is a table, sorted by name.
func (c Counts) String() string {
	names := make([]string, 0, len(c))
	for k := range c {
		names = append(names, k)
	}
	sort.Strings(names)
	var b strings.Builder
	for _, k := range names {
		fmt.Fprintf(&b, "%10d  %s\n", c[k], k)
	}
	return b.String()
}

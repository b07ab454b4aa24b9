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

// kept is the number of lines of the trace that a failure shows.
const kept = 40

// A trace is what happened, line by line. Its hash tells whether two simulations were the same, and
// its end shows what led to a failure.
type trace struct {
	hash  uint64
	lines []string
	out   io.Writer // gets all lines, if it is not nil
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

// Counts has how often something happened: injected faults, and situations that a simulation is
// meant to reach. A campaign that never reaches a situation shows nothing about it.
type Counts map[string]int

// Add adds other counts.
func (c Counts) Add(o Counts) {
	for k, n := range o {
		c[k] += n
	}
}

// Faults returns the number of injected faults.
func (c Counts) Faults() (n int) {
	for k, v := range c {
		if strings.HasPrefix(k, "fault: ") {
			n += v
		}
	}
	return n
}

// String returns a table, sorted by name.
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

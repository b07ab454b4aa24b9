package rules

import (
	"testing"
	"time"
)

// A count serves until a tenth of the free places is taken, and a large one is not made again at
// once.
func TestLiveRunsAreCountedSeldom(t *testing.T) {
	const limit = 500
	c, counts, let := &counted{}, 0, 0
	for c.take(limit) == nil {
		if let++; c.due(limit, c.at, false) {
			counts++
			c = &counted{n: int64(let), at: c.at}
		}
	}
	if let != limit || counts > 80 {
		t.Errorf("%d of %d runs let in with %d counts, want all with at most 80", let, limit, counts)
	}
	full := &counted{n: 1_000_000}
	if full.due(1_000_000, 0, false) || !full.due(1_000_000, full.at.Add(2*time.Second), false) {
		t.Error("a million runs are not counted once in two seconds")
	}
	if few := (&counted{n: 95}); few.due(100, 0, false) || !few.due(100, 0, true) {
		t.Error("within the last tenth, a store that other nodes share is counted each time, and another one is not")
	}
}

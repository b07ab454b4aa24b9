package agent

import (
	"slices"
	"testing"
)

// The waits of a suspended run have the order in which the branches were begun, whatever the numbers of
// their goroutines are, because the server gives a signal to the wait that was opened first.
func TestWaitsOfBranchesKeepTheirOrder(t *testing.T) {
	t.Parallel()
	parkedOn := func(id string, place ...int) *branch {
		return &branch{place: place, parked: &parked{on: []string{id}}}
	}
	c := &execution{parking: parking{live: 5}, branches: map[string]*branch{
		"9": parkedOn("left", 1), "99": parkedOn("deep", 1, 1), "100": parkedOn("right", 2), "10": parkedOn("last", 10),
		"1000": parkedOn("agent")}}
	_, on, all := c.allParked()
	if want := []string{"agent", "left", "deep", "right", "last"}; !all || !slices.Equal(on, want) {
		t.Errorf("waits of parked branches = %v (all parked: %t), want %v", on, all, want)
	}
}

package main

import (
	"slices"
	"testing"
)

func TestMemoryLimitFollowsLiveMemory(t *testing.T) {
	for _, c := range []struct{ live, want int64 }{{0, 384 << 20}, {100 << 20, 384 << 20},
		{1 << 30, 1<<30 + 256<<20 + 192<<20}} {
		if got := memoryLimit(c.live); got != c.want {
			t.Errorf("limit with %d bytes alive = %d, want %d", c.live, got, c.want)
		}
	}
}

func TestMemoryIsGivenBackOnceAfterABurst(t *testing.T) {
	var l lull
	allocated := uint64(0)
	var given []int
	for second, bytes := range []uint64{40 << 20, 0, 0, 0, 0, 9 << 20, 0, 0, 0, 30 << 20, 900 << 10, 0, 5 << 20, 0, 0,
		0, 0} {
		if allocated += bytes; l.over(allocated) {
			given = append(given, second)
		}
	}
	// The second burst is too small, and counts towards the third, which ends after 15 seconds.
	if want := []int{3, 15}; !slices.Equal(given, want) {
		t.Errorf("memory is given back after %v seconds, want %v", given, want)
	}
}

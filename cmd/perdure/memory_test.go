package main

import "testing"

func TestMemoryLimitFollowsLiveMemory(t *testing.T) {
	for _, c := range []struct{ live, want int64 }{{0, 384 << 20}, {100 << 20, 384 << 20},
		{1 << 30, 1<<30 + 256<<20 + 192<<20}} {
		if got := memoryLimit(c.live); got != c.want {
			t.Errorf("limit with %d bytes alive = %d, want %d", c.live, got, c.want)
		}
	}
}

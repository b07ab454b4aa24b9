package main

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// The collector runs seldom: main lets the heap grow to five times of what is alive. A burst of large calls would
// leave that much garbage behind, so the garbage is bounded: the soft limit of memory is kept at what is alive and
// maxGarbage more, and never below leastMemory. GOMEMLIMIT is obeyed instead where it is set.
const (
	leastMemory = 384 << 20
	maxGarbage  = 192 << 20
)

// boundGarbage moves the soft limit of memory along with what is alive, until the context ends.
func boundGarbage(ctx context.Context) {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		metrics.Read(live)
		debug.SetMemoryLimit(memoryLimit(int64(live[0].Value.Uint64())))
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

// memoryLimit is the soft limit while so many bytes are alive. A quarter of them is for stacks and the runtime.
func memoryLimit(live int64) int64 { return max(leastMemory, live+live/4+maxGarbage) }

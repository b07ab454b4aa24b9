package main

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// main lets the heap grow to five times the live memory before garbage is collected. After a burst
// of large calls that would be much garbage, so it is bounded. The soft memory limit is the live
// memory and maxGarbage more, and at least minMemoryLimit. A GOMEMLIMIT from the environment has
// precedence.
const (
	minMemoryLimit = 384 << 20
	maxGarbage     = 192 << 20
)

// boundGarbage adjusts the soft memory limit to the live memory every second, until the context
// ends.
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

// memoryLimit returns the soft limit for a number of live bytes. A quarter more is for stacks and
// the runtime.
func memoryLimit(live int64) int64 { return max(minMemoryLimit, live+live/4+maxGarbage) }

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
//
// When a burst is over, nothing is allocated, so nothing is collected: the memory would stay with the
// process for minutes. It is given back to the system after quietSeconds.
const (
	minMemoryLimit = 384 << 20
	maxGarbage     = 192 << 20

	// A second with fewer allocated bytes than quietBytes is quiet. After quietSeconds quiet seconds memory
	// is given back, if burstBytes were allocated since the last time.
	quietBytes   = 1 << 20
	quietSeconds = 3
	burstBytes   = 32 << 20
)

// boundGarbage adjusts the soft memory limit to the live memory every second, and gives memory back
// after bursts, until the context ends.
func boundGarbage(ctx context.Context) {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	heap := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/heap/allocs:bytes"}}
	var lull lull
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		metrics.Read(heap)
		debug.SetMemoryLimit(memoryLimit(int64(heap[0].Value.Uint64())))
		if lull.over(heap[1].Value.Uint64()) {
			debug.FreeOSMemory()
		}
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

// A lull finds the end of a burst of allocations.
type lull struct {
	last     uint64 // bytes that were allocated until a second ago
	released uint64 // and until memory was given back
	quiet    int    // quiet seconds since then
}

// over takes the bytes that were allocated so far, every second. It returns true once after each burst.
func (l *lull) over(allocated uint64) bool {
	if l.quiet++; allocated-l.last >= quietBytes {
		l.quiet = 0
	}
	l.last = allocated
	if l.quiet < quietSeconds || allocated-l.released < burstBytes {
		return false
	}
	l.released = allocated
	return true
}

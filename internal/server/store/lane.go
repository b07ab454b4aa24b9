package store

import (
	"slices"
	"sync"
	"time"
)

// A Lane is an independent path of writes, for operations of one kind. Lanes decide concurrently.
// On SQLite, which has a single writer, the first three are one lane.
type Lane int

const (
	LaneWork   Lane = iota // calls of workers, and everything that has no other lane
	LaneSubmit             // new runs
	LaneClaim              // polls: two polls of one queue would conflict
	LaneSweep              // the watchdog
	LaneNotify             // webhook deliveries: those of several nodes conflict with each other only
	LaneBulk               // artifacts, removals and slow calls, which must not delay others
	lanes
)

// inLane is an operation that names its lane. The default is LaneWork.
type inLane interface{ Lane() Lane }

// String is the lane's name in metrics.
func (l Lane) String() string {
	return [...]string{"work", "submit", "claim", "watch", "notify", "upload"}[l]
}

// Lanes gives all lanes.
func Lanes() (all []Lane) {
	for l := range lanes {
		all = append(all, l)
	}
	return all
}

// A Written describes a batch that was written.
type Written struct {
	// Lane is LaneWork in a store in memory, which has a single lane.
	Lane       Lane
	Operations int
	// Took is the time from the first decision until the batch was durable.
	Took time.Duration
	// Commit is the part of Took for writing and making it durable.
	Commit time.Duration
}

// A lane makes the batches of a Lane, one after the other. On SQLite all lanes share writing, the
// lock of the single writer. mu is taken before writing, and before the locks of the queue, the cache
// and the engine; see docs/locks.md.
type lane struct {
	s       *Store
	id      Lane
	mu      sync.Mutex // held during a batch
	read    Conn       // reads for decisions
	write   Conn       // writes
	writing *sync.Mutex
	queue   *queue
	// held are rows that another session was found to hold locked, and heldAt is when they were last
	// asked for; see locks.go.
	held   map[lockKey]*heldRow
	heldAt time.Time
	// alone counts the batches for which the lane still has its turn at limits alone.
	alone int
}

func newLane(s *Store, read, write Conn, writing *sync.Mutex) *lane {
	return &lane{s: s, read: read, write: write, writing: writing, queue: newQueue(),
		held: make(map[lockKey]*heldRow)}
}

// A slow operation is one that others should not wait for, although it needs no lane of its own.
type slow interface{ Slow() bool }

// laneOf selects the lane of operations. One that is slow takes that of uploads where lanes write at the
// same time.
func laneOf(ops []Op, shared bool) Lane {
	lane := LaneWork
	if x, ok := ops[0].(inLane); ok {
		lane = x.Lane()
	}
	isSlow := func(op Op) bool {
		x, ok := op.(slow)
		return ok && x.Slow()
	}
	if lane == LaneWork && shared && slices.ContainsFunc(ops, isSlow) {
		return LaneBulk
	}
	return lane
}

// isSweep tells whether a batch is a single sweep of the watchdog. A sweep touches many unrelated
// rows.
func isSweep(ops []Op) bool {
	x, ok := ops[0].(inLane)
	return ok && len(ops) == 1 && x.Lane() == LaneSweep
}

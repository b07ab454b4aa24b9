package sentinel

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/plant"
)

// Values of Look.Lock.
const (
	LockHeld    = "held"
	LockFree    = "free"
	LockUnknown = "unknown" // somebody has replaced the file; treated as held
)

// A Look is what the files of a job say at one moment.
type Look struct {
	// Epoch and Counter are those of the sentinel, whose MAC is valid.
	Epoch   int64
	Counter int64
	Lock    string
	// Result tells that there is a result.
	Result bool
}

// A Memory is what the monitor remembers of a job between two looks.
type Memory struct {
	Epoch   int64
	Counter int64
	// MovedAt is when the count was last seen to rise, or the first look.
	MovedAt perdure.Instant

	// FreeSince is when the lock was first seen free, and free counts the looks since then.
	FreeSince perdure.Instant
	free      int
	// results counts the looks that saw a result.
	results int
}

// A Judgement is what follows from a look.
type Judgement struct {
	// Beat tells that the runner has given a sign of life since the last look.
	Beat bool
	// Adopt tells that nobody but the server sends the result.
	Adopt bool
	// Lost tells that runner and command are gone without a result.
	Lost bool
}

// Observe takes in a look. It is to be called once for each look, whatever comes of it.
func (m *Memory) Observe(l Look, now perdure.Instant) (moved bool) {
	if l.Epoch != m.Epoch {
		*m = Memory{Epoch: l.Epoch, Counter: l.Counter, MovedAt: now}
	}
	if moved = l.Counter > m.Counter; moved {
		m.Counter, m.MovedAt = l.Counter, now
	}
	if plant.Is("lock-taken-for-free") {
		l.Lock = LockFree
	}
	if l.Lock != LockFree {
		m.free, m.FreeSince = 0, 0
	} else {
		if m.free++; m.free == 1 {
			m.FreeSince = now
		}
	}
	if m.results++; !l.Result {
		m.results = 0
	}
	return moved
}

// Judge says what to do about a job after a look that was observed. r is its run as it is stored.
//
// A free lock is seen twice before the run is lost. The file that names the lock is signed, so that the
// first look would be enough; the second one costs 15 s and excuses a mistake. A result that is there
// in two looks is adopted although the lock is held: a child that the command has left behind holds it.
func (m *Memory) Judge(l Look, r *perdure.Run, moved bool) (j Judgement) {
	if r.State.Terminal() || r.Epoch != l.Epoch || !r.State.Leased() {
		return j
	}
	j.Beat = moved
	switch {
	case l.Result:
		j.Adopt = m.free > 0 || m.results > 1
	case m.free > 1:
		j.Lost = r.State == perdure.Running && r.HolderSeen
	}
	return j
}

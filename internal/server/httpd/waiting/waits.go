package waiting

import (
	"context"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/doorbell"
	"github.com/perdure/perdure/internal/server/engine/reads"
)

// Runs lists the reads of runs that waiting uses.
type Runs interface {
	Get(context.Context, perdure.TenantID, perdure.RunID) (reads.Detail, error)
	Status(context.Context, perdure.TenantID, perdure.RunID) (perdure.Run, perdure.Instant, error)
	// Live tells whether a run is known to be live, from memory.
	Live(perdure.TenantID, perdure.RunID) bool
	// Ended returns a run that has ended lately, from memory.
	Ended(perdure.TenantID, perdure.RunID) (reads.Detail, bool)
}

// Options configures the waits of a node.
type Options struct {
	Engine Engine
	Runs   Runs
	Bell   doorbell.Bell
	// Node is this node's name.
	Node string
	// Poll is the fallback polling interval, used when no doorbell rings.
	Poll time.Duration
	// Closing is closed when the server shuts down.
	Closing <-chan struct{}
	// Go runs a function in a goroutine that the server waits for when it shuts down.
	Go func(func()) bool
	// Turn waits for a turn of a tenant's call that a crowd lets go on. The returned function, which
	// is never nil, gives it back.
	Turn    func(context.Context, perdure.TenantID) (leave func())
	Waiters *Waiters
}

// Waits has the calls of a node that wait.
type Waits struct {
	Options
	crowds crowds
	// joined has the reads of calls that join the same run.
	joined sharedReads[reads.Detail]
}

// New makes the waits of a node.
func New(opt Options) *Waits { return &Waits{Options: opt} }

// A Blocker is a call that blocks.
type Blocker interface {
	// Context ends when the caller is gone or its key is no longer valid. Watch may replace it.
	Context() context.Context
	// Watch is called before the call blocks. It has to see to it that the context ends in time. An
	// error ends the wait.
	Watch() error
}

// A Pause is one blocking of a call.
type Pause struct {
	// Rung and Also wake the call.
	Rung, Also <-chan struct{}
	// Fallback fires when the call is to be woken without a ring.
	Fallback <-chan time.Time
	// Deadline fires when the time of the call has passed.
	Deadline <-chan time.Time
}

// A Cause is why a call goes on.
type Cause int

const (
	// Over means that the time has passed, the caller is gone or the server shuts down.
	Over Cause = iota
	// Rung means that something has happened.
	Rung
	// Fallback means that nothing was heard for long.
	Fallback
)

// Pause blocks a call once.
func (w *Waits) Pause(ctx context.Context, p Pause) Cause {
	select {
	case <-p.Rung:
		return Rung
	case <-p.Also:
		return Rung
	case <-p.Fallback:
		return Fallback
	case <-p.Deadline:
	case <-ctx.Done():
	case <-w.Closing:
	}
	return Over
}

// Until calls look until it is done, the time has passed, the caller is gone or the server shuts
// down. After 2×Poll without a ring it calls look with fresh set: then look has to read the store,
// whatever memory says.
func (w *Waits) Until(c Blocker, topic doorbell.Topic, limit time.Duration, look func(fresh bool) (bool, error)) error {
	end := time.Now().Add(limit)
	var timer *time.Timer // fires at the end of the time, or before that for a fallback
	for fresh := false; ; {
		rung, stop := w.Bell.Listen(topic)
		done, err := look(fresh)
		if err != nil || done || limit == 0 {
			stop()
			return err
		}
		if err := c.Watch(); err != nil {
			stop()
			return err
		}
		next := time.Until(end)
		if w.Poll > 0 {
			next = min(next, 2*w.Poll)
		}
		if timer == nil {
			timer = time.NewTimer(next)
			defer timer.Stop()
		} else {
			timer.Reset(next)
		}
		why := w.Pause(c.Context(), Pause{Rung: rung, Fallback: timer.C})
		stop()
		if why == Over || why == Fallback && !time.Now().Before(end) {
			return nil
		}
		fresh = why == Fallback
	}
}

// othersSilent tells whether no other node has changed a run since the bell had these counters: the
// store is this node's alone, or this node could hear the others and has heard nothing. A node that
// comes back after an outage is heard too.
func (w *Waits) othersSilent(then doorbell.Stats) bool {
	now := w.Bell.Stats()
	return !w.Engine.Shared() || then.Connected && now.Connected && now.Connects == then.Connects &&
		now.Received == then.Received && now.Lost == then.Lost
}

// closing tells whether the server shuts down.
func (w *Waits) closing() bool {
	select {
	case <-w.Closing:
		return true
	default:
		return false
	}
}

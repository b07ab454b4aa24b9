package waiting

import (
	"context"
	"runtime"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/doorbell"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/reads"
	"github.com/perdure/perdure/internal/server/fair"
)

// A Caller is a call that waits for a run.
type Caller interface {
	Blocker
	// HungUp tells whether the caller is gone, and not because of its key.
	HungUp() bool
	// Reserve reserves memory for the run before it is read, and Release gives it back.
	Reserve() error
	Release()
	// Woken takes the function that gives back the call's turn, when a crowd lets it go on.
	Woken(leave func())
}

// A Query is a call's question about a run.
type Query struct {
	Ref kernel.Ref
	// Limit is how long the call waits at most. Began is when it began to.
	Limit time.Duration
	Began time.Time
	// Refused is set if the call wants to wait and may not.
	Refused bool
	// Started is set if the call has started the run. Made has the row of a run that it has created;
	// its waiter is then recorded already.
	Started bool
	Made    *reads.Detail
	// Heard has the counters of the bell from before the call read anything; see othersSilent.
	Heard doorbell.Stats
	// Actor is the caller, for the audit log: its leaving may cancel the run.
	Actor kernel.Actor
}

// A runWait is a call that waits for a run.
type runWait struct {
	*Waits
	Caller
	Query
	// heard has the counters of the bell from before the run was last read.
	heard doorbell.Stats
	// run is the run as it is answered: after its end, or when the wait is over.
	run   *reads.Detail
	ended bool
	// foreground is set if the call counts as a waiter: a background run has none.
	foreground bool
}

// Run waits for the end of a run. It returns the run, and whether it has ended. A call that may not
// wait gets the run as it is.
func (w *Waits) Run(c Caller, q Query) (run *reads.Detail, ended bool, err error) {
	r := &runWait{Waits: w, Caller: c, Query: q, heard: q.Heard}
	if err := r.wait(); err != nil {
		return nil, false, err
	}
	return r.run, r.ended, nil
}

// wait waits for the run.
func (r *runWait) wait() error {
	var m *member
	if r.Made == nil && r.Limit > 0 {
		if m = r.crowds.join(r.Ref); m != nil {
			defer r.crowds.quit(m) // also if it does not come to wait: a turn must not be lost
		}
	}
	switch {
	case m != nil:
		r.foreground = m.of.foreground // the run lives, or the member is woken
	case r.Made != nil:
		r.see(r.Made, false)
	default:
		if done, err := r.look(false); err != nil || done {
			return err
		}
	}
	// A call that may not block is no waiter: joins that are refused again and again leave no trace.
	// If it has started the run, the run is deferred, because nobody waits for it.
	waits := r.foreground && !r.Refused
	var err error
	switch {
	case waits:
		err = r.Waiters.Add(r.Context(), r.Ref, r.Made != nil)
	case r.Refused && r.Started:
		err = r.Engine.Do(r.Context(), r.detach())
	}
	if err != nil {
		return err
	}
	leave, follow := r.crowds.enter(r.Ref, r.foreground)
	defer leave()
	if follow {
		r.Go(func() { r.follow(r.Ref) })
	}
	err = r.block(m)
	if waits {
		// The waiter is removed even if the caller is gone.
		ctx := kernel.WithActor(context.WithoutCancel(r.Context()), r.Actor)
		r.Waiters.Remove(ctx, r.Ref, r.leaveReason(err), r.ended)
	}
	if gone := r.Context().Err(); gone != nil {
		return gone
	}
	if err != nil || r.ended {
		return err
	}
	_, err = r.look(true) // the run may have ended since the last ring
	return err
}

// block blocks until the run has ended or the wait is over. A member of a crowd looks at the run
// only when it is woken.
func (r *runWait) block(m *member) error {
	limit := r.Limit
	if m != nil {
		over, err := r.inCrowd(m)
		if err != nil || !over {
			return err
		}
		limit = time.Until(r.Began.Add(r.Limit))
	}
	return r.Until(r, doorbell.Run(r.Ref.Tenant, string(r.Ref.Run)), limit, r.check)
}

// see takes note of a run. It is kept if it has ended or the wait is over, and not each time that
// something happens to it.
func (r *runWait) see(d *reads.Detail, over bool) {
	r.foreground = d.Options.Foreground
	if r.ended = d.State.Terminal(); r.ended || over {
		r.run = d
	}
}

// look reads the run, and tells whether it has ended.
func (r *runWait) look(over bool) (bool, error) {
	r.heard = r.Bell.Stats()
	if err := r.Reserve(); err != nil {
		return false, err
	}
	d, err := r.joined.get(r.Context(), r.Ref, func(ctx context.Context) (reads.Detail, error) {
		return r.Runs.Get(ctx, r.Ref.Tenant, r.Ref.Run)
	})
	if err != nil {
		return false, err
	}
	if r.see(&d, over); !r.ended {
		r.Release()
	}
	return r.ended, nil
}

// check tells whether the run has ended, from memory if that is enough.
func (r *runWait) check(fresh bool) (bool, error) {
	if fresh {
		return r.look(false)
	}
	if r.othersSilent(r.heard) && r.Runs.Live(r.Ref.Tenant, r.Ref.Run) {
		return false, nil
	}
	if err := r.Reserve(); err != nil {
		return false, err
	}
	if d, ok := r.Runs.Ended(r.Ref.Tenant, r.Ref.Run); ok {
		r.see(&d, true)
		return true, nil
	}
	return r.look(false)
}

// detach is the operation of a call that has started a run and may not wait for it.
func (r *runWait) detach() *life.Defer {
	op := &life.Defer{Tenant: r.Ref.Tenant, RunID: r.Ref.Run, Reason: "detached"}
	if r.Made != nil {
		op.Node = r.Node // the submission has recorded this node as the only waiter
	}
	return op
}

// leaveReason returns why a call stops waiting. err is the error that ended the wait, if one did.
func (r *runWait) leaveReason(err error) string {
	switch closing := r.closing(); {
	case r.HungUp() && !closing:
		return HungUp
	case r.Context().Err() != nil || closing || err != nil:
		return Disconnect
	}
	return "timeout"
}

// inCrowd waits as a member until the run is over. It returns false if the time has passed, the
// caller is gone or the server shuts down.
func (r *runWait) inCrowd(m *member) (over bool, err error) {
	if err := r.Watch(); err != nil {
		return false, err
	}
	deadline := time.NewTimer(r.Limit)
	defer deadline.Stop()
	select {
	case leave := <-m.end:
		r.Woken(leave)
		runtime.Gosched() // see connlimit: others have waited for a processor for longer
		return true, nil
	case <-deadline.C:
	case <-r.Context().Done():
	case <-r.Closing:
	}
	return false, nil
}

// follow follows a run for its crowd, until it has ended or nobody waits for it.
func (w *Waits) follow(ref kernel.Ref) {
	ctx := fair.With(context.Background(), ref.Tenant)
	var heard doorbell.Stats
	timer := time.NewTimer(2 * w.Poll)
	defer timer.Stop()
	for fresh := true; ; { // it may have ended before it was followed
		rung, stop := w.Bell.Listen(doorbell.Run(ref.Tenant, string(ref.Run)))
		over := false
		if fresh || !w.othersSilent(heard) || !w.Runs.Live(ref.Tenant, ref.Run) {
			heard = w.Bell.Stats()
			r, _, err := w.Runs.Status(ctx, ref.Tenant, ref.Run)
			// A store that can't be read is asked again. A run that was deleted is over.
			over = r.State.Terminal() || perdure.CodeOf(err) == perdure.CodeNotFound
		}
		if !over {
			timer.Reset(2 * w.Poll)
			why := w.Pause(ctx, Pause{Rung: rung, Fallback: timer.C})
			fresh = why == Fallback
			over = why == Over // the server shuts down, and the members end by themselves
		}
		stop()
		if cr, ok := w.crowds.unfollow(ref, over); ok {
			w.wake(ctx, ref.Tenant, cr)
			return
		}
	}
}

// wake wakes the members of a crowd.
func (w *Waits) wake(ctx context.Context, t perdure.TenantID, cr *crowd) {
	for more := true; more; {
		leave := w.Turn(ctx, t)
		if more = w.crowds.wakeNext(cr, leave); !more {
			leave()
		}
	}
}

// Crowds counts the runs that calls wait for, those of them that are followed, and the members of
// their crowds.
func (w *Waits) Crowds() (runs, followed, members int) {
	w.crowds.mu.Lock()
	defer w.crowds.mu.Unlock()
	for _, cr := range w.crowds.of {
		runs++
		if cr.followed {
			followed++
			members += cr.members.Len()
		}
	}
	return runs, followed, members
}

package httpd

import (
	"context"
	"net/http"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/doorbell"
	"github.com/perdure/perdure/internal/engine"
	"github.com/perdure/perdure/internal/httpd/stream"
)

// Waiting for a run. A timeout stops waiting, not working: a caller whose time passes gets 202 with
// status "deferred", and the run goes on.
//
// watch is the loop of all calls that wait: it listens to the doorbell, reads, and blocks until a
// ring. It listens before it reads, so that no change falls between. await builds on it for runs:
//
//  1. It asks the limiter for permission to block. A refused call does not wait, and is answered as
//     if its time had passed.
//  2. It reads the run. An ended run is answered at once.
//  3. If the run is in the foreground, the call becomes one of its waiters (waiters.go).
//  4. It watches until the run has ended, the time has passed, the caller is gone or the server
//     shuts down. Most rings are answered from memory: the engine remembers live runs and recent
//     ends. Only after news of another node the run is read. Where many calls wait for a run, one
//     goroutine watches it for all of them (crowd.go), and they read nothing before its end.
//  5. It stops being a waiter. The last waiter's leaving defers the run.

// waitUntil calls look until it is done, the time has passed, the caller is gone or the server shuts
// down. After 2×Options.Poll without a ring it calls look with fresh set: then look has to read the
// store, whatever memory says.
func (c *call) waitUntil(topic string, limit time.Duration, look func(fresh bool) (bool, error)) error {
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	for fresh := false; ; {
		rung, stop := c.s.bell.Listen(doorbell.Run(c.tenant(), topic))
		done, err := look(fresh)
		if err != nil || done || limit == 0 {
			stop()
			return err
		}
		if err := c.watchKey(); err != nil {
			stop()
			return err
		}
		fallback := time.NewTimer(2 * c.s.opt.Poll)
		ended := false
		fresh = false
		select {
		case <-rung:
		case <-fallback.C:
			fresh = true
		case <-deadline.C:
			ended = true
		case <-c.Context().Done():
			ended = true
		case <-c.s.closing:
			ended = true
		}
		fallback.Stop()
		stop()
		if ended {
			return nil
		}
	}
}

// mayBlockFor returns how long a call may block: the limit, or zero if too many calls block. A call
// that may not block is answered as if its time had passed, with a Retry-After header.
func (c *call) mayBlockFor(how stream.Transport, limit time.Duration) (time.Duration, func()) {
	if limit > 0 {
		if release, err := c.acquire(how); err == nil {
			return limit, release
		}
		c.w.Header().Set("Retry-After", "1")
	}
	return 0, func() {}
}

// await waits for the end of a run, at most for the limit. started is set if this call has started
// the run. made has the row of a run that this call has created; its waiter is then recorded
// already.
func (c *call) await(id perdure.RunID, limit time.Duration, started bool, made *engine.Detail) (
	int, *api.Run, error) {
	wanted, began := limit, time.Now()
	limit, release := c.mayBlockFor(stream.Wait, limit)
	defer release()
	ref := engine.Ref{Tenant: c.tenant(), Run: id}
	var out *api.Run
	ended := false
	// foreground is set if the call counts as a waiter: a background run has none.
	foreground := false
	// see takes note of a run. It is shown if it has ended or the time is over, and not each time
	// that something happens to it.
	see := func(d *engine.Detail, over bool) {
		foreground = d.Options.Foreground
		if ended = d.State.Terminal(); ended || over {
			out = c.show(d)
		}
	}
	look := func(over bool) (bool, error) {
		c.heard = c.s.bell.Stats()
		if err := c.reserveAnswer(largeRun); err != nil {
			return false, err
		}
		d, err := c.s.joined.get(c.Context(), ref, func(ctx context.Context) (engine.Detail, error) {
			return c.s.engine.Runs.Get(ctx, ref.Tenant, id)
		})
		if err != nil {
			return false, err
		}
		if see(&d, over); !ended {
			c.releaseAnswer()
		}
		return ended, nil
	}
	created := made != nil
	var m *member
	if !created && limit > 0 {
		if m = c.s.crowds.join(ref); m != nil {
			defer c.s.crowds.quit(m) // also if it does not come to wait: a turn must not be lost
		}
	}
	switch {
	case m != nil:
		foreground = m.of.foreground // the run lives, or the member is woken
	case created:
		see(made, false)
	default:
		if done, err := look(false); err != nil || done {
			return http.StatusOK, out, err
		}
	}
	// A call that may not block is no waiter: joins that are refused again and again leave no
	// trace. If it has started the run, the run is deferred, because nobody waits for it.
	refused := limit == 0 && wanted > 0
	waits := foreground && !refused
	var err error
	switch {
	case waits:
		err = c.s.addWaiter(c.Context(), ref, created)
	case refused && started:
		detach := &engine.Defer{Tenant: ref.Tenant, RunID: id, Reason: "detached"}
		if created {
			detach.Node = c.s.opt.Node // the submission has recorded this node as the only waiter
		}
		err = c.s.engine.Do(c.Context(), detach)
	}
	if err != nil {
		return 0, nil, err
	}
	leave, follow := c.s.crowds.enter(ref, foreground)
	defer leave()
	if follow {
		c.s.goStream(func() { c.s.follow(ref) })
	}
	check := func(fresh bool) (bool, error) {
		if fresh {
			return look(false)
		}
		if c.s.othersSilent(c.heard) && c.s.engine.Runs.Live(ref.Tenant, id) {
			return false, nil // known from memory
		}
		if err := c.reserveAnswer(largeRun); err != nil {
			return false, err
		}
		if d, ok := c.s.engine.Runs.Ended(ref.Tenant, id); ok {
			see(&d, true)
			return true, nil
		}
		return look(false)
	}
	if m == nil {
		err = c.waitUntil(string(id), limit, check)
	} else if over, failed := c.inCrowd(m, limit); failed != nil {
		err = failed
	} else if over {
		err = c.waitUntil(string(id), time.Until(began.Add(limit)), check)
	}
	if waits {
		// The waiter is removed even if the caller is gone.
		ctx := engine.WithActor(context.WithoutCancel(c.Context()), c.actor())
		c.s.removeWaiter(ctx, ref, c.leaveReason(err), ended)
	}
	if c.Context().Err() != nil {
		return 0, nil, c.Context().Err()
	}
	if err != nil || ended {
		return http.StatusOK, out, err
	}
	if _, err := look(true); err != nil || ended { // the run may have ended since the last ring
		return http.StatusOK, out, err
	}
	out.Status = perdure.StatusDeferred
	out.Message = "The run is still being worked on. It goes on without you: come back to attach_url or status_url."
	return http.StatusAccepted, out, nil
}

// othersSilent tells whether no other node has changed a run since the bell had these counters: the
// store is this node's alone, or this node could hear the others and has heard nothing. A node that
// comes back after an outage is heard too.
func (s *Server) othersSilent(then doorbell.Stats) bool {
	now := s.bell.Stats()
	return !s.engine.Shared() || then.Connected && now.Connected && now.Connects == then.Connects &&
		now.Received == then.Received && now.Lost == then.Lost
}

// leaveReason returns why a call stops waiting. err is the error that ended the wait, if one did.
func (c *call) leaveReason(err error) string {
	gone, closing := c.Context().Err() != nil, stream.Closed(c.s.closing)
	switch {
	case gone && c.keyEnded() == nil && !closing:
		return reasonClosed
	case gone || closing || err != nil:
		return "disconnect"
	}
	return "timeout"
}

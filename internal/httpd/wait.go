package httpd

import (
	"context"
	"hash/fnv"
	"net/http"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/doorbell"
	"github.com/perdure/perdure/internal/engine"
	"github.com/perdure/perdure/internal/httpd/stream"
)

// watch calls look until it is satisfied, the time has passed, the caller is gone or the server shuts down.
// It listens before it looks, so that nothing can happen in between. Now and then look is called without a ring, and told
// to look for itself, whatever is remembered.
func (c *call) watch(topic string, limit time.Duration, look func(itself bool) (bool, error)) error {
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	for itself := false; ; {
		rung, stop := c.s.bell.Listen(doorbell.Run(c.tenant(), topic))
		done, err := look(itself)
		if err != nil || done || limit == 0 {
			stop()
			return err
		}
		if err := c.hold(); err != nil {
			stop()
			return err
		}
		again := time.NewTimer(2 * c.s.opt.Poll) // without having been rung
		ended := false
		itself = false
		select {
		case <-rung:
		case <-again.C:
			itself = true
		case <-deadline.C:
			ended = true
		case <-c.Context().Done():
			ended = true
		case <-c.s.closing:
			ended = true
		}
		again.Stop()
		stop()
		if ended {
			return nil
		}
	}
}

// seated gives how long a caller may block: no time at all if there is no room for one more who waits. He is
// answered as if his time had passed, and told to come back a little later.
func (c *call) seated(how stream.Transport, limit time.Duration) (time.Duration, func()) {
	if limit > 0 {
		if leave, err := c.seat(how); err == nil {
			return limit, leave
		}
		c.w.Header().Set("Retry-After", "1")
	}
	return 0, func() {}
}

// await blocks until a run has ended, at most so long. When the time passes, the caller gets 202 and the run
// goes on: a timeout stops waiting, not working. Of a run that was just made, and that is known to have a waiter on
// this node, made is what is known.
func (c *call) await(id perdure.RunID, limit time.Duration, started bool, made *engine.Detail) (int, *api.Run, error) {
	wanted := limit
	limit, leave := c.seated(stream.Wait, limit)
	defer leave()
	ref := engine.Ref{Tenant: c.tenant(), Run: id}
	var out *api.Run
	ended := false
	counts := false // whoever joins a run of the background is not its waiter: nobody expected one
	see := func(d *engine.Detail) {
		counts = d.Options.Foreground
		out = c.show(d)
		ended = d.State.Terminal()
	}
	look := func() (bool, error) {
		if err := c.room(largeRun); err != nil {
			return false, err
		}
		d, err := c.s.engine.Runs.Get(c.Context(), c.tenant(), id)
		if err != nil {
			return false, err
		}
		if see(&d); !ended {
			c.leaveAnswer()
		}
		return ended, nil
	}
	fresh := made != nil
	if fresh {
		see(made)
		if wanted > 0 {
			made, out = nil, nil // which would be held while it waits
		}
	} else if done, err := look(); err != nil || done {
		return http.StatusOK, out, err
	}
	// Whoever is not let in has not waited, and joining again and again leaves no trace. Of a new run it has to be
	// known that nobody does.
	refused := limit == 0 && wanted > 0
	arrives := counts && !refused
	var err error
	switch {
	case arrives:
		err = c.s.arrive(c.Context(), ref, fresh)
	case refused && started:
		detach := &engine.Defer{Tenant: ref.Tenant, RunID: id, Reason: "detached"}
		if fresh {
			detach.Node = c.s.opt.Node // it was noted as waiting, and is the only one
		}
		err = c.s.engine.Do(c.Context(), detach)
	}
	if err != nil {
		return 0, nil, err
	}
	err = c.watch(string(id), limit, func(itself bool) (bool, error) {
		if itself {
			return look()
		}
		if c.s.engine.Runs.Live(ref.Tenant, id) {
			return false, nil // nothing has to be read to know that
		}
		if err := c.room(largeRun); err != nil {
			return false, err
		}
		if d, ok := c.s.engine.Runs.Ended(ref.Tenant, id); ok {
			see(&d)
			return true, nil
		}
		return look()
	})
	reason := "timeout"
	if err != nil {
		reason = "disconnect"
	}
	select {
	case <-c.Context().Done():
		reason = "disconnect"
	case <-c.s.closing:
		reason = "disconnect"
	default:
	}
	gone := c.Context().Err() != nil
	if gone && c.dead() == nil && !stream.Closed(c.s.closing) {
		reason = hungUp
	}
	// The caller may be gone; what is said about that is said anyway.
	if arrives {
		c.s.leave(engine.WithActor(context.WithoutCancel(c.Context()), c.actor()), ref, reason, ended)
	}
	if gone {
		return 0, nil, c.Context().Err()
	}
	if err != nil || ended {
		return http.StatusOK, out, err
	}
	if _, err := look(); err != nil || ended { // it may have ended in the last moment
		return http.StatusOK, out, err
	}
	out.Status = perdure.StatusDeferred
	out.Message = "The run is still being worked on. It goes on without you: come back to attach_url or status_url."
	return http.StatusAccepted, out, nil
}

// arrive notes that one more waits for a run on this node. The first is written down, unless it is already; the node
// renews that.
func (s *Server) arrive(ctx context.Context, ref engine.Ref, written bool) error {
	turn := s.turn(ref)
	turn.Lock()
	defer turn.Unlock()
	s.mu.Lock()
	s.waiting[ref]++
	first := s.waiting[ref] == 1
	s.mu.Unlock()
	if !first || written {
		return nil
	}
	err := s.attach(ctx, ref)
	if err != nil {
		s.depart(ref)
	}
	return err
}

// turn has those who come to a run and those who leave it do so one after the other: a run for which somebody waits is
// not deferred by the one who left before.
func (s *Server) turn(ref engine.Ref) *sync.Mutex {
	h := fnv.New32a()
	h.Write([]byte(ref.Run))
	return &s.turns[h.Sum32()%uint32(len(s.turns))]
}

func (s *Server) attach(ctx context.Context, ref engine.Ref) error {
	return s.engine.Do(ctx, &engine.Attach{Tenant: ref.Tenant, Node: s.opt.Node, RunIDs: []perdure.RunID{ref.Run}})
}

// depart counts one who waited, and tells whether he was the last.
func (s *Server) depart(ref engine.Ref) (last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting[ref]--; s.waiting[ref] > 0 {
		return false
	}
	delete(s.waiting, ref)
	return true
}

// hungUp is the reason of a waiter that closed its connection. It is a disconnect, and cancels a run that was started with
// on_disconnect=cancel if the waiter was the last.
const hungUp = "hung up"

// leave notes that one fewer waits; the last one defers the run, unless somebody came meanwhile.
func (s *Server) leave(ctx context.Context, ref engine.Ref, reason string, ended bool) {
	turn := s.turn(ref)
	turn.Lock()
	defer turn.Unlock()
	if !s.depart(ref) || ended {
		return
	}
	s.deferRun(ctx, ref, reason)
}

func (s *Server) deferRun(ctx context.Context, ref engine.Ref, reason string) {
	op := &engine.Defer{Tenant: ref.Tenant, RunID: ref.Run, Node: s.opt.Node, Reason: reason}
	if reason == hungUp {
		op.Reason, op.Closed = "disconnect", true
	}
	if err := s.engine.Do(ctx, op); err != nil {
		s.log.Warn("a run could not be deferred; its waiter expires by itself", "run", ref.Run, "error", err)
	}
}

// waits tells whether anybody here waits for a run.
func (s *Server) waits(ref engine.Ref) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting[ref] > 0
}

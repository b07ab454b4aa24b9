package httpd

import (
	"context"
	"net/http"
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/doorbell"
	"github.com/perdure/perdure/internal/engine"
	"github.com/perdure/perdure/internal/httpd/stream"
)

// streamRun follows a run's log as server-sent events: what there is from the cursor on, what comes, and an end
// after the run's end. It holds nothing but the cursor. It waits for the doorbell and reads the log, so that it
// works before a run, during it, after it, after a restart, and on any node.
//
// A stream that has told everything ends cleanly. One that is cut off, because the server shuts down, the key is
// revoked or the reader is too slow, is aborted, so that no client takes it for the end.
func streamRun(c *call) error {
	after, named, err := c.streamCursor()
	if err != nil {
		return err
	}
	f := &follower{s: c.s}
	f.Follower = stream.Follower{Reader: c.s.logs, Ref: engine.Ref{Tenant: c.tenant(), Run: c.run()}, After: after,
		Beat: c.s.opt.Beat, Closing: c.s.closing}
	defer f.close()
	if f.leave, err = c.seat(stream.SSE); err != nil {
		return err
	}
	valid, forget := c.s.keyring.watch(c.key.ID)
	f.Revoked, f.forget = valid.Done(), forget
	if err := c.valid(); err != nil {
		return err
	}
	// Whoever listens before he looks misses nothing.
	f.Rung, f.stop = c.s.bell.Listen(doorbell.Run(f.Ref.Tenant, string(f.Ref.Run)))

	p, err := c.s.logs.First(c.Context().Done(), f.Ref, after)
	switch {
	case err != nil:
		return err
	case after > p.Head.Seq:
		return perdure.Invalid(named, "lies beyond the end of the log, %d", p.Head.Seq)
	case p.Head.State.Terminal() && after == p.Head.Seq:
		c.s.allow(c.w, 0)
		c.w.WriteHeader(http.StatusNoContent) // there is nothing more; a browser stops asking
		return nil
	}
	h := c.w.Header()
	h.Set("Content-Type", api.MediaStream)
	h.Set("X-Accel-Buffering", "no")
	if c.Method == http.MethodHead {
		return nil
	}
	if p.Run.Options.Foreground && p.Head.State.Live() {
		if err := c.s.arrive(c.Context(), f.Ref, false); err != nil {
			return err
		}
		f.Waits, f.actor = true, c.actor()
	}
	ends := stream.Bounds{Patience: c.s.opt.Patience, Glance: c.s.glance, Revoked: f.Revoked, Closing: f.Closing}
	if out := stream.Hijack(c.w, c.Request, ends); out != nil {
		// The stream goes on by itself: what a request needs, which is most of it, is let go.
		mine := *f
		if c.s.detach(func() {
			defer mine.close()
			mine.how = mine.Follow(out, p)
			out.Finish(mine.how)
		}) {
			*f = follower{}
		} else {
			out.Finish(stream.Cut)
		}
		return nil
	}
	if f.how = f.Follow(stream.Borrow(c.w, c.Request, c.s.opt.Patience), p); f.how == stream.Cut {
		panic(http.ErrAbortHandler)
	}
	return nil
}

// A follower is a stream that is told, and what it has to give back.
type follower struct {
	stream.Follower
	s     *Server
	actor engine.Actor  // of the call, in case that its close cancels the run
	how   stream.Ending // of the stream, once it is over

	leave, forget, stop func() // give back the seat, the key and the place where rings are heard
}

func (f *follower) close() {
	reason := "disconnect"
	if f.how == stream.Left && !stream.Closed(f.Revoked) && !stream.Closed(f.Closing) {
		reason = hungUp
	}
	for _, give := range []func(){f.stop, f.forget, f.leave} {
		if give != nil {
			give()
		}
	}
	if f.Waits {
		f.s.leave(engine.WithActor(context.Background(), f.actor), f.Ref, reason, f.Ended)
	}
}

// streamCursor reads where a stream begins. A browser repeats its address when it reconnects, with its cursor in the
// header, so that the header is what counts.
func (c *call) streamCursor() (after int64, name string, err error) {
	text := c.Header.Get("Last-Event-ID")
	name = "Last-Event-ID"
	for _, param := range []string{"last_event_id", "after"} {
		if text == "" {
			text, name = c.URL.Query().Get(param), param
		}
	}
	if text == "" {
		return 0, name, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > 1<<53 {
		return 0, name, perdure.Invalid(name, "takes the id of the last event that was received, a whole number")
	}
	return n, name, nil
}

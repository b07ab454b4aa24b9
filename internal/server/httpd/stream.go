package httpd

import (
	"context"
	"net/http"
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/doorbell"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/httpd/stream"
	"github.com/perdure/perdure/internal/server/httpd/waiting"
)

// streamRun follows a run's log as server-sent events: the lines after the cursor, then new ones,
// and an end frame after the run's end. The cursor is its only state, so a client can go on after a
// restart and on any node. Package stream has the loop.
//
// A complete stream ends cleanly. One that the server has to end is aborted, so that no client
// takes it for the end of the run.
func streamRun(c *call) error {
	after, named, err := streamCursor(c)
	if err != nil {
		return err
	}
	return streamLog(c, c.run(), after, named)
}

// streamLog answers with the log of a run after a cursor. The parameter that has the cursor is named.
func streamLog(c *call, id perdure.RunID, after int64, named string) (err error) {
	f := &follower{s: c.s}
	f.Follower = stream.Follower{Reader: c.s.reader, Ref: kernel.Ref{Tenant: c.tenant(), Run: id}, After: after,
		Heartbeat: c.s.opt.Heartbeat, Closing: c.s.closing}
	defer f.close()
	if err := block(c, stream.SSE); err != nil {
		return err
	}
	f.share = c.share.move()
	valid, forget := c.s.keyWatcher.watch(c.key.ID)
	f.Revoked, f.forget = valid.Done(), forget
	if err := c.checkKey(); err != nil {
		return err
	}
	// The stream listens before it reads, so that no line is missed.
	f.Rung, f.stop = c.s.bell.Listen(doorbell.Run(f.Ref.Tenant, string(f.Ref.Run)))

	p, err := c.s.reader.First(c.Context().Done(), f.Ref, after)
	switch {
	case err != nil:
		return err
	case after > p.Head.Seq:
		return perdure.Invalid(named, "lies beyond the end of the log, %d", p.Head.Seq)
	case p.Head.State.Terminal() && after == p.Head.Seq:
		c.s.setWriteDeadline(c.w, 0)
		c.w.WriteHeader(http.StatusNoContent) // the log is complete: a browser does not reconnect after 204
		return nil
	}
	h := c.w.Header()
	h.Set("Content-Type", api.MediaStream)
	h.Set("X-Accel-Buffering", "no")
	if c.Method == http.MethodHead {
		return nil
	}
	if p.Run.Options.Foreground && p.Head.State.Live() {
		if err := c.s.waiters.Add(c.Context(), f.Ref, false); err != nil {
			return err
		}
		f.Waits, f.actor = true, c.actor()
	}
	bounds := stream.Bounds{WriteTimeout: c.s.opt.StreamWriteTimeout, CheckEvery: c.s.checkEvery,
		Revoked: f.Revoked, Closing: f.Closing}
	if out := stream.Hijack(c.w, c.Request, bounds); out != nil {
		// The stream goes on outside of the request, whose memory is freed.
		mine := *f
		if c.s.goStream(func() {
			defer mine.close()
			mine.how = mine.Follow(out, p)
			out.Finish(mine.how)
		}) {
			*f = follower{}
		} else {
			out.Finish(stream.Aborted)
		}
		return nil
	}
	if f.how = f.Follow(stream.FromResponse(c.w, c.Request, c.s.opt.StreamWriteTimeout), p); f.how == stream.Aborted {
		panic(http.ErrAbortHandler)
	}
	return nil
}

// A follower is a stream and the resources that it has to give back.
type follower struct {
	stream.Follower
	s *Server
	// actor is the caller, for the audit log: closing the stream may cancel the run.
	actor kernel.Actor
	// how is how the stream has ended.
	how stream.Ending

	// share has the stream's place among the calls that block.
	share share
	// forget and stop give back the watched key and the doorbell's topic. They are nil until they are
	// acquired.
	forget, stop func()
}

// close gives everything back, and removes the waiter.
func (f *follower) close() {
	reason := waiting.Disconnect
	if f.how == stream.Disconnected && !stream.Closed(f.Revoked) && !stream.Closed(f.Closing) {
		reason = waiting.HungUp
	}
	for _, end := range []func(){f.stop, f.forget} {
		if end != nil {
			end()
		}
	}
	f.share.release()
	if f.Waits {
		f.s.waiters.Remove(kernel.WithActor(context.Background(), f.actor), f.Ref, reason, f.Ended)
	}
}

// streamCursor reads the cursor of a stream and the name of the parameter that has it. The header
// comes first: a browser that reconnects repeats its URL and adds the cursor as a header.
func streamCursor(c *call) (after int64, name string, err error) {
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

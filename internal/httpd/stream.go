package httpd

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/doorbell"
	"github.com/perdure/perdure/internal/engine"
)

var (
	// beat is a comment and one line break: a blank line after it would end an event that never began, and some
	// clients make one of it.
	beat = pieceOf([]byte(": hb\n"))
)

// retryHint is how long a client should wait before it reconnects, in milliseconds.
const retryHint = "retry: 1000\n"

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
	f := &follower{s: c.s, ref: engine.Ref{Tenant: c.tenant(), Run: c.run()}, after: after}
	defer f.close()
	if f.leave, err = c.seat(byStream); err != nil {
		return err
	}
	valid, forget := c.s.keyring.watch(c.key.ID)
	f.revoked, f.forget = valid.Done(), forget
	if err := c.valid(); err != nil {
		return err
	}
	// Whoever listens before he looks misses nothing.
	f.rung, f.stop = c.s.bell.Listen(doorbell.Run(f.ref.Tenant, string(f.ref.Run)))

	p, err := c.s.logs.read(c.Context().Done(), want{ref: f.ref, after: after, whole: true})
	switch {
	case err != nil:
		return err
	case after > p.head.Seq:
		return perdure.Invalid(named, "lies beyond the end of the log, %d", p.head.Seq)
	case p.head.State.Terminal() && after == p.head.Seq:
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
	if p.run.Options.Foreground && p.head.State.Live() {
		if err := c.s.arrive(c.Context(), f.ref, false); err != nil {
			return err
		}
		f.waits, f.actor = true, c.actor()
	}
	if out := takeOver(c, f); out != nil {
		// The stream goes on by itself: what a request needs, which is most of it, is let go.
		mine := *f
		if c.s.detach(func() {
			defer mine.close()
			mine.how = mine.follow(out, p)
			out.finish(mine.how)
		}) {
			*f = follower{}
		} else {
			out.finish(cut)
		}
		return nil
	}
	if f.how = f.follow(&borrowed{w: c.w, rc: http.NewResponseController(c.w), gone: c.Context().Done(), patience: c.s.opt.Patience}, p); f.how == cut {
		panic(http.ErrAbortHandler)
	}
	return nil
}

// A follower is a stream that is told.
type follower struct {
	s     *Server
	ref   engine.Ref
	after int64        // the cursor
	waits bool         // it counts as somebody who waits for the run
	actor engine.Actor // of the call, in case that its close cancels the run
	how   ending       // of the stream, once it is over
	ended bool         // the run has

	rung, revoked       <-chan struct{}
	leave, forget, stop func() // give back the seat, the key and the place where rings are heard
}

func (f *follower) close() {
	reason := "disconnect"
	if f.how == left && !closed(f.revoked) && !closed(f.s.closing) {
		reason = hungUp
	}
	for _, give := range []func(){f.stop, f.forget, f.leave} {
		if give != nil {
			give()
		}
	}
	if f.waits {
		f.s.leave(engine.WithActor(context.Background(), f.actor), f.ref, reason, f.ended)
	}
}

// How a stream ends.
type ending int

const (
	told ending = iota // everything was
	left               // nobody reads it any more
	cut                // it goes on elsewhere, or later
)

// lost tells how a stream ends that could not be written to: left, if the other side closed the connection.
func lost(out outlet) ending {
	if out.broken() || closed(out.left()) {
		return left
	}
	return cut
}

// looksEvery is how many beats pass before a log is looked at without a ring: one may have been lost.
const looksEvery = 2

// follow writes the stream.
func (f *follower) follow(out outlet, p *page) ending {
	attached := api.Attached{RunID: f.ref.Run, After: f.after, LastSeq: p.head.Seq, Status: perdure.StatusOf(p.head.State, p.head.DeferredAt), State: p.head.State}
	if f.waits {
		attached.Status = string(p.head.State) // whoever attaches ends the deferral
	}
	if !out.send(control(api.StreamAttached, f.after, attached)) {
		return lost(out)
	}
	ticker := time.NewTicker(f.s.opt.Beat)
	defer ticker.Stop()
	for beats := 0; ; {
		if p.gap > f.after+1 && !out.send(control(api.StreamGap, p.gap-1, api.Gap{RunID: f.ref.Run, From: f.after + 1, To: p.gap - 1})) {
			return lost(out)
		}
		if len(p.lines.text) > 0 && !out.send(p.lines) {
			return lost(out)
		}
		f.after = p.upto
		if p.ended && !p.kept {
			f.ended = true
			if !out.send(control(api.StreamEnd, f.after, api.End{RunID: f.ref.Run, State: p.head.State, LastSeq: f.after})) {
				return lost(out)
			}
			return told
		}
		w, caughtUp := want{ref: f.ref, after: f.after}, f.after >= p.head.Seq && !p.kept
		p = nil // it may be long until there is another
		var r *reading
		var done chan struct{} // of r
		if !caughtUp {
			r = f.s.logs.ask(w)
			done = r.done
		}
		for waiting := true; waiting; {
			if closed(f.revoked) || closed(f.s.closing) {
				return cut
			}
			rung := f.rung
			if r != nil {
				rung = nil
			}
			select {
			case <-done:
				waiting = false
			case <-rung:
				r = f.s.logs.ask(w)
				done = r.done
			case <-ticker.C:
				if !out.send(beat) {
					return lost(out)
				}
				if beats++; r == nil && beats%looksEvery == 0 {
					w.idle = true
					r = f.s.logs.ask(w)
					done = r.done
				}
			case <-f.revoked:
			case <-f.s.closing:
			case <-out.left():
				return left
			}
		}
		if r.err != nil {
			// The store can't be read now, or the run was deleted. The cursor stands: the client comes back, perhaps
			// to another node, and is told.
			return cut
		}
		p = r.page
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

// frame appends an event of the log to a stream. Types are names without line breaks, and the data is JSON on one
// line.
func frame(b []byte, l *perdure.Line) ([]byte, error) {
	data, err := encode(event(l))
	if err != nil {
		return b, err
	}
	return compose(b, l.Type, l.Seq, data), nil
}

// control is a frame that is no line of the log. It bears the cursor as its id.
func control(typ string, cursor int64, v any) piece {
	data, _ := encode(v)
	var b []byte
	if typ == api.StreamAttached {
		b = append(b, retryHint...)
	}
	return pieceOf(compose(b, typ, cursor, data))
}

func compose(b []byte, typ string, id int64, data []byte) []byte {
	b = append(b, "id: "...)
	b = strconv.AppendInt(b, id, 10)
	b = append(b, "\nevent: "...)
	b = append(b, typ...)
	b = append(b, "\ndata: "...)
	b = append(b, data...)
	return append(b, "\n\n"...)
}

// event is a line of a log as callers see it, the same everywhere.
func event(l *perdure.Line) api.Event {
	data, _ := l.Data.MarshalJSON()
	return api.Event{Seq: l.Seq, Type: l.Type, At: l.At, Attempt: l.Attempt, Data: data}
}

// newPage is what was seen of a log, as frames.
func newPage(l *engine.Look) (*page, error) {
	p := &page{head: l.Head, run: l.Run, upto: l.Upto(), ended: l.Ended(), gap: l.First()}
	if len(l.Log) > 0 {
		var frames []byte
		for i := range l.Log {
			var err error
			if frames, err = frame(frames, &l.Log[i]); err != nil {
				return nil, err
			}
		}
		p.lines = pieceOf(frames)
	}
	return p, nil
}

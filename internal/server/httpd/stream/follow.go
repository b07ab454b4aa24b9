package stream

import (
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine/kernel"
)

// A follower writes one log to one connection. It sends "attached", then repeats:
//
//  1. It sends the page that it has: a gap frame for lines that were removed, then the lines.
//  2. If the page has the end of an ended run's log, it sends "end" and is done.
//  3. If the page shows that more lines exist, it asks the reader for the next one.
//  4. Otherwise it waits. A ring makes it ask. Every heartbeat is written to the connection, and
//     every second one makes it ask too, because a ring can be lost.
//
// The caller listens to the doorbell before it reads the first page, so no line is missed between.

// A Follower follows a run's log from its cursor on, and sends an end frame after the run's end.
type Follower struct {
	Reader *Reader
	Ref    kernel.Ref
	// After is the cursor: the last line that was sent.
	After int64
	// Waits is set if the stream counts as a waiter of the run.
	Waits bool
	// Heartbeat is the interval between heartbeats.
	Heartbeat time.Duration

	// Rung receives when the log may have more lines.
	Rung <-chan struct{}
	// Revoked is closed when the key is no longer valid, and Closing when the server shuts down.
	// Either aborts the stream.
	Revoked, Closing <-chan struct{}

	// Ended is set when the run has ended.
	Ended bool
}

// An Ending is how a stream ends.
type Ending int

const (
	// Complete means that everything was sent, and the end frame too.
	Complete Ending = iota
	// Disconnected means that the client closed the connection.
	Disconnected
	// Aborted means that the server ended the stream. The client can go on with its cursor, here or
	// on another node.
	Aborted
)

// failed returns how a stream ends after a failed write: Disconnected if the client closed the
// connection, and Aborted if the write took too long.
func failed(out Conn) Ending {
	if out.broken() || Closed(out.gone()) {
		return Disconnected
	}
	return Aborted
}

// checkEvery is the number of heartbeats after which a log is read without a ring.
const checkEvery = 2

// Follow writes the stream until it ends. p is the first page after the cursor.
func (f *Follower) Follow(out Conn, p *Page) Ending {
	attached := api.Attached{RunID: f.Ref.Run, After: f.After, LastSeq: p.Head.Seq,
		Status: perdure.StatusOf(p.Head.State, p.Head.DeferredAt), State: p.Head.State}
	if f.Waits {
		attached.Status = string(p.Head.State) // a waiter ends the deferral
	}
	if !out.send(control(api.StreamAttached, f.After, attached)) {
		return failed(out)
	}
	ticker := time.NewTicker(f.Heartbeat)
	defer ticker.Stop()
	for beats := 0; ; {
		if p.first > f.After+1 {
			gap := api.Gap{RunID: f.Ref.Run, From: f.After + 1, To: p.first - 1}
			if !out.send(control(api.StreamGap, gap.To, gap)) {
				return failed(out)
			}
		}
		if len(p.lines.text) > 0 && !out.send(p.lines) {
			return failed(out)
		}
		f.After = p.upto
		if p.ended && !p.cached {
			f.Ended = true
			end := api.End{RunID: f.Ref.Run, State: p.Head.State, LastSeq: f.After}
			if !out.send(control(api.StreamEnd, f.After, end)) {
				return failed(out)
			}
			return Complete
		}
		q, caughtUp := query{ref: f.Ref, after: f.After}, f.After >= p.Head.Seq && !p.cached
		p = nil // free the page: the next one may be long in coming
		// r is the result that the follower waits for, and done its channel. Both are nil while it
		// waits for a ring.
		var r *result
		var done chan struct{}
		if !caughtUp {
			r = f.Reader.ask(q)
			done = r.done
		}
		for waiting := true; waiting; {
			if Closed(f.Revoked) || Closed(f.Closing) {
				return Aborted
			}
			rung := f.Rung
			if r != nil {
				rung = nil // keep the ring until the result has come
			}
			select {
			case <-done:
				waiting = false
			case <-rung:
				r = f.Reader.ask(q)
				done = r.done
			case <-ticker.C:
				if !out.send(heartbeat) {
					return failed(out)
				}
				if beats++; r == nil && beats%checkEvery == 0 {
					q.idle = true
					r = f.Reader.ask(q)
					done = r.done
				}
			case <-f.Revoked:
			case <-f.Closing:
			case <-out.gone():
				return Disconnected
			}
		}
		if r.err != nil {
			// The store can't be read now, or the run was deleted. The client reconnects with its
			// cursor, perhaps to another node, and that answer tells it the reason.
			return Aborted
		}
		p = r.page
	}
}

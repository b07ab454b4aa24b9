package stream

import (
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/engine"
)

// A Follower follows a run's log: it sends what there is from its cursor on, then what comes, and
// an end after the run's end.
type Follower struct {
	Reader *Reader
	Ref    engine.Ref
	After  int64         // the cursor
	Waits  bool          // it counts as somebody who waits for the run
	Beat   time.Duration // how often it says that it is there

	Rung             <-chan struct{} // there may be something new
	Revoked, Closing <-chan struct{} // the key is valid no more, the server shuts down: the stream is cut off

	Ended bool // the run has
}

// An Ending is how a stream ends.
type Ending int

const (
	Told Ending = iota // everything was
	Left               // nobody reads it any more
	Cut                // it goes on elsewhere, or later
)

// lost tells how a stream ends that could not be written to: Left, if the other side closed the connection.
func lost(out Conn) Ending {
	if out.broken() || Closed(out.left()) {
		return Left
	}
	return Cut
}

// looksEvery is how many beats pass before a log is looked at without a ring: one may have been lost.
const looksEvery = 2

// Follow writes the stream. p is what the log had after the cursor when the stream began.
func (f *Follower) Follow(out Conn, p *Page) Ending {
	attached := api.Attached{RunID: f.Ref.Run, After: f.After, LastSeq: p.Head.Seq, Status: perdure.StatusOf(p.Head.State, p.Head.DeferredAt), State: p.Head.State}
	if f.Waits {
		attached.Status = string(p.Head.State) // whoever attaches ends the deferral
	}
	if !out.send(control(api.StreamAttached, f.After, attached)) {
		return lost(out)
	}
	ticker := time.NewTicker(f.Beat)
	defer ticker.Stop()
	for beats := 0; ; {
		if p.gap > f.After+1 && !out.send(control(api.StreamGap, p.gap-1, api.Gap{RunID: f.Ref.Run, From: f.After + 1, To: p.gap - 1})) {
			return lost(out)
		}
		if len(p.lines.text) > 0 && !out.send(p.lines) {
			return lost(out)
		}
		f.After = p.upto
		if p.ended && !p.kept {
			f.Ended = true
			if !out.send(control(api.StreamEnd, f.After, api.End{RunID: f.Ref.Run, State: p.Head.State, LastSeq: f.After})) {
				return lost(out)
			}
			return Told
		}
		w, caughtUp := want{ref: f.Ref, after: f.After}, f.After >= p.Head.Seq && !p.kept
		p = nil // it may be long until there is another
		var r *reading
		var done chan struct{} // of r
		if !caughtUp {
			r = f.Reader.ask(w)
			done = r.done
		}
		for waiting := true; waiting; {
			if Closed(f.Revoked) || Closed(f.Closing) {
				return Cut
			}
			rung := f.Rung
			if r != nil {
				rung = nil
			}
			select {
			case <-done:
				waiting = false
			case <-rung:
				r = f.Reader.ask(w)
				done = r.done
			case <-ticker.C:
				if !out.send(beat) {
					return lost(out)
				}
				if beats++; r == nil && beats%looksEvery == 0 {
					w.idle = true
					r = f.Reader.ask(w)
					done = r.done
				}
			case <-f.Revoked:
			case <-f.Closing:
			case <-out.left():
				return Left
			}
		}
		if r.err != nil {
			// The store can't be read now, or the run was deleted. The cursor stands: the client comes back, perhaps
			// to another node, and is told.
			return Cut
		}
		p = r.page
	}
}

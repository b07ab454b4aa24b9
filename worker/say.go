package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/wire/session"
)

// RunInfo describes the run that a handler executes.
type RunInfo struct {
	RunID       perdure.RunID
	Tenant      perdure.TenantID // with Options.AllTenants
	Kind        string
	Class       perdure.Class
	Queue       string
	Epoch       int64
	Attempt     int // from 1
	ThreadID    perdure.ThreadID
	ParentRunID perdure.RunID
	RootRunID   perdure.RunID
	DeadlineAt  perdure.Instant // on the server's clock
	Inbox       []perdure.Item  // items that arrived before the grant
	WorkerID    string
}

// Info returns the run whose handler has this context. ok is false for any other context.
func Info(ctx context.Context) (info RunInfo, ok bool) {
	r := from(ctx)
	if r == nil {
		return RunInfo{}, false
	}
	g := r.grant
	return RunInfo{
		RunID: g.RunID, Tenant: g.Tenant, Kind: g.Kind, Class: g.Class, Queue: g.Queue,
		Epoch: g.Epoch, Attempt: g.Attempt, ThreadID: g.ThreadID,
		ParentRunID: g.ParentRunID, RootRunID: g.RootRunID,
		DeadlineAt: g.DeadlineAt, Inbox: g.Inbox, WorkerID: r.w.opt.ID,
	}, true
}

var errNoRun = errors.New("worker: the context is not a handler's")

// Heartbeat reports what the run is doing, such as "llm_call_started" or "copying files". It is for
// people who watch the run; the lease is renewed without it. It does not wait.
func Heartbeat(ctx context.Context, activity string) {
	if r := from(ctx); r != nil {
		r.say(session.Text(activity, perdure.MaxText), nil)
	}
}

// Progress reports how far the run is. Of several reports in quick succession only the last one is
// sent. It does not wait. An error means that the value cannot be encoded or is too large.
func Progress(ctx context.Context, v any) error {
	r := from(ctx)
	if r == nil {
		return errNoRun
	}
	b, err := perdure.Encode(v)
	if err != nil {
		return fmt.Errorf("worker: progress: %w", err)
	}
	r.say("", b)
	return nil
}

// Emit writes a line to the run's log. Its type is "x:…" for a program's own lines, or one of those
// that workers may write, such as "run:progress" and "worker:tool_started". Streamed text of a
// model is written with [Delta]. Lines keep their order and come before the run's end. Emit buffers
// and returns. Only if too much is undelivered does it wait, at most until the context ends.
func Emit(ctx context.Context, typ perdure.LineType, v any) error {
	r := from(ctx)
	if r == nil {
		return errNoRun
	}
	if !perdure.WorkerMayWrite(typ) || len(typ) > perdure.MaxName {
		return fmt.Errorf("worker: emit: %q is not for workers: x:…, run:progress, worker:tool_… and llm:delta are",
			typ)
	}
	b, err := perdure.Encode(v)
	if err != nil {
		return fmt.Errorf("worker: emit %s: %w", typ, err)
	}
	return r.add(ctx, len(b), func() int {
		r.cutDelta(false)
		r.events = append(r.events, perdure.Emitted{Type: typ, Data: b})
		return len(b)
	})
}

// add calls put as soon as the run's next commit has room for atMost bytes. put appends to the
// commit and returns the bytes that it added.
func (r *run) add(ctx context.Context, atMost int, put func() int) error {
	for {
		r.mu.Lock()
		if r.gone || r.released || r.outcome != nil {
			r.mu.Unlock()
			if cause := context.Cause(ctx); cause != nil {
				return cause
			}
			return errDone
		}
		if !r.full(atMost) {
			r.size += put()
			news := r.sendAt.IsZero()
			if news {
				r.sendAt = r.w.nextFlush()
			}
			r.mu.Unlock()
			if news {
				kick(r.w.kickCommit)
			}
			return nil
		}
		r.sendAt = time.Now()
		room := r.room
		r.mu.Unlock()
		kick(r.w.kickCommit)
		select {
		case <-room:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// full tells whether a commit has no room for more bytes. A new line can take an entry for itself,
// one for each stream before it, and one for a delta after it.
func (r *run) full(bytes int) bool {
	return len(r.events)+len(r.streams)+len(r.closures) > perdure.MaxList-3 || r.size > 0 && r.size+bytes >= maxCall/2
}

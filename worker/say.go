package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/session"
)

// RunInfo tells a handler which run it executes.
type RunInfo struct {
	RunID       perdure.RunID
	Tenant      perdure.TenantID // of a worker that leases for all tenants
	Kind        string
	Class       perdure.Class
	Queue       string
	Epoch       int64
	Attempt     int // from 1
	ThreadID    perdure.ThreadID
	ParentRunID perdure.RunID
	RootRunID   perdure.RunID
	DeadlineAt  perdure.Instant // on the server's clock
	Inbox       []perdure.Item  // what was sent to the run before it was leased
	WorkerID    string
}

// Info tells about the run whose handler has this context; ok is false for any other context.
func Info(ctx context.Context) (info RunInfo, ok bool) {
	r := from(ctx)
	if r == nil {
		return RunInfo{}, false
	}
	g := r.grant
	return RunInfo{RunID: g.RunID, Tenant: g.Tenant, Kind: g.Kind, Class: g.Class, Queue: g.Queue, Epoch: g.Epoch, Attempt: g.Attempt, ThreadID: g.ThreadID,
		ParentRunID: g.ParentRunID, RootRunID: g.RootRunID, DeadlineAt: g.DeadlineAt, Inbox: g.Inbox, WorkerID: r.w.opt.ID}, true
}

var errNoRun = errors.New("worker: the context is not a handler's")

// Heartbeat says what the run is doing, such as "llm_call_started" or "copying files". The lease needs no help
// from the handler; this is for those who watch. It does not wait.
func Heartbeat(ctx context.Context, activity string) {
	if r := from(ctx); r != nil {
		r.say(session.Text(activity, perdure.MaxText), nil)
	}
}

// Progress says how far the run got. Of several in quick succession the last one is told. It does not wait; an
// error means that the value can't be told at all.
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

// Emit writes a line into the run's log: "x:…" for one's own, or one of the types that workers may write, such as
// "run:progress" and "worker:tool_started"; text that a model streams goes through [Delta]. Lines keep their order
// and come before the run's end. Emit collects and returns, unless so much is undelivered that it has to wait: then
// the end of the context ends it.
func Emit(ctx context.Context, typ string, v any) error {
	r := from(ctx)
	if r == nil {
		return errNoRun
	}
	if !perdure.WorkerMayWrite(typ) || len(typ) > perdure.MaxName {
		return fmt.Errorf("worker: emit: %q is not for workers: x:…, run:progress, worker:tool_… and llm:delta are", typ)
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

// add has something put into the run's next commit, as soon as there is room for so many bytes of it; put gives
// how many it was.
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
				r.sendAt = r.w.nextSending()
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

// full tells whether so many bytes more are too much for one commit: as a line, with a delta before it and one
// after it.
func (r *run) full(bytes int) bool {
	return len(r.events) > perdure.MaxBatch-3 || r.size > 0 && r.size+bytes >= maxCall/2
}

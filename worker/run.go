package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/session"
)

// A run is a leased run, from its grant until its result is delivered.
type run struct {
	w     *Worker
	grant *api.Grant
	lease api.Lease
	ctx   context.Context
	stop  context.CancelCauseFunc
	// leased ends when the run is no longer this worker's; a cancel ends ctx and not this.
	leased context.Context
	unhand context.CancelCauseFunc
	every  time.Duration // between its heartbeats
	fence  *time.Timer   // when a kind that fences itself stops; nil for others

	mu       sync.Mutex
	beatAt   time.Time // when its next heartbeat is due
	activity string
	progress json.RawMessage // not told yet
	cancel   bool            // it was asked to stop, and that is acknowledged with the next heartbeat

	events    []perdure.Emitted       // not committed yet
	text      []byte                  // what is said after them of a text that is being streamed, as JSON writes it
	tail      []byte                  // bytes of it that are not a whole character yet
	size      int                     // of them all, in bytes
	sendAt    time.Time               // when they are committed; zero: there are none
	room      chan struct{}           // closed when events were taken
	commits   int                     // made so far: their ids count them
	outcome   *perdure.Outcome        // what the handler led to
	own       int                     // how many lines of the commit that is flying are the handler's own
	flying    *perdure.Commit         // sent, or about to be, and not yet answered
	source    session.Source          // what an agent has to commit
	held      *part                   // what it had, and has to wait for the handler's lines
	asked     func(*api.CommitResult) // the agent, about the commit that is flying
	refused   *api.Refusal            // of something that the agent had to commit: the run can't end as if it had been taken
	notTaken  int                     // how often the commit that is flying was put off
	defects   int                     // how often by a defect of the server
	putOffBy  perdure.Code            // what that was last; it is logged once
	notBefore time.Time               // when it is sent again
	over      bool                    // its outcome is taken
	gone      bool                    // the lease is lost, or handed back: only finished work is still delivered
	released  bool
}

func newRun(w *Worker, life context.Context, g *api.Grant, sent time.Time) *run {
	r := &run{w: w, grant: g, lease: api.Lease{RunID: g.RunID, Epoch: g.Epoch}, room: make(chan struct{})}
	quarter := time.Duration(g.LeaseMS) * time.Millisecond / 4
	r.every = max(min(w.opt.HeartbeatEvery, quarter), soonest)
	r.beatAt = sent.Add(min(firstBeat, r.every))
	r.leased, r.unhand = context.WithCancelCause(context.WithValue(life, runKey{}, r))
	r.ctx, r.stop = context.WithCancelCause(r.leased)
	return r
}

type runKey struct{}

func from(ctx context.Context) *run {
	r, _ := ctx.Value(runKey{}).(*run)
	return r
}

// execute calls the handler and keeps what came of it for delivery.
func (r *run) execute(h handler) {
	var out *perdure.Outcome
	returned := false
	defer func() {
		if !returned {
			p := recover() // nil when the handler ended its goroutine
			out = panicked(p)
			r.log().Error("a handler panicked, or ended its goroutine", "panic", p)
		}
		r.finish(out)
	}()
	out = h.call(r.ctx, r)
	returned = true
}

func panicked(p any) *perdure.Outcome {
	if p == nil {
		return session.Failed("goexit", "the handler ended its goroutine", true)
	}
	return session.Failed(CodePanic, fmt.Sprintf("panic: %v\n\n%s", p, debug.Stack()), true)
}

// finish hands the outcome over to the commit loop, or lets go of a run that nobody is to hear from.
func (r *run) finish(out *perdure.Outcome) {
	r.mu.Lock()
	cause := context.Cause(r.ctx)
	switch {
	case r.released:
		r.mu.Unlock()
		return
	case out != nil && out.Type == perdure.OutcomeComplete:
	case r.gone, out == nil && !errors.Is(cause, ErrShutdown): // lost, or suspended
		r.mu.Unlock()
		r.w.drop(r.lease)
		return
	case errors.Is(cause, ErrCancelled) && out.Error != nil && !tells(out.Error.Code):
		out = &perdure.Outcome{Type: perdure.OutcomeCancelled}
	case errors.Is(cause, ErrShutdown):
		// Not a failure of the run: whoever gets it next begins anew, with all its attempts.
		r.released = true
		r.mu.Unlock()
		r.w.release(context.WithoutCancel(r.ctx), []api.Lease{r.lease})
		return
	}
	if r.refused != nil {
		out = without(out, r.refused)
	}
	r.outcome = out
	r.mu.Unlock()
	kick(r.w.kickOutcome)
}

// tells is true of failures that a cancel does not explain: something may not have been undone.
func tells(c perdure.Code) bool {
	switch c {
	case CodePanic, agent.CodeNotUndone, agent.CodeMisuse, perdure.CodeNondeterminism:
		return true
	}
	return false
}

// abandon tells whether the run is to be handed back: its handler has not returned. From here on it is too late
// for it.
func (r *run) abandon() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.outcome != nil || r.released {
		return false
	}
	r.released = true
	r.unhand(ErrShutdown)
	return true
}

// lost ends a run that is no longer this worker's. The handler is told; a result that it may still bring is
// delivered, to be kept as a late one.
func (r *run) lost(why error) {
	r.mu.Lock()
	already := r.gone
	r.gone = true
	r.events, r.text, r.tail, r.size, r.sendAt = nil, nil, nil, 0, time.Time{}
	r.mu.Unlock()
	switch {
	case already:
	case !time.Now().Before(r.grant.DeadlineAt.Time()): // that is how it is meant to be
		r.w.log.Info("a run has run out of its time; its handler is told to stop", "run", r.lease.RunID, "kind", r.grant.Kind)
	default:
		r.w.log.Warn("a lease is lost; its handler is told to stop", "run", r.lease.RunID, "kind", r.grant.Kind, "error", why)
	}
	r.stop(ErrLeaseLost)
	r.unhand(ErrLeaseLost)
}

// cancelled tells the handler that the run was asked to stop, and has that acknowledged.
func (r *run) cancelled() {
	r.mu.Lock()
	first := !r.cancel
	r.cancel = true
	if first {
		r.beatAt = time.Now()
		r.notBefore = time.Time{} // a commit that waits for room need not wait any longer
	}
	r.mu.Unlock()
	if first {
		r.w.log.Info("a run is asked to stop", "run", r.lease.RunID, "kind", r.grant.Kind)
		r.stop(ErrCancelled)
		kick(r.w.kickBeat)
		kick(r.w.kickOutcome)
	}
}

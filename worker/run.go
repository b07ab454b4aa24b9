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
	"github.com/perdure/perdure/internal/wire/session"
	"github.com/perdure/perdure/internal/wire/timer"
)

// A run is a leased run, from its grant until its outcome is delivered or the lease is lost.
type run struct {
	w     *Worker
	grant *api.Grant
	lease api.Lease
	ctx   context.Context
	stop  context.CancelCauseFunc
	// leased ends when this worker no longer holds the run. A cancel request ends ctx, but not
	// leased.
	leased   context.Context
	endLease context.CancelCauseFunc
	every    time.Duration // between its heartbeats
	earlier  *run          // is held, too: an earlier lease of the same run; guarded by w.mu
	fence    *time.Timer   // stops the handler of a kind in SelfFence; nil for others

	// mu is taken before the lock of the agent's execution, which source takes.
	mu       sync.Mutex
	beatAt   time.Time // when its next heartbeat is due
	activity string
	progress json.RawMessage // not reported yet
	cancel   bool            // a cancel request was received; heartbeats and commits acknowledge it

	// Lines that are not in a commit yet.
	events  []perdure.Emitted
	streams []*stream // streamed text after the events
	// closures close limits, with the next commit.
	closures []perdure.LimitClosure
	size     int           // bytes of them all
	sendAt   time.Time     // when they are committed; zero if there are none
	room     chan struct{} // closed when a commit has taken them

	// The commit in flight, and what follows it.
	commits     int                     // number of commits so far; their ids count them
	outcome     *perdure.Outcome        // the handler's outcome
	inFlight    *perdure.Commit         // sent, or about to be, and not yet answered
	own         int                     // lines of inFlight that are the handler's, not the agent's
	source      session.Source          // the content that an agent has for commits
	held        *part                   // content of the agent that waits for the handler's lines
	asked       func(*api.CommitResult) // gives the agent the result of inFlight
	refused     *api.Refusal            // a commit of the agent was refused: the run cannot complete
	postponed   int                     // how often inFlight was postponed
	defects     int                     // how often because of an internal error of the server
	postponedBy perdure.Code            // the last reason; each is logged once
	notBefore   time.Time               // when inFlight is sent again

	over     bool // the server has accepted the outcome
	gone     bool // the lease is lost: only a finished result is still sent
	released bool // the run was handed back
}

func newRun(w *Worker, life context.Context, g *api.Grant, sent time.Time) *run {
	r := &run{w: w, grant: g, lease: api.Lease{RunID: g.RunID, Epoch: g.Epoch}, room: make(chan struct{})}
	quarter := time.Duration(g.LeaseMS) * time.Millisecond / 4
	r.every = max(min(w.opt.HeartbeatEvery, quarter), minHeartbeat)
	r.beatAt = sent.Add(min(firstHeartbeat, r.every))
	r.leased, r.endLease = context.WithCancelCause(context.WithValue(life, runKey{}, r))
	r.ctx, r.stop = context.WithCancelCause(r.leased)
	return r
}

type runKey struct{}

func from(ctx context.Context) *run {
	r, _ := ctx.Value(runKey{}).(*run)
	return r
}

// execute calls the handler and passes its outcome to finish.
func (r *run) execute(h handler) {
	var out *perdure.Outcome
	returned := false
	defer func() {
		if !returned {
			p := recover() // nil if the handler called runtime.Goexit
			out = panicked(p)
			r.log().Error("a handler panicked, or ended its goroutine", "panic", p)
		}
		r.finish(out)
	}()
	confirmed := r.grant.MaxAttempts != 1 || r.confirm(h.agent)
	switch {
	// An agent is called under a cancel request, too: it may have to undo earlier steps.
	case confirmed && (h.agent || !errors.Is(context.Cause(r.ctx), ErrCancelled)):
		out = h.call(r.ctx, r)
	case errors.Is(context.Cause(r.ctx), ErrCancelled):
		out = &perdure.Outcome{Type: perdure.OutcomeCancelled}
	}
	returned = true
}

// confirm waits until the server has heard that this worker has the run, as polls promise (see
// api.Poll.Confirms): a grant that is not heard from is granted again and spends no attempt, so a run
// with a single attempt does not begin before. It returns false if the handler must not be called.
func (r *run) confirm(agent bool) bool {
	for failed := 1; ; failed++ {
		ctx := r.ctx
		if agent && errors.Is(context.Cause(ctx), ErrCancelled) {
			ctx = r.leased // it is called to clean up
		}
		answer, err := r.w.calls.Heartbeat(ctx, r.w.opt.ID, api.Beat{RunID: r.lease.RunID, Epoch: r.lease.Epoch})
		if err != nil {
			timer.Sleep(ctx, pause(failed))
			if ctx.Err() != nil && !(agent && r.leased.Err() == nil && errors.Is(context.Cause(ctx), ErrCancelled)) {
				return false
			}
			continue
		}
		for _, l := range answer.Lost {
			if l.Error != nil {
				r.lost(perdure.Errorf(l.Error.Code, "%s", l.Error.Detail))
				return false
			}
		}
		if len(answer.Later) > 0 {
			timer.Sleep(ctx, pause(failed))
			if ctx.Err() != nil {
				return false
			}
			continue
		}
		if len(answer.Cancel) > 0 {
			r.cancelled()
		}
		return r.leased.Err() == nil
	}
}

func panicked(p any) *perdure.Outcome {
	if p == nil {
		return session.Failed("goexit", "the handler ended its goroutine", true)
	}
	return session.Failed(CodePanic, fmt.Sprintf("panic: %v\n\n%s", p, debug.Stack()), true)
}

// finish passes the outcome to the commit loop, or drops the run if there is nothing to send.
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
	case errors.Is(cause, ErrCancelled) && out.Error != nil && !outlivesCancel(out.Error.Code):
		out = &perdure.Outcome{Type: perdure.OutcomeCancelled}
	case errors.Is(cause, ErrShutdown):
		// The shutdown is not a failure of the run: it is handed back, which costs no attempt.
		r.released = true
		r.mu.Unlock()
		r.w.release(context.WithoutCancel(r.ctx), []api.ReleasedLease{{Lease: r.lease}})
		return
	}
	if r.refused != nil {
		out = without(out, r.refused)
	}
	r.outcome = out
	r.mu.Unlock()
	kick(r.w.kickOutcome)
}

// outlivesCancel tells whether a failure is reported although the run was cancelled: it is not
// explained by the cancel, or something was not undone.
func outlivesCancel(c perdure.Code) bool {
	switch c {
	case CodePanic, agent.CodeNotUndone, agent.CodeMisuse, perdure.CodeNondeterminism:
		return true
	}
	return false
}

// abandon marks a run as handed back, unless its handler has returned. After that, the handler's
// outcome is ignored.
func (r *run) abandon() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.outcome != nil || r.released {
		return false
	}
	r.released = true
	r.endLease(ErrShutdown)
	return true
}

// lost stops the handler of a run that this worker no longer holds. If the handler still returns a
// result, it is sent, and the server keeps it as a late result.
func (r *run) lost(why error) {
	r.mu.Lock()
	already := r.gone
	r.gone = true
	r.events, r.streams, r.size, r.sendAt = nil, nil, 0, time.Time{}
	r.mu.Unlock()
	switch {
	case already:
	case !time.Now().Before(r.grant.DeadlineAt.Time()): // expected, not a warning
		r.w.log.Info("a run has run out of its time; its handler is told to stop",
			"run", r.lease.RunID, "kind", r.grant.Kind)
	default:
		r.w.log.Warn("a lease is lost; its handler is told to stop",
			"run", r.lease.RunID, "kind", r.grant.Kind, "error", why)
	}
	r.stop(ErrLeaseLost)
	r.endLease(ErrLeaseLost)
}

// cancelled stops the handler because of a cancel request, and makes a heartbeat due that
// acknowledges it.
func (r *run) cancelled() {
	r.mu.Lock()
	first := !r.cancel
	r.cancel = true
	if first {
		r.beatAt = time.Now()
		r.notBefore = time.Time{} // a commit that waits for the quota is sent now
	}
	r.mu.Unlock()
	if first {
		r.w.log.Info("a run is asked to stop", "run", r.lease.RunID, "kind", r.grant.Kind)
		r.stop(ErrCancelled)
		kick(r.w.kickBeat)
		kick(r.w.kickOutcome)
	}
}

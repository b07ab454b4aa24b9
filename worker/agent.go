package worker

import (
	"context"
	"encoding/json"
	"reflect"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/wire/session"
)

// Agent registers the function that executes the agents of a kind. Package agent describes such
// functions. Otherwise it is like [Handle]: input and result are JSON, and the returned value or
// error decides the run's outcome. An agent that waits holds no slot. Its goroutine ends, deferred
// calls run, and the function is called again when the wait has ended.
func Agent[In, Out any](w *Worker, kind string, f func(ctx *agent.Context, in In) (Out, error), opts ...Kind) {
	def, err := define[In, Out](perdure.Agent, opts)
	ignores := ignoresOf(opts)
	replay := func(ctx context.Context, s session.Session) *perdure.Outcome {
		return session.Execute(ctx, s, func(of any) (result json.RawMessage, err error) {
			ctx := of.(*agent.Context)
			err = w.around(ctx, func(inner context.Context) error {
				in, err := read[In](s.Grant().Input)
				if err := session.CheckInput(ctx, reflect.TypeFor[In](), ignores, err); err != nil {
					return err
				}
				under := *ctx
				under.Context = inner
				out, err := f(&under, in)
				if err != nil {
					return err
				}
				result, err = write(out)
				return err
			})
			return result, err
		})
	}
	call := func(ctx context.Context, r *run) *perdure.Outcome {
		out := replay(ctx, agentRun{r})
		if out != nil && out.Error != nil && context.Cause(ctx) == nil {
			r.log().Warn("an agent failed", "code", out.Error.Code, "error", out.Error.Message)
		}
		return out
	}
	w.register(kind, handler{def: def, agent: true, call: call, replay: replay}, f == nil, err)
}

// An agentRun is a run as package agent sees it; it implements session.Session.
type agentRun struct{ r *run }

func (s agentRun) Grant() *api.Grant       { return s.r.grant }
func (s agentRun) Leased() context.Context { return s.r.leased }

func (s agentRun) Journal(ctx context.Context, after int64) (*api.JournalPage, error) {
	return s.r.w.calls.Journal(ctx, s.r.lease, after)
}

func (s agentRun) Inbox(ctx context.Context, after int64) (*api.InboxPage, error) {
	return s.r.w.calls.Inbox(ctx, s.r.lease, after)
}

func (s agentRun) Messages(ctx context.Context, after int64) (*api.Messages, error) {
	return s.r.w.calls.History(ctx, s.r.lease, after)
}

func (s agentRun) MessagesBackwards(ctx context.Context, after, before int64) (*api.Messages, error) {
	return s.r.w.calls.HistoryBackwards(ctx, s.r.lease, after, before)
}

// Run reads a child. A worker's key may lack the scope to read, or be of another tenant: then the
// lease of the parent is enough for what the child is doing, but not for its input and result.
func (s agentRun) Run(ctx context.Context, id perdure.RunID) (*api.Run, error) {
	run, err := s.r.w.c.Get(ctx, id)
	if code := client.CodeOf(err); code != perdure.CodeNotFound && code != api.CodeForbidden {
		return run, err
	}
	a, err := s.r.w.calls.ChildActivity(ctx, s.r.lease, id)
	if err != nil {
		return nil, err
	}
	run = &api.Run{RunID: a.RunID, Kind: a.Kind, Status: a.Status, State: a.State, Tier: a.Tier, Attempt: a.Attempt,
		ElapsedMS: a.ElapsedMS, DeadlineAt: a.DeadlineAt, Error: a.Error, Progress: a.Progress, LastSeq: a.LastSeq}
	if a.Operation != nil {
		run.Activity = a.Operation.Activity
	}
	return run, nil
}

// TakeLimits is sent once: the agent asks again by itself.
func (s agentRun) TakeLimits(
	ctx context.Context, step string, takes []perdure.LimitTake, try int,
) (*api.StepTaken, error) {
	ctx, _ = session.WithoutRetry(ctx)
	out, err := s.r.w.calls.TakeLimits(ctx, s.r.w.opt.ID, api.StepLimits{Lease: s.r.lease, Step: step, Limits: takes,
		Try: try})
	if err != nil {
		return nil, err
	}
	return &out[0], nil
}

func (s agentRun) CloseLimit(ctx context.Context, c perdure.LimitClosure) error {
	return s.r.closeLimit(ctx, c)
}

func (s agentRun) Bind(src session.Source) {
	s.r.mu.Lock()
	s.r.source = src
	s.r.mu.Unlock()
}

// Commit requests the run's next commit: at once, or with the next flush of log lines.
func (s agentRun) Commit(now bool) {
	r := s.r
	at := time.Now()
	if !now {
		at = r.w.nextFlush()
	}
	r.mu.Lock()
	sooner := r.sendAt.IsZero() || at.Before(r.sendAt)
	if sooner {
		r.sendAt = at
	}
	r.mu.Unlock()
	switch {
	case now:
		kick(r.w.kickOutcome)
	case sooner:
		kick(r.w.kickCommit)
	}
}

func (s agentRun) Heartbeat(activity string)  { s.r.say(session.Text(activity, perdure.MaxText), nil) }
func (s agentRun) Progress(v json.RawMessage) { s.r.say("", v) }

func (s agentRun) Emit(ctx context.Context, typ perdure.LineType, v any) error {
	return Emit(s.within(ctx), typ, v)
}

func (s agentRun) Delta(ctx context.Context, channel, step string, try int64, text string) error {
	return s.r.delta(ctx, stream{channel: channel, step: step, try: try}, text)
}

// within returns a context that belongs to this run.
func (s agentRun) within(ctx context.Context) context.Context {
	if from(ctx) == s.r {
		return ctx
	}
	return context.WithValue(ctx, runKey{}, s.r)
}

// answerAgent passes the result of a commit to the agent, if it asked for the commit.
func (r *run) answerAgent(res *api.CommitResult) (asked bool) {
	r.mu.Lock()
	answered := r.asked
	r.asked = nil
	r.mu.Unlock()
	if answered == nil {
		return false
	}
	answered(res)
	return true
}

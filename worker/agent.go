package worker

import (
	"context"
	"encoding/json"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/session"
)

// Agent registers the function that executes the agents of a kind; see package agent for what such a function can
// do. It is as with [Handle] otherwise: input and result are JSON, and what it returns decides what becomes of the
// run. An agent that waits holds no slot: its function's goroutine ends, with what it has deferred, and the
// function is called again when there is news.
func Agent[In, Out any](w *Worker, kind string, f func(ctx *agent.Context, in In) (Out, error)) {
	w.register(kind, handler{agent: true, call: func(ctx context.Context, r *run) *perdure.Outcome {
		out := session.Execute(ctx, lent{r}, func(of any) (result json.RawMessage, err error) {
			ctx := of.(*agent.Context)
			err = w.around(ctx, func(inner context.Context) error {
				in, err := read[In](r.grant.Input)
				if err != nil {
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
		if out != nil && out.Error != nil && context.Cause(ctx) == nil {
			r.log().Warn("an agent failed", "code", out.Error.Code, "error", out.Error.Message)
		}
		return out
	}})
}

// A lent run is one as its agent sees it.
type lent struct{ r *run }

func (s lent) Grant() *api.Grant       { return s.r.grant }
func (s lent) Leased() context.Context { return s.r.leased }

func (s lent) Journal(ctx context.Context, after int64) (*api.JournalPage, error) {
	return s.r.w.c.Journal(ctx, s.r.lease, after)
}

func (s lent) Inbox(ctx context.Context, after int64) (*api.InboxPage, error) {
	return s.r.w.c.Inbox(ctx, s.r.lease, after)
}

func (s lent) Messages(ctx context.Context, after int64) (*api.Messages, error) {
	return s.r.w.c.History(ctx, s.r.lease, after)
}

func (s lent) Bind(src session.Source) {
	s.r.mu.Lock()
	s.r.source = src
	s.r.mu.Unlock()
}

// Commit has the run's next commit made: at once, or with the next sending of lines.
func (s lent) Commit(now bool) {
	r := s.r
	at := time.Now()
	if !now {
		at = r.w.nextSending()
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

func (s lent) Heartbeat(activity string)  { s.r.say(session.Text(activity, perdure.MaxText), nil) }
func (s lent) Progress(v json.RawMessage) { s.r.say("", v) }

func (s lent) Emit(ctx context.Context, typ string, v any) error {
	return Emit(s.within(ctx), typ, v)
}
func (s lent) Delta(ctx context.Context, text string) error { return Delta(s.within(ctx), text) }

// within makes sure that a context is this run's.
func (s lent) within(ctx context.Context) context.Context {
	if from(ctx) == s.r {
		return ctx
	}
	return context.WithValue(ctx, runKey{}, s.r)
}

// toldAgent hands the server's answer to the agent that asked for the commit.
func (r *run) toldAgent(res *api.CommitResult) (asked bool) {
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

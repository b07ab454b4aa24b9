// Package stepcontext has agents whose steps use the agent's context.
package stepcontext

import (
	"context"
	"net/http"
	"time"

	"github.com/perdure/perdure/agent"
)

func waits(ctx *agent.Context, in string) (string, error) {
	return agent.Step(ctx, "wait", func(context.Context) (string, error) {
		return in, agent.Sleep(ctx, time.Second) // want `agent.Sleep inside of a step`
	})
}

func calls(ctx *agent.Context, in string) (int, error) {
	return agent.Step(ctx, "get", func(context.Context) (int, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, in, nil) // want `the agent's context inside of a step`
		if err != nil {
			return 0, err
		}
		return len(r.URL.Path), agent.Delta(ctx, in) // want `the agent's context inside of a step`
	})
}

type talk struct{ ctx *agent.Context }

func (t *talk) ask() (string, error) {
	return agent.Step(t.ctx, "ask", func(ctx context.Context) (string, error) {
		child := agent.Spawn[string](t.ctx, "ask", "who?") // want `agent.Spawn inside of a step`
		_ = child
		return agent.IdempotencyKey(t.ctx), ctx.Err() // want `the agent's context inside of a step`
	})
}

func stops(ctx *agent.Context, in string) (string, error) {
	return agent.Step(ctx, "stop", func(context.Context) (string, error) {
		<-ctx.Done() // want `the agent's context inside of a step`
		return in, nil
	})
}

// Below are right ones.

func right(ctx *agent.Context, in string) (string, error) {
	outer := ctx
	return agent.Step(outer, "ask", func(ctx context.Context) (string, error) {
		if unread, err := outer.Unread(ctx, 0); err != nil || unread {
			return "", err
		}
		agent.Heartbeat(outer, "asking")
		if err := agent.Progress(outer, 1); err != nil {
			return "", err
		}
		return string(outer.RunID()) + agent.IdempotencyKey(ctx), agent.Delta(ctx, in)
	})
}

// An agent inside of a function that looks like a step's has a context of its own.
func register(ctx context.Context, add func(func(ctx *agent.Context, in string) error)) error {
	add(func(ctx *agent.Context, in string) error { return agent.Sleep(ctx, time.Second) })
	return ctx.Err()
}

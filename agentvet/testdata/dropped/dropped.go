// Package dropped has agents that drop errors.
package dropped

import (
	"context"
	"time"

	"github.com/perdure/perdure/agent"
)

func ask(context.Context) (int, error) { return 1, nil }

func drops(ctx *agent.Context, in string) (int, error) {
	agent.Step(ctx, "ask", ask)                           // want `the error of agent.Step is dropped`
	n, _ := agent.Step(ctx, "ask", ask)                   // want `the error of agent.Step is dropped`
	_, _ = agent.Step(ctx, "ask", ask)                    // want `the error of agent.Step is dropped`
	agent.Message(ctx, "assistant", in)                   // want `the error of agent.Message is dropped`
	_ = agent.Message(ctx, "assistant", in)               // want `the error of agent.Message is dropped`
	defer agent.Message(ctx, "assistant", "bye")          // want `the error of agent.Message is dropped`
	agent.Sleep(ctx, time.Second)                         // want `the error of agent.Sleep is dropped`
	m, _ := agent.Spawn[int](ctx, "ask", in).Join(ctx)    // want `the error of agent.Join is dropped`
	_ = agent.Saga(ctx, "s", func() error { return nil }) // want `the error of agent.Saga is dropped`
	history, _ := ctx.History()                           // want `the error of agent.History is dropped`
	return n + m + len(history), nil
}

// Below are right ones.

func looks(ctx *agent.Context, in string) (int, error) {
	_ = agent.Progress(ctx, 1)
	_ = agent.Delta(ctx, in)
	child := agent.Spawn[int](ctx, "ask", in)
	_ = child.Cancel(ctx)
	if _, err := agent.Step(ctx, "ask", ask); err != nil {
		return 0, err
	}
	return 1, agent.Message(ctx, "assistant", in)
}

package agent_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/worker"
)

// Misuse is never forgotten: neither if the agent's code ignores the error, nor if the agent waits
// after it and the next execution would find the step recorded.
//
//perdurevet:ignore agenterror the ignored error is what is tested
func TestIgnoredMisuseIsNotForgotten(t *testing.T) {
	t.Parallel()
	w := open(t)
	var done tally
	once := func(ctx *agent.Context, f func()) {
		_, _ = agent.Step(ctx, "once", func(context.Context) (int, error) { f(); return 1, nil })
	}
	ways := map[string]func(ctx *agent.Context){
		"a wait in a step": func(ctx *agent.Context) { once(ctx, func() { _ = agent.Sleep(ctx, time.Second) }) },
		"a step in a goroutine": func(ctx *agent.Context) {
			called := make(chan int)
			go func() { once(ctx, func() { done.add("goroutine") }); close(called) }()
			<-called
		},
		"a branch that is not joined": func(ctx *agent.Context) {
			agent.Go(ctx, "side", func(*agent.Context) error { return nil })
		},
		"a branch that is begun twice": func(ctx *agent.Context) {
			a := agent.Go(ctx, "side", func(*agent.Context) error { return nil })
			b := agent.Go(ctx, "side", func(*agent.Context) error { return nil })
			_, _ = a.Join(ctx), b.Join(ctx)
		},
		"the agent's key in a step": func(ctx *agent.Context) {
			once(ctx, func() { done.add("called with " + agent.IdempotencyKey(ctx)) })
		},
		"a result too early": func(ctx *agent.Context) { _, _ = agent.OnSignal[int](ctx, "n").Result() },
	}
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "ignores", func(ctx *agent.Context, how string) (string, error) {
			ways[how](ctx)
			return "fine", nil
		})
		worker.Agent(wk, "waits", func(ctx *agent.Context, how string) (string, error) {
			ways[how](ctx)
			return "fine", agent.Sleep(ctx, time.Millisecond)
		})
		worker.Agent(wk, "works", func(ctx *agent.Context, how string) (string, error) {
			ways[how](ctx)
			return agent.Step(ctx, "effect", func(context.Context) (string, error) {
				done.add("effect")
				return "fine", nil
			})
		})
		worker.Agent(wk, "fails", func(ctx *agent.Context, how string) (string, error) {
			ways[how](ctx)
			return "", errors.New("something else")
		})
	})
	for how := range ways {
		for _, kind := range []string{"ignores", "waits", "works", "fails"} {
			if (kind == "fails" || kind == "works") && how == "a branch that is not joined" {
				continue // it is no misuse before the agent completes
			}
			t.Run(kind+" after "+how, func(t *testing.T) {
				id := w.start(perdure.Submission{Kind: kind, Input: client.JSON(how)})
				w.defect(id, agent.CodeMisuse)
			})
		}
	}
	if len(done.all()) > 0 {
		t.Errorf("effects = %v, want none after a misuse", done.all())
	}
}

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
		"a wait in a step":  func(ctx *agent.Context) { once(ctx, func() { _ = agent.Sleep(ctx, time.Second) }) },
		"a step in a step":  func(ctx *agent.Context) { once(ctx, func() { once(ctx, func() {}) }) },
		"a spawn in a step": func(ctx *agent.Context) { once(ctx, func() { agent.Spawn[int](ctx, "nobody", 1) }) },
		"a callback in a step": func(ctx *agent.Context) {
			once(ctx, func() { agent.Callback[int](ctx, "door", time.Second) })
		},
		"a wait in a goroutine": func(ctx *agent.Context) {
			slept := make(chan error)
			//perdurevet:ignore agentgo the misuse is what is tested
			go func() { slept <- agent.Sleep(ctx, time.Second) }()
			<-slept
		},
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
		"a branch without a function": func(ctx *agent.Context) { _ = agent.Go(ctx, "side", nil).Join(ctx) },
		"a branch without a name": func(ctx *agent.Context) {
			_ = agent.Go(ctx, "", func(*agent.Context) error { return nil }).Join(ctx)
		},
		"a branch in a step": func(ctx *agent.Context) {
			once(ctx, func() { agent.Go(ctx, "side", func(*agent.Context) error { return nil }) })
		},
		"a branch that joins itself": func(ctx *agent.Context) {
			var b *agent.Branch
			begun := make(chan int)
			b = agent.Go(ctx, "side", func(ctx *agent.Context) error { <-begun; return b.Join(ctx) })
			close(begun)
			_ = b.Join(ctx)
		},
		"a name with a branch in it": func(ctx *agent.Context) { agent.UUID(ctx, "left#1//search") },
		"an undo of something else": func(ctx *agent.Context) {
			_ = agent.Saga(ctx, "s", func() error {
				_, _ = agent.Step(ctx, "text", func(context.Context) (string, error) {
					return "", nil
				}, agent.Undo(func(context.Context, int) error { return nil }))
				return nil
			})
		},
		"a step without a function": func(ctx *agent.Context) { _, _ = agent.Step[int](ctx, "none", nil) },
		"an undo without a function": func(ctx *agent.Context) {
			_ = agent.Saga(ctx, "s", func() error {
				one := func(context.Context) (int, error) { return 1, nil }
				_, err := agent.Step(ctx, "one", one, agent.Undo[int](nil))
				return err
			})
		},
		"a saga without a function": func(ctx *agent.Context) { _ = agent.Saga(ctx, "s", nil) },
		"a parallel without a function": func(ctx *agent.Context) {
			_, _ = agent.Parallel[int, int](ctx, "none", []int{1}, nil)
		},
		"a key outside of a step": func(ctx *agent.Context) { agent.IdempotencyKey(ctx) },
		"the agent's key in a step": func(ctx *agent.Context) {
			once(ctx, func() { done.add("called with " + agent.IdempotencyKey(ctx)) })
		},
		"a version in a step": func(ctx *agent.Context) { once(ctx, func() { agent.Version(ctx, "v", 1) }) },
		"a removal in a step": func(ctx *agent.Context) { once(ctx, func() { agent.Removed(ctx, "old") }) },
		"a result too early":  func(ctx *agent.Context) { _, _ = agent.OnSignal[int](ctx, "n").Result() },
		"the first 3 of 2": func(ctx *agent.Context) {
			_, _ = agent.FirstOK(ctx, 3, agent.OnSignal[int](ctx, "a"), agent.OnSignal[int](ctx, "b"))
		},
		"the first of none":   func(ctx *agent.Context) { _, _ = agent.SelectOK[int](ctx) },
		"a future of nothing": func(ctx *agent.Context) { _, _ = agent.JoinAll[int](ctx, nil) },
		"a name that is none": func(ctx *agent.Context) { _ = agent.Saga(ctx, "", func() error { return nil }) },
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

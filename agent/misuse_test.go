package agent_test

import (
	"context"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/worker"
)

// Misuse fails the run even if the agent's code ignores the error.
func TestIgnoredMisuseFailsRun(t *testing.T) {
	t.Parallel()
	w := open(t)
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
			go func() { slept <- agent.Sleep(ctx, time.Second) }()
			<-slept
		},
		"a step that is not waited for": func(ctx *agent.Context) {
			begun := make(chan int)
			go once(ctx, func() { close(begun); <-ctx.Done() })
			<-begun
		},
		"an undo of something else": func(ctx *agent.Context) {
			_ = agent.Saga(ctx, "s", func() error {
				_, _ = agent.Step(ctx, "text", func(context.Context) (string, error) {
					return "", nil
				}, agent.Undo(func(context.Context, int) error { return nil }))
				return nil
			})
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
	})
	for how := range ways {
		t.Run(how, func(t *testing.T) { failed(t, w.ends("ignores", how), perdure.Failed, agent.CodeMisuse, 1) })
	}
}

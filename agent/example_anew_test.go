package agent_test

import (
	"context"
	"time"

	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/worker"
)

// An agent that lives for months goes on as a new run now and then, so that its journal stays small.
func ExampleAnew() {
	type state struct{ Orders int }
	var w *worker.Worker // worker.New(client, options)
	register := func() {
		worker.Agent(w, "shop", func(ctx *agent.Context, in state) (int, error) {
			for range 1000 {
				order, err := agent.Signal[string](ctx, "order", 30*24*time.Hour)
				if err != nil {
					return in.Orders, err
				}
				if _, err := agent.Step(ctx, "ship", func(context.Context) (string, error) {
					return "shipped " + order, nil
				}); err != nil {
					return in.Orders, err
				}
				in.Orders++
			}
			return agent.Anew(ctx, in.Orders, in)
		})
	}
	_ = register
}

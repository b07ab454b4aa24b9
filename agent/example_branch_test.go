package agent_test

import (
	"context"

	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/worker"
)

// Branches are executed at the same time. Each has names of its own.
func ExampleGo() {
	bookFlight := func(context.Context) (string, error) { return "flight 204", nil }
	bookHotel := func(context.Context) (string, error) { return "room 7", nil }
	w := newWorld(func(w *worker.Worker) {
		worker.Agent(w, "trip", func(ctx *agent.Context, _ struct{}) (string, error) {
			var flight, hotel string
			left := agent.Go(ctx, "flight", func(ctx *agent.Context) (err error) {
				flight, err = agent.Step(ctx, "book", bookFlight)
				return err
			})
			right := agent.Go(ctx, "hotel", func(ctx *agent.Context) (err error) {
				hotel, err = agent.Step(ctx, "book", bookHotel)
				return err
			})
			if err := left.Join(ctx); err != nil {
				return "", err
			}
			if err := right.Join(ctx); err != nil {
				return "", err
			}
			return flight + ", " + hotel, nil
		})
	})
	defer w.close()

	w.end(w.start("trip", nil).RunID)
	// Output:
	// completed "flight 204, room 7"
}

package vectors

import (
	"context"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
)

func undo[T any](context.Context, T) error { return nil }

// book is a saga of two steps. Its last step, which has no undo, fails with an error if there is one.
func book(ctx *agent.Context, last func() error) error {
	return agent.Saga(ctx, "trip", func() error {
		if _, err := agent.Step(ctx, "flight", gives("LX1"), agent.Undo(undo[string])); err != nil {
			return err
		}
		if _, err := agent.Step(ctx, "hotel", gives("H7"), agent.Undo(undo[string])); err != nil {
			return err
		}
		return last()
	})
}

const booksTrip = `In the saga "trip" the step "flight" gives "LX1", and "hotel" gives "H7". Both can be undone.`

var sagaStories = []story{
	{
		name:  "saga-kept",
		words: []string{booksTrip, `The step "mail" after the saga gives true, which is the result.`},
		agent: func(ctx *agent.Context, _ execution) (any, error) {
			if err := book(ctx, func() error { return nil }); err != nil {
				return nil, err
			}
			return agent.Step(ctx, "mail", gives(true))
		},
		turns: []turn{{}},
	},
	{
		name: "saga-undone",
		words: []string{booksTrip, `Then its step "pay" fails with the permanent error out_of_stock, "there are none`,
			`left", and the saga with it. Both steps are undone, and the agent returns the error.`},
		agent: func(ctx *agent.Context, _ execution) (any, error) {
			return nil, book(ctx, func() error {
				_, err := agent.Step(ctx, "pay", failing(perdure.Permanent(errOut)))
				return err
			})
		},
		turns: []turn{{}},
	},
	{
		name: "saga-cancelled",
		words: []string{booksTrip, `Then it waits for the signal "go", an hour at most. The agent returns the error`,
			`of the saga.`},
		agent: func(ctx *agent.Context, _ execution) (any, error) {
			return nil, book(ctx, func() error {
				_, err := agent.Signal[any](ctx, "go", time.Hour)
				return err
			})
		},
		turns: []turn{{}, {what: "The run is asked to stop.", before: func(s *server) { s.state.cancel = true }}},
	},
}

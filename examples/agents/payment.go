package main

import (
	"context"
	"errors"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/worker"
)

// payment takes money for an order and ships it. If it can't be shipped, the money is given back
// and the goods are released, whatever crashes meanwhile.
var payment = Program{
	Name:     "payment",
	Input:    Order{"piano", 900},
	Register: func(w *worker.Worker, world World) { worker.Agent(w, "payment", world.pay) },
}

// An Order is the input of payment.
type Order struct {
	Item  string
	Price int
}

func (w World) pay(ctx *agent.Context, o Order) (receipt string, err error) {
	err = agent.Saga(ctx, "order", func() error {
		if _, err := agent.Step(ctx, "reserve", w.do("reserve "+o.Item), w.undo("release ")); err != nil {
			return err
		}
		charge, err := agent.Step(ctx, "charge", w.do("charge for "+o.Item), w.undo("refund "))
		if err != nil {
			return err
		}
		if _, err := agent.Step(ctx, "ship", func(ctx context.Context) (string, error) {
			if o.Item == "piano" {
				return "", perdure.Permanent(errors.New("a piano is too heavy"))
			}
			return w.do("ship " + o.Item)(ctx)
		}); err != nil {
			return err
		}
		receipt = charge
		return nil
	})
	return receipt, err
}

// undo undoes a step. It gets the step's result.
func (w World) undo(how string) agent.StepOptions {
	return agent.Undo(func(ctx context.Context, done string) error {
		return w.Do(ctx, agent.IdempotencyKey(ctx), how+done)
	})
}

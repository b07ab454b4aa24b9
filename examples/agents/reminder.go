package main

import (
	"context"
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/worker"
)

// reminder reminds of a bill after 3, 6 and 9 days, until it is paid. Meanwhile it is a row on the
// server's disk.
var reminder = Program{
	Name:     "reminder",
	Input:    "Ada",
	Register: func(w *worker.Worker, world World) { worker.Agent(w, "reminder", world.remind) },
	Meanwhile: func(ctx context.Context, c *client.Client, id perdure.RunID, day time.Duration) error {
		time.Sleep(7 * day)
		_, err := c.Signal(ctx, id, "paid", client.JSON("by card"))
		return err
	},
}

func (w World) remind(ctx *agent.Context, customer string) (string, error) {
	for n := range 3 {
		paid := agent.OnSignal[string](ctx, "paid")
		first, err := agent.Select(ctx, paid, agent.After(ctx, 3*w.Day))
		if err != nil {
			return "", err
		}
		if first == 0 {
			how, err := paid.Result()
			return "paid " + how, err
		}
		text := fmt.Sprintf("reminder %d for %s", n+1, customer)
		if _, err := agent.Step(ctx, "mail", w.do(text)); err != nil {
			return "", err
		}
	}
	return agent.Step(ctx, "collect", w.do("a lawyer for "+customer))
}

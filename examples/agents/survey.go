package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/worker"
)

// survey has two surveyors measure a field within five days. One comes too late: the agent goes on
// with what it has, and takes the late result if somebody adopts it within another ten.
var survey = Program{
	Name:  "survey",
	Input: []string{"quick", "slow"},
	Register: func(w *worker.Worker, world World) {
		worker.Handle(w, "survey-field", world.measure)
		worker.Agent(w, "survey", world.survey)
	},
	Meanwhile: func(ctx context.Context, c *client.Client, id perdure.RunID, day time.Duration) error {
		for {
			time.Sleep(day / 10)
			runs, err := c.List(ctx, client.Filter{Kind: "survey-field", State: perdure.TimedOut, ParentRunID: id})
			if err != nil {
				return err
			}
			for _, r := range runs.Runs {
				late, err := c.LateResults(ctx, r.RunID)
				if err != nil {
					return err
				}
				if len(late) == 0 {
					continue
				}
				if _, err := c.Adopt(ctx, r.RunID, 1); err != nil {
					return err
				}
				_, err = c.Signal(ctx, id, "adopted", client.JSON(true))
				return err
			}
		}
	},
}

func (w World) survey(ctx *agent.Context, surveyors []string) (string, error) {
	var asked []*agent.Future[int]
	for _, who := range surveyors { // runs of the class task have an hour at most
		asked = append(asked, agent.Spawn[int](ctx, "survey-field", who,
			agent.Options{Class: perdure.Agent, Timeout: 5 * w.Day, MaxAttempts: 1}))
	}
	found, err := agent.JoinAllSettled(ctx, asked...)
	if err != nil {
		return "", err
	}
	if _, err := agent.Signal[any](ctx, "adopted", 10*w.Day); err != nil && !errors.Is(err, agent.ErrSignalTimeout) {
		return "", err
	}
	sum, late := 0, 0
	for n, f := range asked {
		switch err := found.Errors[n]; {
		case err == nil:
			sum += found.Results[n]
		case errors.Is(err, agent.ErrTaskTimedOut{}):
			v, ok, err := f.Late(ctx)
			if err != nil {
				return "", err
			}
			if ok {
				sum += v
				late++
			}
		default:
			return "", err
		}
	}
	return fmt.Sprintf("%d acres, %d late", sum, late), nil
}

// measure goes on when its time is over, because its work is worth keeping.
func (w World) measure(_ context.Context, who string) (int, error) {
	if who == "slow" {
		time.Sleep(7 * w.Day)
	}
	return len(who), nil
}

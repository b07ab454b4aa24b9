package main

import (
	"context"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/worker"
)

// approval asks a clerk, and the director if the clerk has not decided within a day. The director
// has ten days.
var approval = Program{
	Name:     "approval",
	Input:    Order{"desk", 300},
	Register: func(w *worker.Worker, world World) { worker.Agent(w, "approval", world.buy) },
	Meanwhile: func(ctx context.Context, c *client.Client, id perdure.RunID, day time.Duration) error {
		for { // the director looks now and then
			open, err := c.Approvals(ctx, client.ApprovalFilter{RunID: id})
			if err != nil {
				return err
			}
			for _, a := range open.Approvals {
				if a.Title == "Director: buy this?" {
					_, err := c.Decide(ctx, a.ID, api.Decide{Decision: perdure.Approve, ActionHash: a.ActionHash})
					return err
				}
			}
			time.Sleep(day / 10)
		}
	},
}

func (w World) buy(ctx *agent.Context, o Order) (string, error) {
	for _, ask := range []struct {
		who  string
		days time.Duration
	}{{"Clerk", 1}, {"Director", 10}} {
		verdict, err := agent.Approve(ctx, agent.Approval{Name: "buy " + ask.who, Title: ask.who + ": buy this?",
			Action: o, Timeout: ask.days * w.Day})
		if err != nil {
			return "", err
		}
		if verdict.Approved {
			return agent.Step(ctx, "buy", w.do("buy a "+o.Item))
		}
		if !verdict.TimedOut {
			return "rejected: " + verdict.Comment, nil
		}
	}
	return "nobody has decided", nil
}

package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/worker"
)

// research asks five sources at once and is content with the first three answers. One of the
// sources is closed and one takes too long, and the agent waits for neither.
var research = Program{
	Name:  "research",
	Input: "whales",
	Register: func(w *worker.Worker, world World) {
		worker.Handle(w, "research-source", world.source)
		worker.Agent(w, "research", world.research)
	},
}

// A Question is for one source.
type Question struct{ Source, Topic string }

func (w World) research(ctx *agent.Context, topic string) (string, error) {
	var asked []*agent.Future[string]
	for _, source := range []string{"atlas", "diary", "forum", "letter", "paper"} {
		asked = append(asked, agent.Spawn[string](ctx, "research-source", Question{source, topic},
			agent.Timeout(time.Hour)))
	}
	first, err := agent.FirstOK(ctx, 3, asked...)
	if err != nil {
		return "", err
	}
	for _, late := range first.Remaining {
		if err := late.Cancel(ctx); err != nil {
			return "", err
		}
	}
	return agent.Step(ctx, "summarize", func(context.Context) (string, error) {
		return strings.Join(slices.Sorted(slices.Values(first.Values)), ", "), nil
	})
}

func (w World) source(ctx context.Context, q Question) (string, error) {
	var takes time.Duration
	switch q.Source {
	case "forum":
		return "", perdure.Permanent(errors.New("the forum is closed"))
	case "atlas":
		takes = w.Day / 2
	case "diary":
		takes = w.Day / 4
	case "letter":
		takes = 50 * time.Minute
	}
	select {
	case <-time.After(takes):
		return "the " + q.Source + " knows " + q.Topic, nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

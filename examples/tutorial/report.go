package main

import (
	"context"
	"strings"
	"time"

	"github.com/perdure/perdure/agent"
)

// A Report is what came of it.
type Report struct {
	Text    string
	Missing int // sources that said nothing
	URL     string
}

// report has sources searched, writes down what was found, asks a person, and publishes.
func report(ctx *agent.Context, topic string) (Report, error) {
	var searches []*agent.Future[string]
	for _, source := range []string{"library", "web", "archive"} {
		searches = append(searches, agent.Spawn[string](ctx, "search", Query{source, topic},
			agent.Timeout(15*time.Second)))
	}
	found, err := agent.JoinAllSettled(ctx, searches...)
	if err != nil {
		return Report{}, err
	}
	var notes []string
	for i, note := range found.Results {
		if found.Errors[i] == nil {
			notes = append(notes, note)
		}
	}
	text, err := agent.Step(ctx, "write", func(ctx context.Context) (string, error) {
		return write(ctx, strings.Join(notes, "; ")+".")
	})
	if err != nil {
		return Report{}, err
	}
	out := Report{Text: text, Missing: len(searches) - len(notes)}

	decision, err := agent.Approve(ctx, agent.Approval{Title: "Publish this report?", Action: text,
		Timeout: 30 * time.Minute})
	if err != nil || !decision.Approved {
		return out, err
	}
	out.URL, err = agent.Step(ctx, "publish", func(ctx context.Context) (string, error) {
		return publish(ctx, agent.IdempotencyKey(ctx), text)
	})
	return out, err
}

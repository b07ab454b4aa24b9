package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/worker"
)

// chat answers the messages on its thread, until five days pass without a word.
var chat = Program{
	Name:     "chat",
	OnThread: true,
	Register: func(w *worker.Worker, world World) { worker.Agent(w, "chat", world.chat) },
	Meanwhile: func(ctx context.Context, c *client.Client, id perdure.RunID, day time.Duration) error {
		r, err := c.Get(ctx, id)
		if err != nil {
			return err
		}
		for _, text := range []string{"hello", "and goodbye"} {
			if _, err := c.AppendMessage(ctx, r.ThreadID,
				perdure.Message{Role: perdure.RoleUser, Content: client.JSON(text)}); err != nil {
				return err
			}
		}
		return nil
	},
}

// chat returns how many messages it has answered.
func (w World) chat(ctx *agent.Context, _ any) (int, error) {
	for turns := 0; ; turns++ {
		said := agent.OnMessage[string](ctx)
		n, err := agent.Select(ctx, said, agent.After(ctx, 5*w.Day))
		if err != nil {
			return turns, err
		}
		if n == 1 {
			return turns, nil
		}
		text, err := said.Result()
		if err != nil {
			return turns, err
		}
		answer, err := agent.Step(ctx, "answer", func(ctx context.Context) (string, error) { return model(ctx, text) },
			agent.Retry{Attempts: 4})
		if err != nil {
			return turns, err
		}
		if err := agent.Message(ctx, perdure.RoleAssistant, answer); err != nil {
			return turns, err
		}
	}
}

// model stands for a model. It streams its answer, word by word.
func model(ctx context.Context, text string) (string, error) {
	answer := fmt.Sprintf("You said %q.", text)
	for word := range strings.SplitSeq(answer, " ") {
		if err := agent.Delta(ctx, word+" "); err != nil {
			return "", err
		}
	}
	return answer, nil
}

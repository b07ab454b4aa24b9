package main

import (
	"context"
	"log/slog"
	"time"
)

// What a model would do. Each call takes its time, and says on the worker's terminal that it was made.

// outline plans an article.
func outline(ctx context.Context, topic string) ([]string, error) {
	return []string{"What is " + topic + "?", "Who needs " + topic + "?", "What comes after " + topic + "?"},
		model(ctx, "outline "+topic)
}

// write writes about something.
func write(ctx context.Context, about string) (string, error) {
	return about + " It is a long story.", model(ctx, "write "+about)
}

func model(ctx context.Context, prompt string) error {
	slog.Info("asking the model", "prompt", prompt)
	select {
	case <-time.After(time.Second):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

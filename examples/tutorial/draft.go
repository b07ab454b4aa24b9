package main

import (
	"context"
	"strings"

	"github.com/perdure/perdure/agent"
)

// draft writes an article, one paragraph at a time.
func draft(ctx *agent.Context, topic string) (string, error) {
	headings, err := agent.Step(ctx, "outline", func(ctx context.Context) ([]string, error) {
		return outline(ctx, topic)
	})
	if err != nil {
		return "", err
	}
	var text []string
	for _, heading := range headings {
		paragraph, err := agent.Step(ctx, "paragraph", func(ctx context.Context) (string, error) {
			return write(ctx, heading)
		})
		if err != nil {
			return "", err
		}
		text = append(text, paragraph)
	}
	return strings.Join(text, " "), nil
}

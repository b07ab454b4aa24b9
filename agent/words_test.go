package agent_test

import (
	"context"

	"github.com/perdure/perdure/agent"
)

// give executes a step with a result.
func give[T any](ctx *agent.Context, name string, v T, opts ...agent.StepOption) error {
	_, err := agent.Step(ctx, name, func(context.Context) (T, error) { return v, nil }, opts...)
	return err
}

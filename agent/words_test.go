package agent_test

import (
	"context"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/worker"
)

// give executes a step with a result.
func give[T any](ctx *agent.Context, name string, v T, opts ...agent.StepOption) error {
	_, err := agent.Step(ctx, name, func(context.Context) (T, error) { return v, nil }, opts...)
	return err
}

// Errors name things as the author of an agent knows them: steps, children and functions of the
// package.
func TestMisuseMessages(t *testing.T) {
	t.Parallel()
	w := open(t)
	ways := map[string]struct {
		do   func(ctx *agent.Context) error
		code perdure.Code
		says string
	}{
		"no name": {func(ctx *agent.Context) error {
			return give(ctx, "", 1)
		}, agent.CodeMisuse, "a step needs a name"},
		"no kind": {func(ctx *agent.Context) error {
			_, err := agent.Spawn[int](ctx, "", 1).Join(ctx)
			return err
		}, perdure.CodeInvalid, "a child needs a kind"},
		"no future": {func(ctx *agent.Context) error {
			_, err := agent.JoinAll[int](ctx, nil)
			return err
		}, agent.CodeMisuse, "JoinAll: future 1 of 1 is nil"},
		"a channel": {func(ctx *agent.Context) error {
			return give(ctx, "s", make(chan int))
		}, "invalid_result", "step s#1: its result, a chan int, can't be recorded: json: unsupported type: chan int"},
		"a NUL": {func(ctx *agent.Context) error {
			return give(ctx, "s", "a\x00b")
		}, perdure.CodeInvalid, "step s#1: its result, a string, has an escaped NUL"},
		"40 MiB": {func(ctx *agent.Context) error {
			return give(ctx, "s", strings.Repeat("x", 40<<20))
		}, perdure.CodeTooLarge, "step s#1: its result, a string, has 41943042 bytes; a value takes 1048576"},
		"a byte too large": {func(ctx *agent.Context) error {
			return give(ctx, "s", strings.Repeat("x", perdure.MaxValue-2))
		}, perdure.CodeTooLarge, "step s#1: its result has 1048576 bytes"},
		"another's undo": {func(ctx *agent.Context) error {
			return agent.Saga(ctx, "s", func() error {
				return give(ctx, "s", "text", agent.Undo(func(context.Context, int) error { return nil }))
			})
		}, agent.CodeMisuse, "step s#1 gives a string, and its Undo takes an int"},
	}
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "wrong", func(ctx *agent.Context, how string) (string, error) { return "", ways[how].do(ctx) })
	})
	for how, x := range ways {
		t.Run(how, func(t *testing.T) {
			id := w.start(perdure.Submission{Kind: "wrong", Input: client.JSON(how)})
			if message := w.defect(id, x.code); !strings.HasPrefix(message, x.says) {
				t.Errorf("error message = %q, want it to begin with %q", message, x.says)
			}
		})
	}
}

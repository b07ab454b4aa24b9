package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/worker"
)

// A result that can't be recorded is a permanent error of its step, and recorded as one. An agent that
// handles it goes on, and a replay gets the same error.
func TestUnrecordableResultIsAFact(t *testing.T) {
	t.Parallel()
	w := open(t)
	results := map[string]any{
		"too large":         strings.Repeat("x", perdure.MaxValue),
		"too large by some": strings.Repeat("x", perdure.MaxValue-2),
		"too deep":          nested(60),
		"a NUL":             "a\x00b",
		"no JSON":           make(chan int),
		"half a JSON":       json.RawMessage(`{"city":`),
	}
	codes := map[string]perdure.Code{
		"too large": perdure.CodeTooLarge, "too large by some": perdure.CodeTooLarge, "a NUL": perdure.CodeInvalid,
		"too deep": "invalid_result", "no JSON": "invalid_result", "half a JSON": "invalid_result",
	}
	var calls tally
	get := func(ctx *agent.Context, what string) error {
		_, err := agent.Step(ctx, "get", func(context.Context) (any, error) {
			calls.add(what)
			return results[what], nil
		}, agent.Retry{Attempts: 3})
		return err
	}
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "handles", func(ctx *agent.Context, what string) (perdure.Code, error) {
			err := get(ctx, what)
			var refused *perdure.Error
			if !errors.As(err, &refused) {
				return "", perdure.Permanent(errors.New("the step has no error with a code"))
			}
			if err := give(ctx, "instead", 1); err != nil {
				return "", err
			}
			return refused.Code, agent.Sleep(ctx, time.Millisecond)
		})
		worker.Agent(wk, "fails", func(ctx *agent.Context, what string) (int, error) { return 1, get(ctx, what) })
	})
	for what, code := range codes {
		t.Run(what, func(t *testing.T) {
			completed(t, w.ends("handles", what), `"`+string(code)+`"`)
			failed(t, w.ends("fails", what), perdure.Failed, code, 1)
			if n := calls.of(what); n != 2 {
				t.Errorf("the function was called %d times in two runs, want once in each", n)
			}
		})
	}
}

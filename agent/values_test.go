package agent_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/worker"
)

// nested returns JSON arrays nested to a depth.
func nested(depth int) json.RawMessage {
	return json.RawMessage(strings.Repeat("[", depth) + strings.Repeat("]", depth))
}

// An agent can take every value that the server accepts from outside, however deep or large.
func TestDeepAndLargeValuesFromOutside(t *testing.T) {
	t.Parallel()
	w := open(t)
	tokens := make(chan string, 1)
	w.work(func(wk *worker.Worker) {
		worker.Handle(wk, "deep", func(_ context.Context, depth int) (json.RawMessage, error) {
			return nested(depth), nil
		})
		worker.Agent(wk, "signalled", func(ctx *agent.Context, _ struct{}) (int, error) {
			v, err := agent.Signal[json.RawMessage](ctx, "go", time.Minute)
			if err != nil {
				return 0, err
			}
			return len(v), agent.Sleep(ctx, time.Millisecond)
		})
		worker.Agent(wk, "parent", func(ctx *agent.Context, depth int) (int, error) {
			v, err := agent.Spawn[json.RawMessage](ctx, "deep", depth).Join(ctx)
			if err != nil {
				return 0, err
			}
			return len(v), agent.Sleep(ctx, time.Millisecond)
		})
		worker.Agent(wk, "called", func(ctx *agent.Context, _ struct{}) (int, error) {
			answer := agent.Callback[json.RawMessage](ctx, "door", time.Minute)
			token := answer.Token()
			if _, err := agent.Step(ctx, "tell", func(context.Context) (int, error) {
				tokens <- token
				return 0, nil
			}); err != nil {
				return 0, err
			}
			v, err := answer.Join(ctx)
			if err != nil {
				return 0, err
			}
			return len(v), agent.Sleep(ctx, time.Millisecond)
		})
	})
	for _, depth := range []int{1, 38, 41, 50, 59, 61, 64} {
		id := w.start(perdure.Submission{Kind: "signalled"})
		if _, err := w.c.Signal(w.ctx, id, "go", nested(depth)); err != nil {
			t.Fatalf("depth %d: %v", depth, err)
		}
		completed(t, w.end(id), string(client.JSON(2*depth)))
		completed(t, w.ends("parent", depth), string(client.JSON(2*depth)))
		id = w.start(perdure.Submission{Kind: "called"})
		if _, err := w.c.Callback(w.ctx, next(w, tokens), api.UseCallback{Result: nested(depth)}); err != nil {
			t.Fatalf("depth %d: %v", depth, err)
		}
		completed(t, w.end(id), string(client.JSON(2*depth)))
	}
	id := w.start(perdure.Submission{Kind: "called"})
	if _, err := w.c.Callback(w.ctx, next(w, tokens),
		api.UseCallback{Result: client.JSON(strings.Repeat("x", perdure.MaxValue-2))}); err != nil {
		t.Fatal(err)
	}
	completed(t, w.end(id), string(client.JSON(perdure.MaxValue)))
}

// Every execution sees the same bytes of a value.
func TestValuesAreTheSameInEveryExecution(t *testing.T) {
	t.Parallel()
	w := open(t)
	const message = `{ "role": "assistant", "content": "a < b" }`
	w.work(func(wk *worker.Worker) {
		worker.Handle(wk, "echo", func(_ context.Context, s string) (string, error) { return s, nil })
		worker.Agent(wk, "steps", func(ctx *agent.Context, _ struct{}) (string, error) {
			v, err := agent.Step(ctx, "model", func(context.Context) (json.RawMessage, error) {
				return json.RawMessage(message), nil
			})
			if err != nil {
				return "", err
			}
			return agent.Spawn[string](ctx, "echo", string(v)).Join(ctx)
		})
		worker.Agent(wk, "types", func(ctx *agent.Context, _ struct{}) (bool, error) {
			v, err := agent.Step(ctx, "any", func(context.Context) (any, error) { return struct{ N int }{1}, nil })
			if err != nil {
				return false, err
			}
			_, isMap := v.(map[string]any)
			return isMap, nil
		})
		worker.Agent(wk, "signals", func(ctx *agent.Context, _ struct{}) (string, error) {
			v, err := agent.Signal[json.RawMessage](ctx, "s", time.Minute)
			if err != nil {
				return "", err
			}
			return agent.Spawn[string](ctx, "echo", string(v)).Join(ctx)
		})
	})
	reached(t, w.ends("steps", nil), perdure.Completed)
	completed(t, w.ends("types", nil), "true")
	id := w.start(perdure.Submission{Kind: "signals"})
	if _, err := w.c.Signal(w.ctx, id, "s", json.RawMessage(message)); err != nil {
		t.Fatal(err)
	}
	reached(t, w.end(id), perdure.Completed)
}

package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/worker"
)

// A kind and an input that came from a model are data. A malformed one is an ordinary error of that
// child, and an agent that handles it completes.
func TestMalformedSpawnIsOrdinaryError(t *testing.T) {
	t.Parallel()
	w := open(t)
	type call struct {
		kind  string
		input any
	}
	calls := map[string]call{
		"no kind":             {"", 1},
		"a kind with a quote": {`wea"ther`, 1},
		"a kind of our own":   {"_frame", 1},
		"a long kind":         {strings.Repeat("x", 500), 1},
		"half a JSON":         {"echo", json.RawMessage(`{"city":`)},
		"no JSON":             {"echo", json.RawMessage(``)},
		"a NUL":               {"echo", "a\x00b"},
		"a large input":       {"echo", strings.Repeat("x", perdure.MaxValue)},
		"a deep input":        {"echo", nested(2000)},
		"a channel":           {"echo", make(chan int)},
	}
	w.work(func(wk *worker.Worker) {
		worker.Handle(wk, "echo", func(_ context.Context, in any) (any, error) { return in, nil })
		worker.Agent(wk, "chat", func(ctx *agent.Context, what string) (string, error) {
			bad := agent.Spawn[string](ctx, calls[what].kind, calls[what].input)
			good := agent.Spawn[string](ctx, "echo", "good")
			did, err := agent.JoinAllSettled(ctx, bad, good)
			if err != nil {
				return "", err
			}
			_, alone := bad.Join(ctx)
			if alone == nil || bad.ID() != "" || good.Key() != "echo#1" {
				return "", fmt.Errorf("joined alone: %w, id %q, key of the good one %q", alone, bad.ID(), good.Key())
			}
			if err := agent.Sleep(ctx, time.Millisecond); err != nil {
				return "", err
			}
			return fmt.Sprint(did.Errors[0] != nil, did.Results[1], did.Failed), nil
		})
	})
	for what := range calls {
		t.Run(what, func(t *testing.T) { completed(t, w.ends("chat", what), `"truegood1"`) })
	}
}

// A content that came from a model and can't be kept is an ordinary error too.
func TestMalformedReportIsOrdinaryError(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "chat", func(ctx *agent.Context, _ json.RawMessage) (int, error) {
			errs := 0
			for _, err := range []error{
				agent.Message(ctx, "assistant", "a\x00b"),
				agent.Delta(ctx, "a\x00b"),
				agent.Emit(ctx, "x:line", "a\x00b"),
				agent.Progress(ctx, "a\x00b"),
			} {
				if err != nil && perdure.CodeOf(err) == perdure.CodeInvalid {
					errs++
				}
			}
			return errs, agent.Message(ctx, "assistant", "good")
		})
	})
	completed(t, w.end(w.start(perdure.Submission{Kind: "chat", ThreadID: w.thread()})), "4")
}

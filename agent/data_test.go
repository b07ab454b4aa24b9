package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/client"
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

// The server refuses a child that it alone can judge. That is the error of this child, in every
// execution, and everything else of the commit is kept.
func TestRefusedChildIsItsOwnError(t *testing.T) {
	t.Parallel()
	w := open(t)
	var done tally
	type in struct {
		How    string
		Thread perdure.ThreadID
	}
	w.work(func(wk *worker.Worker) {
		worker.Handle(wk, "echo", func(_ context.Context, in string) (string, error) { return in, nil })
		worker.Agent(wk, "grandparent", func(ctx *agent.Context, how string) (string, error) {
			return agent.Spawn[string](ctx, "parent", in{how, ctx.ThreadID()},
				agent.Options{Class: perdure.Agent}).Join(ctx)
		})
		worker.Agent(wk, "parent", func(ctx *agent.Context, in in) (string, error) {
			opt := agent.Options{ThreadID: in.Thread} // busy with the grandparent
			switch in.How {
			case "no such thread":
				opt.ThreadID = "01a1e3cb-85d2-7002-ad96-541bb7b4be5b"
			case "a long time":
				opt = agent.Options{Timeout: 1e6 * time.Hour}
			}
			first := agent.Spawn[string](ctx, "echo", "first")
			bad := agent.Spawn[string](ctx, "echo", "bad", opt)
			if err := agent.Emit(ctx, "x:kept", 1); err != nil {
				return "", err
			}
			good := agent.Spawn[string](ctx, "echo", "good")
			if in.How != "joined at once" {
				if id := bad.ID(); id != "" {
					return "", perdure.Permanent(fmt.Errorf("the refused child has the id %s, want none", id))
				}
				if err := done.do(ctx, "step"); err != nil {
					return "", err
				}
			}
			did, err := agent.JoinAllSettled(ctx, first, bad, good)
			if err != nil {
				return "", err
			}
			if err := agent.Sleep(ctx, time.Millisecond); err != nil {
				return "", err
			}
			var refused agent.ErrTaskFailed
			if !errors.As(did.Errors[1], &refused) || refused.State != perdure.Failed {
				return "", perdure.Permanent(fmt.Errorf("error of the refused child: %w", did.Errors[1]))
			}
			ok, err := agent.SelectOK(ctx, bad, good)
			if err != nil || ok.Index != 1 {
				return "", perdure.Permanent(fmt.Errorf("first that succeeds: %d, %w", ok.Index, err))
			}
			_, err = bad.Join(ctx)
			return fmt.Sprint(refused.Failure.Code, did.Results[0], did.Results[2],
				errors.Is(err, agent.ErrTaskFailed{}),
				len(w.lines(ctx.RunID(), "x:kept"))), nil
		})
	})
	for how, code := range map[string]perdure.Code{"joined at once": perdure.CodeThreadBusy,
		"flushed": perdure.CodeThreadBusy, "no such thread": perdure.CodeNotFound, "a long time": perdure.CodeInvalid} {
		t.Run(how, func(t *testing.T) {
			run := w.end(w.start(perdure.Submission{Kind: "grandparent", Input: client.JSON(how),
				ThreadID: w.thread()}))
			completed(t, run, fmt.Sprintf(`"%sfirstgoodtrue 1"`, code))
			if run.Attempt != 1 {
				t.Errorf("attempt = %d, want 1", run.Attempt)
			}
		})
	}
}

// A refused child that nobody joins is not forgotten.
func TestUnjoinedRefusedChildFailsRun(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "boss", func(ctx *agent.Context, how string) (string, error) {
			agent.Spawn[int](ctx, "kid", 1, agent.Timeout(1e6*time.Hour))
			if how == "later" {
				if err := agent.Sleep(ctx, time.Millisecond); err != nil {
					return "", err
				}
			}
			return "as if nothing were", nil
		})
	})
	for _, how := range []string{"at once", "later"} {
		run := w.ends("boss", how)
		failed(t, run, perdure.Failed, perdure.CodeInvalid, 1)
		if run.Error != nil && !strings.Contains(run.Error.Message, "greatest timeout") {
			t.Errorf("error = %+v, want the server's reason", run.Error)
		}
	}
}

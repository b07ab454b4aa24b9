package agent_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/eventually"
	"github.com/perdure/perdure/worker"
)

func callback(v any) api.UseCallback { return api.UseCallback{Result: client.JSON(v)} }

func refusal(code perdure.Code, message string) api.UseCallback {
	return api.UseCallback{Error: &perdure.Failure{Code: code, Message: message}}
}

// suspended waits until a run sleeps.
func (w *scene) suspended(id perdure.RunID) {
	w.t.Helper()
	eventually.True(w.t, "the run sleeps", func() bool {
		run, err := w.c.Get(w.ctx, id)
		return err == nil && run.State == perdure.Suspended
	})
}

// A signal comes before the run has begun, while it works, while it waits: each is taken, once, the oldest first.
func TestSignalsAreKeptUntilTheyAreAskedFor(t *testing.T) {
	t.Parallel()
	w := open(t)
	working, goOn := make(chan struct{}), make(chan struct{})
	id := w.start(perdure.Submission{Kind: "listens"})
	w.signal(id, "word", "before")
	w.signal(id, "other", "not for us")
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "listens", func(ctx *agent.Context, _ struct{}) (out []string, err error) {
			if _, err := agent.Step(ctx, "work", func(context.Context) (int, error) {
				close(working)
				<-goOn
				return 0, nil
			}); err != nil {
				return nil, err
			}
			for range 4 {
				word, err := agent.Signal[string](ctx, "word", time.Hour)
				if err != nil {
					return nil, err
				}
				out = append(out, word)
			}
			return out, nil
		})
	})
	next(w, working)
	w.signal(id, "word", "while it works")
	w.signal(id, "word", "and again")
	close(goOn)
	w.suspended(id)
	w.signal(id, "word", "while it waits")
	completed(t, w.end(id), `["before","while it works","and again","while it waits"]`)
	if _, err := w.c.Signal(w.ctx, id, "word", nil); client.CodeOf(err) != perdure.CodeRunEnded {
		t.Errorf("after the end: %v", err)
	}
}

func TestASignalThatIsSentTwiceCountsOnce(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "listens", func(ctx *agent.Context, _ struct{}) (out []int, err error) {
			for range 3 {
				n, err := agent.Signal[int](ctx, "n", time.Hour)
				if err != nil {
					return nil, err
				}
				out = append(out, n)
			}
			return out, nil
		})
	})
	id := w.start(perdure.Submission{Kind: "listens"})
	key := client.IdempotencyKey("order-1")
	w.signal(id, "n", 1, key)
	w.signal(id, "n", 1, key) // counts once
	w.suspended(id)
	w.signal(id, "n", 1, key)
	w.signal(id, "n", 2) // without a key each counts
	w.signal(id, "n", 2)
	completed(t, w.end(id), `[1,2,2]`)
}

func TestACallbackIsAnsweredOnce(t *testing.T) {
	t.Parallel()
	w := open(t)
	tokens, goOn := make(chan string, 1), make(chan struct{})
	var seen tally
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "asks", func(ctx *agent.Context, _ struct{}) (int, error) {
			door := agent.Callback[int](ctx, "answer", time.Hour)
			seen.add(door.Token())
			if _, err := agent.Step(ctx, "ask", func(context.Context) (int, error) {
				tokens <- door.Token()
				<-goOn
				return 0, nil
			}); err != nil {
				return 0, err
			}
			n, err := door.Join(ctx)
			if err != nil {
				return 0, err
			}
			if err := agent.Sleep(ctx, time.Millisecond); err != nil {
				return 0, err
			}
			seen.add(door.Token())
			return n, nil
		})
	})
	id := w.start(perdure.Submission{Kind: "asks"})
	token := next(w, tokens)
	for range 2 { // before anybody waits for it; again is no error
		if _, err := w.c.Callback(w.ctx, token, callback(42)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.c.Callback(w.ctx, token, callback(43)); err == nil {
		t.Error("another answer was taken")
	}
	close(goOn)
	completed(t, w.end(id), "42")
	if len(seen.n) != 1 || seen.of(token) < 3 {
		t.Errorf("tokens: %v", seen.n)
	}
}

// A wait that nobody answers ends, and the agent decides what that means.
func TestAWaitThatNobodyAnswersEnds(t *testing.T) {
	agents := map[string]struct {
		wait func(ctx *agent.Context) error
		took time.Duration
	}{
		"a signal":          {func(ctx *agent.Context) error { _, err := agent.Signal[int](ctx, "x", time.Minute); return err }, time.Minute},
		"a signal, default": {func(ctx *agent.Context) error { _, err := agent.Signal[int](ctx, "x", 0); return err }, 10 * time.Minute},
		"the start":         {func(ctx *agent.Context) error { _, err := agent.Signal[int](ctx, agent.StartTask, 0); return err }, 5 * time.Minute},
		"a callback": {func(ctx *agent.Context) error {
			_, err := agent.Callback[int](ctx, "answer", time.Hour).Join(ctx)
			return err
		}, time.Hour},
		"a callback, joined": {func(ctx *agent.Context) error {
			_, err := agent.JoinAll(ctx, agent.Callback[int](ctx, "answer", time.Hour))
			return err
		}, time.Hour},
		"a race": {func(ctx *agent.Context) error {
			_, err := agent.Race(ctx, time.Minute, agent.Spawn[int](ctx, "nobody", 1))
			return err
		}, time.Minute},
		"the one of two that ends first": {func(ctx *agent.Context) error {
			_, err := agent.Select(ctx, agent.Callback[int](ctx, "answer", time.Hour), agent.Callback[int](ctx, "answer", time.Minute))
			return err
		}, time.Minute},
	}
	for name, x := range agents {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(w *scene) {
				stop := w.work(func(wk *worker.Worker) {
					worker.Agent(wk, "waits", func(ctx *agent.Context, handle bool) (string, error) {
						err := x.wait(ctx)
						if handle && errors.Is(err, agent.ErrTimeout) {
							return "handled", nil
						}
						return "", fmt.Errorf("waiting: %w", err)
					})
				})
				defer stop()
				began := time.Now()
				completed(w.t, w.ends("waits", true), `"handled"`)
				if took := time.Since(began); took < x.took || took > x.took+10*time.Second {
					t.Errorf("it took %s", took)
				}
				// Unhandled it is the end, and not tried again.
				failed(w.t, w.ends("waits", false), perdure.TimedOut, perdure.CodeWaitTimeout, 1)
			})
		})
	}
}

func TestASignalTimeoutIsATimeout(t *testing.T) {
	if !errors.Is(agent.ErrSignalTimeout, agent.ErrTimeout) || errors.Is(agent.ErrTimeout, agent.ErrSignalTimeout) || errors.Is(agent.ErrTimeout, agent.ErrCancelled) {
		t.Error("the errors are not what they say")
	}
}

func TestAnApprovalThatNobodyDecidesIsWhatItsDefaultSays(t *testing.T) {
	virtual(t, func(w *scene) {
		stop := w.work(func(wk *worker.Worker) {
			worker.Agent(wk, "asks", func(ctx *agent.Context, def string) (string, error) {
				d, err := agent.Approve(ctx, agent.Approval{Title: "Push?", Action: "git push", Default: def, Timeout: time.Minute})
				return fmt.Sprint(d.Approved, d.TimedOut, d.By == nil), err
			})
		})
		defer stop()
		completed(w.t, w.ends("asks", ""), `"false true true"`)
		completed(w.t, w.ends("asks", perdure.Approve), `"true true true"`)
	})
}

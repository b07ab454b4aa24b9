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
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/stage"
	"github.com/perdure/perdure/worker"
)

// callback returns an answer with a result.
func callback(v any) api.UseCallback { return api.UseCallback{Result: client.JSON(v)} }

// refusal returns an answer with an error.
func refusal(code perdure.Code, message string) api.UseCallback {
	return api.UseCallback{Error: &perdure.Failure{Code: code, Message: message}}
}

// suspended waits until a run is suspended.
func (w *scene) suspended(id perdure.RunID) {
	w.t.Helper()
	eventually.True(w.t, "run "+string(id)+" is suspended", func() bool {
		run, err := w.c.Get(w.ctx, id)
		return err == nil && run.State == perdure.Suspended
	})
}

// Signals come before the run has begun, while it works and while it waits. Each is taken once, the
// oldest first.
func TestSignalsAreKeptUntilTaken(t *testing.T) {
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
		t.Errorf("signal after the end: %v, want %s", err, perdure.CodeRunEnded)
	}
}

func TestSignalWithSameIdempotencyKeyCountsOnce(t *testing.T) {
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
	w.signal(id, "n", 1, key) // ignored
	w.suspended(id)
	w.signal(id, "n", 1, key)
	w.signal(id, "n", 2) // without a key each one counts
	w.signal(id, "n", 2)
	completed(t, w.end(id), `[1,2,2]`)
}

func TestCallbackIsAnsweredOnce(t *testing.T) {
	t.Parallel()
	w := open(t)
	tokens, goOn := make(chan string, 1), make(chan struct{})
	var seen tally
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "asks", func(ctx *agent.Context, _ struct{}) (int, error) {
			answer := agent.Callback[int](ctx, "answer", time.Hour)
			seen.add(answer.Token())
			if _, err := agent.Step(ctx, "ask", func(context.Context) (int, error) {
				tokens <- answer.Token()
				<-goOn
				return 0, nil
			}); err != nil {
				return 0, err
			}
			n, err := answer.Join(ctx)
			if err != nil {
				return 0, err
			}
			if err := agent.Sleep(ctx, time.Millisecond); err != nil {
				return 0, err
			}
			seen.add(answer.Token())
			return n, nil
		})
	})
	id := w.start(perdure.Submission{Kind: "asks"})
	token := next(w, tokens)
	for range 2 { // before the run waits for it; repeating the answer is no error
		if _, err := w.c.Callback(w.ctx, token, callback(42)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.c.Callback(w.ctx, token, callback(43)); err == nil {
		t.Error("a second, different answer was accepted, want an error")
	}
	close(goOn)
	completed(t, w.end(id), "42")
	if len(seen.n) != 1 || seen.of(token) < 3 {
		t.Errorf("tokens seen = %v, want %s alone, at least 3 times", seen.n, token)
	}
}

// A wait that is not answered times out. The agent may handle that.
func TestUnansweredWaitTimesOut(t *testing.T) {
	stage.NoRace(t)
	stage.NoStore(t)
	agents := map[string]struct {
		wait func(ctx *agent.Context) error
		took time.Duration
	}{
		"a signal": {func(ctx *agent.Context) error {
			_, err := agent.Signal[int](ctx, "x", time.Minute)
			return err
		}, time.Minute},
		"a signal, default": {func(ctx *agent.Context) error {
			_, err := agent.Signal[int](ctx, "x", 0)
			return err
		}, 10 * time.Minute},
		"the start": {func(ctx *agent.Context) error {
			_, err := agent.Signal[int](ctx, agent.StartTask, 0)
			return err
		}, 5 * time.Minute},
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
			_, err := agent.Race(ctx, 2*time.Hour, agent.Callback[int](ctx, "answer", time.Hour),
				agent.Callback[int](ctx, "answer", time.Minute))
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
					t.Errorf("the wait took %s, want %s to 10 s more", took, x.took)
				}
				// If the agent returns the error, the run ends without a retry.
				failed(w.t, w.ends("waits", false), perdure.TimedOut, perdure.CodeWaitTimeout, 1)
			})
		})
	}
}

func TestSignalTimeoutIsATimeout(t *testing.T) {
	if !errors.Is(agent.ErrSignalTimeout, agent.ErrTimeout) ||
		errors.Is(agent.ErrTimeout, agent.ErrSignalTimeout) || errors.Is(agent.ErrTimeout, agent.ErrCancelled) {
		t.Error("ErrSignalTimeout has to match ErrTimeout; ErrTimeout must match neither it nor ErrCancelled")
	}
}

func TestUndecidedApprovalGetsItsDefault(t *testing.T) {
	virtual(t, func(w *scene) {
		stop := w.work(func(wk *worker.Worker) {
			worker.Agent(wk, "asks", func(ctx *agent.Context, def perdure.DecisionKind) (string, error) {
				d, err := agent.Approve(ctx, agent.Approval{Title: "Push?", Action: "git push", Default: def,
					Timeout: time.Minute})
				return fmt.Sprint(d.Approved, d.TimedOut, d.By == nil), err
			})
		})
		defer stop()
		completed(w.t, w.ends("asks", ""), `"false true true"`)
		completed(w.t, w.ends("asks", perdure.Approve), `"true true true"`)
	})
}

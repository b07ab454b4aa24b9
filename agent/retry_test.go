package agent_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/client/admin"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/worker"
)

// retry retries a run and waits until the new one has ended.
func (w *scene) retry(id perdure.RunID, from string) *api.Run {
	w.t.Helper()
	run, err := w.c.Retry(w.ctx, id, api.Retry{From: from})
	if err != nil {
		w.t.Fatalf("retry of run %s from %q: %v", id, from, err)
	}
	return w.end(run.RunID)
}

// A charge that was recorded is not made again by a redrive. What was not recorded is called again
// under the same key.
func TestRedriveFromJournalChargesOnce(t *testing.T) {
	w := open(t)
	var fixed atomic.Bool
	var mu sync.Mutex
	calls := map[string][]string{} // idempotency keys by step
	call := func(ctx context.Context, step string) {
		mu.Lock()
		defer mu.Unlock()
		calls[step] = append(calls[step], agent.IdempotencyKey(ctx))
	}
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "order", func(ctx *agent.Context, _ any) (string, error) {
			charge, err := agent.Step(ctx, "charge", func(ctx context.Context) (string, error) {
				call(ctx, "charge")
				return "paid", nil
			})
			if err != nil {
				return "", err
			}
			return agent.Step(ctx, "ship", func(ctx context.Context) (string, error) {
				call(ctx, "ship")
				if !fixed.Load() {
					return "", errors.New("no lorry")
				}
				return charge + ", shipped", nil
			})
		})
	})
	id := w.start(perdure.Submission{Kind: "order", MaxAttempts: 1})
	failed(t, w.end(id), perdure.Failed, perdure.CodeFailed, 1)
	fixed.Store(true)
	run, err := admin.New(w.c).Redrive(w.ctx, id, api.Redrive{})
	if err != nil {
		t.Fatal(err)
	}
	if run.OriginRunID != id {
		t.Errorf("origin_run_id = %q, want %s", run.OriginRunID, id)
	}
	completed(t, w.end(run.RunID), `"paid, shipped"`)
	mu.Lock()
	defer mu.Unlock()
	want := map[string][]string{"charge": {string(id) + "/charge#1"},
		"ship": {string(id) + "/ship#1", string(id) + "/ship#1"}}
	if fmt.Sprint(calls) != fmt.Sprint(want) {
		t.Errorf("calls with their keys: %v, want %v", calls, want)
	}
}

// An error that the journal records names its entry, so that a retry begins before it.
func TestFailureFromJournalNamesItsEntry(t *testing.T) {
	var fixed atomic.Bool
	broken := func(ctx *agent.Context, name string) error {
		_, err := agent.Step(ctx, name, func(context.Context) (int, error) {
			if fixed.Load() {
				return 1, nil
			}
			return 0, perdure.Permanent(errors.New("broken"))
		})
		return err
	}
	child := func(ctx *agent.Context) error {
		_, err := agent.Spawn[int](ctx, "kid", 1).Join(ctx)
		return err
	}
	for _, x := range []struct {
		name  string
		agent func(ctx *agent.Context, steps *tally) error
		cause string // a prefix of it
		again string // the steps that the retry executes
	}{
		{"step", func(ctx *agent.Context, _ *tally) error { return broken(ctx, "pay") }, "pay#1", "after"},
		{"wrapped step", func(ctx *agent.Context, _ *tally) error {
			if err := broken(ctx, "pay"); err != nil {
				return fmt.Errorf("can't pay: %w", err)
			}
			return nil
		}, "pay#1", "after"},
		{"first of two", func(ctx *agent.Context, _ *tally) error {
			return errors.Join(broken(ctx, "one"), broken(ctx, "two"))
		}, "one#1", "after"},
		{"child", func(ctx *agent.Context, _ *tally) error { return child(ctx) }, "_frame:", "after"},
		{"all children", func(ctx *agent.Context, _ *tally) error {
			_, err := agent.SelectOK(ctx, agent.Spawn[int](ctx, "kid", 1), agent.Spawn[int](ctx, "kid", 2))
			return err
		}, "_frame:", "after"},
		{"signal", func(ctx *agent.Context, _ *tally) error {
			limit := time.Millisecond
			if fixed.Load() {
				return nil
			}
			_, err := agent.Signal[int](ctx, "go", limit)
			if !errors.Is(err, agent.ErrSignalTimeout) || !errors.Is(err, agent.ErrTimeout) {
				return errors.New("no timeout")
			}
			return err
		}, "_frame:", "after"},
		{"saga", func(ctx *agent.Context, steps *tally) error {
			return agent.Saga(ctx, "trip", func() error {
				undo := agent.Undo(func(context.Context, string) error { steps.add("undo"); return nil })
				if err := steps.do(ctx, "book", undo); err != nil {
					return err
				}
				return broken(ctx, "pay")
			})
		}, "book#1", "book after"},
	} {
		t.Run(x.name, func(t *testing.T) {
			w := open(t)
			fixed.Store(false)
			steps := &tally{}
			w.work(func(wk *worker.Worker) {
				worker.Agent(wk, "chore", func(ctx *agent.Context, _ any) (string, error) {
					if err := steps.do(ctx, "before"); err != nil {
						return "", err
					}
					if err := x.agent(ctx, steps); err != nil {
						return "", err
					}
					return "done", steps.do(ctx, "after")
				})
				worker.Handle(wk, "kid", func(context.Context, int) (int, error) {
					if fixed.Load() {
						return 1, nil
					}
					return 0, perdure.Permanent(errors.New("broken"))
				})
			})
			run := w.ends("chore", nil)
			if run.Error == nil || !strings.HasPrefix(run.Error.CauseKey, x.cause) {
				t.Fatalf("run: %s with %+v, want the cause %s", run.State, run.Error, x.cause)
			}
			if _, err := w.c.Retry(w.ctx, run.RunID,
				api.Retry{From: "journal"}); client.CodeOf(err) != perdure.CodeWouldRepeat {
				t.Errorf("retry from the whole journal: %v, want %s", err, perdure.CodeWouldRepeat)
			}
			fixed.Store(true)
			executed := len(steps.all())
			completed(t, w.retry(run.RunID, ""), `"done"`)
			if got := strings.Join(steps.all()[executed:], " "); got != x.again {
				t.Errorf("the retry executed %q, want %q", got, x.again)
			}
		})
	}
}

// A failure that the journal does not record has no cause there.
func TestFailureOutsideOfJournalNamesNoEntry(t *testing.T) {
	w := open(t)
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "chore", func(ctx *agent.Context, _ any) (string, error) {
			return "", perdure.Permanent(errors.New("I don't like it"))
		})
	})
	run := w.ends("chore", nil)
	if run.Error == nil || run.Error.CauseKey != "" {
		t.Errorf("error = %+v, want one without a cause", run.Error)
	}
}

// Children that ended are known to a retry by the journal. Others are spawned anew under their key.
func TestRetryKnowsEndedChildrenAndSpawnsOthersAnew(t *testing.T) {
	w := open(t)
	var fixed atomic.Bool
	var g gates
	g.open(1)
	ids := make(chan perdure.RunID, 10)
	w.work(func(wk *worker.Worker) {
		g.register(wk)
		worker.Agent(wk, "chore", func(ctx *agent.Context, _ any) ([]int, error) {
			fs := gated(ctx, 1, 2)
			if _, err := fs[0].Join(ctx); err != nil {
				return nil, err
			}
			ids <- fs[0].ID()
			_, err := agent.Step(ctx, "look", func(context.Context) (int, error) {
				if fixed.Load() {
					return 1, nil
				}
				return 0, perdure.Permanent(errors.New("dark"))
			})
			if err != nil {
				return nil, err
			}
			return agent.JoinAll(ctx, fs...)
		})
	})
	run := w.ends("chore", nil)
	if run.Error == nil || run.Error.CauseKey != "look#1" {
		t.Fatalf("run: %s with %+v, want the cause look#1", run.State, run.Error)
	}
	first := next(w, ids)
	fixed.Store(true)
	again, err := w.c.Retry(w.ctx, run.RunID, api.Retry{})
	if err != nil {
		t.Fatal(err)
	}
	if id := next(w, ids); id != first {
		t.Errorf("the id of the ended child in the retry = %s, want %s", id, first)
	}
	eventually.True(t, "the other child is spawned anew", func() bool {
		return len(w.runs(client.Filter{Kind: "gated"})) == 3
	})
	g.open(2)
	completed(t, w.end(again.RunID), `[1,2]`)
	for _, r := range w.runs(client.Filter{Kind: "gated"}) {
		want := run.RunID
		if r.ParentRunID == again.RunID {
			want = again.RunID
			if kid := w.end(r.RunID); string(kid.Input) != "2" {
				t.Errorf("child %s with input %s was spawned by the retry, want only that with 2", kid.RunID, kid.Input)
			}
		}
		if r.ParentRunID != want {
			t.Errorf("child %s: parent = %s, want %s", r.RunID, r.ParentRunID, want)
		}
	}
}

// A child that is spawned anew by a retry is no news: steps that the original recorded after it are
// still to be replayed.
func TestRetryReplaysStepsAfterAChildThatHadNotEnded(t *testing.T) {
	w := open(t)
	var fixed atomic.Bool
	var g gates
	var planned atomic.Int32
	w.work(func(wk *worker.Worker) {
		g.register(wk)
		worker.Agent(wk, "chore", func(ctx *agent.Context, _ any) ([]int, error) {
			fs := gated(ctx, 1)
			_, err := agent.Step(ctx, "plan", func(context.Context) (int, error) {
				return int(planned.Add(1)), nil
			})
			if err != nil {
				return nil, err
			}
			_, err = agent.Step(ctx, "look", func(context.Context) (int, error) {
				if fixed.Load() {
					return 1, nil
				}
				return 0, perdure.Permanent(errors.New("dark"))
			})
			if err != nil {
				return nil, err
			}
			return agent.JoinAll(ctx, fs...)
		})
	})
	run := w.ends("chore", nil)
	if run.Error == nil || run.Error.CauseKey != "look#1" {
		t.Fatalf("run: %s with %+v, want the cause look#1", run.State, run.Error)
	}
	fixed.Store(true)
	g.open(1)
	completed(t, w.retry(run.RunID, ""), `[1]`)
	if n := planned.Load(); n != 1 {
		t.Errorf("the step plan was executed %d times, want once: the retry has its record", n)
	}
}

// The token of a callback that nobody answered is the original's. A retry has its own.
func TestRetryHasCallbackTokensOfItsOwn(t *testing.T) {
	w := open(t)
	var fixed atomic.Bool
	tokens := make(chan string, 10)
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "chore", func(ctx *agent.Context, _ any) ([]int, error) {
			one := agent.Callback[int](ctx, "one", time.Minute)
			tokens <- one.Token()
			first, err := one.Join(ctx)
			if err != nil {
				return nil, err
			}
			two := agent.Callback[int](ctx, "two", time.Minute)
			tokens <- two.Token()
			if _, err := agent.Step(ctx, "look", func(context.Context) (int, error) {
				if fixed.Load() {
					return 1, nil
				}
				return 0, perdure.Permanent(errors.New("dark"))
			}); err != nil {
				return nil, err
			}
			second, err := two.Join(ctx)
			return []int{first, second}, err
		})
	})
	answer := func(token string, n int) {
		t.Helper()
		if _, err := w.c.Callback(w.ctx, token, api.UseCallback{Result: client.JSON(n)}); err != nil {
			t.Errorf("callback with %d: %v", n, err)
		}
	}
	id := w.start(perdure.Submission{Kind: "chore"})
	one := next(w, tokens)
	answer(one, 1)
	if again := next(w, tokens); again != one {
		t.Errorf("the token after the answer = %s, want %s", again, one)
	}
	two := next(w, tokens)
	reached(t, w.end(id), perdure.Failed)
	for n := range 2 { // the second is a retry of a retry
		fixed.Store(n == 1)
		run, err := w.c.Retry(w.ctx, id, api.Retry{})
		if err != nil {
			t.Fatal(err)
		}
		id = run.RunID
		if again := next(w, tokens); again != one {
			t.Errorf("retry %d: the token of the answered callback = %s, want %s", n+1, again, one)
		}
		own := next(w, tokens)
		if own == two || own == "" {
			t.Errorf("retry %d: the token of the open callback = %q, want one of its own", n+1, own)
		}
		if two = own; n == 1 {
			answer(two, 2)
		}
		run = w.end(id)
		if n == 0 {
			reached(t, run, perdure.Failed)
		} else {
			completed(t, run, `[1,2]`)
		}
	}
}

// A message that the original wrote is not written again by its retry.
func TestRetryRepeatsNoMessage(t *testing.T) {
	w := open(t)
	var fixed atomic.Bool
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "chat", func(ctx *agent.Context, _ any) (string, error) {
			if err := agent.Message(ctx, "assistant", "I look."); err != nil {
				return "", err
			}
			return agent.Step(ctx, "look", func(context.Context) (string, error) {
				if fixed.Load() {
					return "seen", nil
				}
				return "", perdure.Permanent(errors.New("dark"))
			})
		})
	})
	th := w.thread()
	run := w.end(w.start(perdure.Submission{Kind: "chat", ThreadID: th}))
	reached(t, run, perdure.Failed)
	fixed.Store(true)
	completed(t, w.retry(run.RunID, ""), `"seen"`)
	said := 0
	msgs, err := w.c.Messages(w.ctx, th, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range msgs.Messages {
		if string(m.Content) == `"I look."` {
			said++
		}
	}
	if said != 1 {
		t.Errorf("the message is %d times on the thread, want once", said)
	}
}

package agent_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/worker"
)

// The future that ended first is selected first, whatever the order given, and in every execution.
func TestSelectReturnsInOrderOfEnds(t *testing.T) {
	t.Parallel()
	w := open(t)
	var g gates
	w.work(func(wk *worker.Worker) {
		g.register(wk)
		worker.Agent(wk, "boss", func(ctx *agent.Context, _ struct{}) (out []int, err error) {
			left := gated(ctx, 0, 1, 2, 3)
			for len(left) > 0 {
				first, err := agent.Race(ctx, time.Hour, left...)
				if err != nil {
					return nil, err
				}
				if want := slices.Delete(slices.Clone(left), first.Index, first.Index+1); !slices.Equal(first.Remaining,
					want) {
					return nil, perdure.Permanent(fmt.Errorf("%d of %d remain, want all but the selected one",
						len(first.Remaining), len(left)))
				}
				out = append(out, first.Value)
				left = first.Remaining
				if len(left) == 0 {
					break
				}
				n, err := agent.Select(ctx, agent.Awaitables(left...)...)
				if err != nil {
					return nil, err
				}
				v, err := left[n].Result()
				if err != nil {
					return nil, err
				}
				out, left = append(out, v), slices.Delete(left, n, n+1)
			}
			return out, nil
		})
	})
	id := w.start(perdure.Submission{Kind: "boss"})
	for i, n := range []int{3, 1, 0, 2} {
		g.open(n)
		w.children("gated", perdure.Completed, i+1)
	}
	completed(t, w.end(id), `[3,1,0,2]`)
}

func TestSelectReturnsErrorOfFirstFailure(t *testing.T) {
	t.Parallel()
	w := open(t)
	var g gates
	w.work(func(wk *worker.Worker) {
		g.register(wk)
		worker.Handle(wk, "fails", func(context.Context, int) (int, error) {
			return 0, perdure.Permanent(errors.New("no"))
		})
		worker.Agent(wk, "boss", func(ctx *agent.Context, how string) (string, error) {
			fs := append(gated(ctx, 1), agent.Spawn[int](ctx, "fails", 0))
			var err error
			var remain, index int
			if how == "select" {
				if index, err = agent.Select(ctx, agent.Awaitables(fs...)...); err != nil {
					return "", err
				}
				_, err = fs[index].Result()
				remain = 1
			} else if how == "race" {
				var got agent.Selected[int]
				got, err = agent.Race(ctx, time.Hour, fs...)
				remain, index = len(got.Remaining), got.Index
			} else {
				_, err = agent.JoinAll(ctx, fs...) // fails fast
				remain, index = 1, 1
			}
			if !errors.As(err, new(agent.ErrTaskFailed)) {
				return "", perdure.Permanent(fmt.Errorf("%w", err))
			}
			return fmt.Sprint(index, remain), nil
		})
	})
	completed(t, w.ends("boss", "select"), `"1 1"`)
	completed(t, w.ends("boss", "race"), `"1 1"`)
	completed(t, w.ends("boss", "join"), `"1 1"`)
	g.open(1)
}

func TestRaceTimeoutLeavesChildrenRunning(t *testing.T) {
	t.Parallel()
	w := open(t)
	var g gates
	w.work(func(wk *worker.Worker) {
		g.register(wk)
		worker.Agent(wk, "boss", func(ctx *agent.Context, _ struct{}) (string, error) {
			fs := gated(ctx, 1, 2)
			lost, err := agent.Race(ctx, 100*time.Millisecond, fs...)
			if !errors.Is(err, agent.ErrTimeout) || lost.Index != -1 || len(lost.Remaining) != 2 {
				return "", perdure.Permanent(fmt.Errorf("%+v %w", lost, err))
			}
			if err := agent.Emit(ctx, "x:lost", nil); err != nil {
				return "", err
			}
			won, err := agent.Race(ctx, time.Hour, fs...)
			if err != nil || len(won.Remaining) != 1 {
				return "", perdure.Permanent(fmt.Errorf("%+v %w", won, err))
			}
			all, err := agent.JoinAll(ctx, fs...)
			return fmt.Sprint(won.Value, all), err
		})
	})
	id := w.start(perdure.Submission{Kind: "boss"})
	eventually.True(t, "the race is lost", func() bool { return len(w.lines(id, "x:lost")) == 1 })
	g.open(2)
	w.children("gated", perdure.Completed, 1)
	g.open(1)
	completed(t, w.end(id), `"2 [1 2]"`)
}

func TestJoinOfCallbacksAndChildren(t *testing.T) {
	t.Parallel()
	w := open(t)
	var g gates
	tokens := make(chan string, 10)
	w.work(func(wk *worker.Worker) {
		g.register(wk)
		worker.Agent(wk, "boss", func(ctx *agent.Context, _ struct{}) (string, error) {
			fs := append(gated(ctx, 1), agent.Callback[int](ctx, "answer", time.Hour),
				agent.Callback[int](ctx, "answer", time.Hour))
			if _, err := agent.Step(ctx, "tell", func(context.Context) (int, error) {
				tokens <- fs[1].Token()
				tokens <- fs[2].Token()
				return 0, nil
			}); err != nil {
				return "", err
			}
			first, err := agent.Race(ctx, time.Hour, fs...)
			if err != nil {
				return "", err
			}
			if err := agent.Emit(ctx, "x:first", nil); err != nil {
				return "", err
			}
			all, err := agent.JoinAllSettled(ctx, fs...)
			return fmt.Sprint(first.Index, first.Value, len(first.Remaining), all.Results, all.Errors[2],
				all.Failed), err
		})
	})
	id := w.start(perdure.Submission{Kind: "boss"})
	a, b := next(w, tokens), next(w, tokens)
	if _, err := w.c.Callback(w.ctx, a, callback(10)); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "the callback was first", func() bool { return len(w.lines(id, "x:first")) == 1 })
	if _, err := w.c.Callback(w.ctx, b, refusal("busy", "later")); err != nil {
		t.Fatal(err)
	}
	g.open(1)
	completed(t, w.end(id), `"1 10 2 [1 10 0] busy: later 1"`)
}

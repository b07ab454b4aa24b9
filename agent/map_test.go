package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/agenttest"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/stage"
	"github.com/perdure/perdure/worker"
)

// numbers returns 0 to n-1.
func numbers(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// A peak is the greatest number of calls at the same time.
type peak struct{ now, most atomic.Int64 }

func (p *peak) enter() {
	n := p.now.Add(1)
	for m := p.most.Load(); n > m && !p.most.CompareAndSwap(m, n); m = p.most.Load() {
	}
}

func (p *peak) leave() { p.now.Add(-1) }

func TestMapReturnsResultsInOrderWithinTheLimit(t *testing.T) {
	stage.NoStore(t)
	t.Parallel()
	type bounds struct{ Items, Limit int }
	w := open(t)
	var p peak
	w.work(func(wk *worker.Worker) {
		worker.Handle(wk, "double", func(_ context.Context, n int) (int, error) {
			p.enter()
			defer p.leave()
			return 2 * n, nil
		})
		worker.Agent(wk, "boss", func(ctx *agent.Context, in bounds) (string, error) {
			got, err := agent.Map[int](ctx, "double", numbers(in.Items), agent.MapOptions{Limit: in.Limit})
			if err != nil {
				return "", err
			}
			for n, v := range got.Results {
				if v != 2*n {
					return "", perdure.Permanent(fmt.Errorf("result %d = %d, want %d", n, v, 2*n))
				}
			}
			return fmt.Sprint(got.Completed, len(got.Results)), nil
		})
	})
	many := 10_000
	if testing.Short() {
		many = 300
	}
	for _, in := range []bounds{{300, 7}, {many, 20}, {0, 7}} {
		p.most.Store(0)
		completed(t, w.ends("boss", in), fmt.Sprintf(`"%d %d"`, in.Items, in.Items))
		if most := p.most.Load(); most > int64(in.Limit) {
			t.Errorf("%d children worked at the same time, want at most %d", most, in.Limit)
		}
	}
}

// While the run is suspended, its progress tells how many items are done.
func TestMapTellsItsProgressWhileSuspended(t *testing.T) {
	t.Parallel()
	w := open(t)
	var g gates
	w.work(func(wk *worker.Worker) {
		g.register(wk)
		worker.Agent(wk, "boss", func(ctx *agent.Context, _ struct{}) (agent.Settled[int], error) {
			got, err := agent.Map[int](ctx, "gated", numbers(5), agent.MapOptions{Limit: 3})
			got.Errors = nil
			return got, err
		})
	})
	id := w.start(perdure.Submission{Kind: "boss"})
	for _, n := range []int{0, 2} {
		g.open(n)
	}
	eventually.True(t, "the suspended run tells that 2 of 5 are done", func() bool {
		run, err := w.c.Get(w.ctx, id)
		var told struct{ Done, Total int }
		return err == nil && run.State == perdure.Suspended && json.Unmarshal(run.Progress, &told) == nil &&
			told.Done == 2 && told.Total == 5
	})
	for _, n := range []int{4, 3, 1} {
		g.open(n)
	}
	completed(t, w.end(id),
		`{"Results":[0,1,2,3,4],"Errors":null,"Completed":5,"Failed":0,"TimedOut":0,"Cancelled":0}`)
}

func TestMapSettlesOrFailsFast(t *testing.T) {
	t.Parallel()
	w := open(t)
	var done tally
	w.work(func(wk *worker.Worker) {
		worker.Handle(wk, "odd", func(_ context.Context, n int) (int, error) {
			done.add("odd")
			if n%4 == 2 {
				return 0, perdure.Permanent(worker.Fail("even", "%d", n))
			}
			return n, nil
		})
		worker.Agent(wk, "boss", func(ctx *agent.Context, settle bool) (string, error) {
			got, err := agent.Map[int](ctx, "odd", numbers(20), agent.MapOptions{Limit: 1, Settle: settle})
			if !settle {
				var failed agent.ErrTaskFailed
				if !errors.As(err, &failed) || failed.Failure.Message != "2" {
					return "", perdure.Permanent(fmt.Errorf("%w, want the failure of item 2", err))
				}
				return "failed fast", nil
			}
			return fmt.Sprint(got.Completed, got.Failed, got.Errors[2], got.Errors[3]), err
		})
	})
	completed(t, w.ends("boss", false), `"failed fast"`)
	if n := done.of("odd"); n != 3 {
		t.Errorf("%d children were executed before the map failed, want 3", n)
	}
	run := w.ends("boss", true)
	if run.State != perdure.Completed {
		t.Errorf("run %s is %s (error %+v), want completed", run.RunID, run.State, run.Error)
	}
}

func TestMapWithOtherItemsIsNondeterminism(t *testing.T) {
	t.Parallel()
	p := steady()
	w := openUnder(t, p, 1)
	var g gates
	var executions atomic.Int64
	w.work(func(wk *worker.Worker) {
		g.register(wk)
		worker.Agent(wk, "boss", func(ctx *agent.Context, _ struct{}) (int, error) {
			items := numbers(3)
			if executions.Add(1) > 1 {
				items[1] = 7
			}
			got, err := agent.Map[int](ctx, "gated", items, agent.MapOptions{Limit: 2})
			return got.Completed, err
		})
	})
	id := w.start(perdure.Submission{Kind: "boss", MaxAttempts: 1})
	w.suspended(id)
	g.open(0)
	w.defect(id, perdure.CodeNondeterminism)
	g.open(1) // the worker waits for its handlers before it ends
}

func TestMapRefusesALimitOutOfBounds(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "boss", func(ctx *agent.Context, limit int) (int, error) {
			got, err := agent.Map[int](ctx, "kind", numbers(3), agent.MapOptions{Limit: limit})
			return got.Completed, err
		})
	})
	failed(t, w.ends("boss", -1), perdure.Failed, perdure.CodeInvalid, 1)
	failed(t, w.ends("boss", 1001), perdure.Failed, perdure.CodeInvalid, 1)
}

func TestMapOfThousandsIsQuick(t *testing.T) {
	t.Parallel()
	const items = 2000
	w := open(t)
	w.work(func(wk *worker.Worker) {
		worker.Handle(wk, "double", func(_ context.Context, n int) (int, error) { return 2 * n, nil })
		worker.Agent(wk, "boss", func(ctx *agent.Context, _ struct{}) (int, error) {
			got, err := agent.Map[int](ctx, "double", numbers(items), agent.MapOptions{Limit: 20})
			return got.Completed, err
		})
	})
	id := w.start(perdure.Submission{Kind: "boss"})
	completed(t, w.end(id), fmt.Sprint(items))
	// Each suspend costs a replay of all that was done, so there must be few.
	if n := len(w.lines(id, "run:suspended")); n > items/20 {
		t.Errorf("the run was suspended %d times for %d items, want at most %d", n, items, items/20)
	}
}

func TestMapSurvivesCrashes(t *testing.T) {
	stage.NoRace(t)
	stage.NoStore(t)
	t.Parallel()
	agenttest.Scenario{
		Setup: func(s *agenttest.Trial) func(*worker.Worker) {
			return func(wk *worker.Worker) {
				worker.Handle(wk, "slow", func(ctx context.Context, n int) (int, error) {
					select {
					case <-time.After(time.Duration(1+n%2) * time.Second):
					case <-ctx.Done():
						return 0, context.Cause(ctx)
					}
					s.Note(ctx, fmt.Sprint("worked on ", n))
					return 2 * n, nil
				})
				worker.Agent(wk, "boss", func(ctx *agent.Context, _ struct{}) ([]int, error) {
					got, err := agent.Map[int](ctx, "slow", numbers(3), agent.MapOptions{Limit: 2})
					return got.Results, err
				})
			}
		},
		Start: perdure.Submission{Kind: "boss", Class: perdure.Agent},
	}.CrashEverywhere(t, func(t *testing.T, end *agenttest.End) {
		if got := string(end.Run.Result); got != `[0,2,4]` {
			t.Errorf("result = %s (error %+v), want [0,2,4]", got, end.Run.Error)
		}
	})
}

func TestParallelReturnsResultsInOrderWithinTheLimit(t *testing.T) {
	t.Parallel()
	const items, limit = 40, 4
	w := open(t)
	var p peak
	var calls tally
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "boss", func(ctx *agent.Context, _ struct{}) (string, error) {
			got, err := agent.Parallel(ctx, "double", numbers(items), func(ctx context.Context, n int) (string, error) {
				p.enter()
				defer p.leave()
				calls.add("double")
				return fmt.Sprint(2*n, " ", agent.IdempotencyKey(ctx) != ""), nil
			}, agent.MapOptions{Limit: limit})
			if err != nil {
				return "", err
			}
			if err := agent.Sleep(ctx, time.Millisecond); err != nil { // the next execution replays
				return "", err
			}
			return fmt.Sprint(got.Completed, " ", got.Results[0], " ", got.Results[items-1]), nil
		})
	})
	completed(t, w.ends("boss", nil), `"40 0 true 78 true"`)
	if n, most := calls.of("double"), p.most.Load(); n != items || most > limit {
		t.Errorf("%d calls, %d at the same time, want %d and at most %d", n, most, items, limit)
	}
}

// A failed attempt repeats only the calls that were not recorded.
func TestParallelRepeatsOnlyWhatFailed(t *testing.T) {
	t.Parallel()
	w := open(t)
	var calls tally
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "boss", func(ctx *agent.Context, settle bool) (string, error) {
			got, err := agent.Parallel(ctx, "call", numbers(6), func(ctx context.Context, n int) (int, error) {
				if calls.add(fmt.Sprint(settle, n)) == 1 && n == 3 {
					return 0, errors.New("not yet")
				}
				return n, nil
			}, agent.MapOptions{Limit: 1, Settle: settle})
			if err == nil {
				err = errors.Join(got.Errors...)
			}
			return fmt.Sprint(got.Results), err
		})
	})
	completed(t, w.ends("boss", false), `"[0 1 2 3 4 5]"`)
	completed(t, w.ends("boss", true), `"[0 1 2 3 4 5]"`)
	for n := range 6 {
		want := 1
		if n == 3 {
			want = 2
		}
		if a, b := calls.of(fmt.Sprint(false, n)), calls.of(fmt.Sprint(true, n)); a != want || b != want {
			t.Errorf("item %d: %d calls when failing fast and %d when settling, want %d", n, a, b, want)
		}
	}
}

func TestPanicInParallelFailsTheAttempt(t *testing.T) {
	t.Parallel()
	w := open(t)
	var calls tally
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "boss", func(ctx *agent.Context, _ struct{}) (int, error) {
			got, err := agent.Parallel(ctx, "call", numbers(3), func(ctx context.Context, n int) (int, error) {
				if calls.add(fmt.Sprint(n)) == 1 && n == 1 {
					panic("the first time")
				}
				return n, nil
			}, agent.MapOptions{})
			return got.Completed, err
		})
	})
	completed(t, w.ends("boss", nil), "3")
}

// A permanent error is the same in every execution, and no more items are begun after it.
func TestParallelReplaysItsError(t *testing.T) {
	t.Parallel()
	w := open(t)
	var calls tally
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "boss", func(ctx *agent.Context, _ struct{}) (string, error) {
			_, failed := agent.Parallel(ctx, "call", numbers(6), func(ctx context.Context, n int) (int, error) {
				calls.add("call")
				if n == 2 {
					return 0, perdure.Permanent(errors.New("never"))
				}
				return n, nil
			}, agent.MapOptions{Limit: 1})
			err := agent.Sleep(ctx, time.Millisecond)
			return fmt.Sprint(failed), err
		})
	})
	completed(t, w.ends("boss", nil), `"never"`)
	if n := calls.of("call"); n != 3 {
		t.Errorf("%d calls, want 3: none after the error, and none again", n)
	}
}

func TestParallelSurvivesCrashes(t *testing.T) {
	stage.NoStore(t)
	t.Parallel()
	agenttest.Scenario{
		Setup: func(s *agenttest.Trial) func(*worker.Worker) {
			return func(wk *worker.Worker) {
				worker.Agent(wk, "boss", func(ctx *agent.Context, n int) (int, error) {
					got, err := agent.Parallel(ctx, "call", numbers(n), func(ctx context.Context, n int) (int, error) {
						s.Note(ctx, fmt.Sprint("called ", n))
						return n, nil
					}, agent.MapOptions{Limit: 1})
					return got.Completed, err
				})
			}
		},
		Start: perdure.Submission{Kind: "boss", Class: perdure.Agent, Input: client.JSON(3)},
	}.CrashEverywhere(t, nil)
}

// The waits of a map are not asked for one by one. A run that is past them is past its journal.
func TestMapLeavesNothingToReplay(t *testing.T) {
	t.Parallel()
	w := open(t)
	var g gates
	w.work(func(wk *worker.Worker) {
		g.register(wk)
		worker.Agent(wk, "boss", func(ctx *agent.Context, _ struct{}) (int, error) {
			if _, err := agent.Map[int](ctx, "gated", numbers(2), agent.MapOptions{Limit: 2}); err != nil {
				return 0, err
			}
			return agent.Version(ctx, "new", 3), nil
		})
	})
	id := w.start(perdure.Submission{Kind: "boss"})
	for n := range 2 {
		w.suspended(id)
		g.open(n)
		w.children("gated", perdure.Completed, n+1)
	}
	completed(t, w.end(id), "3")
}

// A child that nobody takes is reported as slow after five minutes. The map cancels it and goes on.
func TestMapCancelsStalledChildren(t *testing.T) {
	virtual(t, func(w *scene) {
		stop := w.work(func(wk *worker.Worker) {
			worker.Handle(wk, "double", func(_ context.Context, n int) (int, error) { return 2 * n, nil })
			worker.Agent(wk, "boss", func(ctx *agent.Context, settle bool) (string, error) {
				child := agent.Options{OnStall: true, Timeout: 30 * time.Minute}
				o := agent.MapOptions{Limit: 1, Child: child, Settle: settle}
				got, err := agent.Map[int](ctx, "nobody", numbers(3), o)
				if err == nil {
					err = errors.Join(got.Errors...)
				}
				var stalled agent.ErrStalled
				if !errors.As(err, &stalled) || stalled.TaskID == "" {
					return "", perdure.Permanent(fmt.Errorf("want an ErrStalled: %w", err))
				}
				return fmt.Sprint(stalled.Key, got.Failed), nil
			})
		})
		defer stop()
		for settle, want := range map[bool]string{true: `"nobody#1/03"`, false: `"nobody#1/00"`} {
			r := w.ends("boss", settle)
			completed(w.t, r, want)
			if r.ElapsedMS > (20 * time.Minute).Milliseconds() {
				w.t.Errorf("the map took %d ms, want it to end by stalls and not by timeouts", r.ElapsedMS)
			}
		}
	})
}

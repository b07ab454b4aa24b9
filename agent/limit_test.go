package agent_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/worker"
)

// crowd counts those who are somewhere at once.
type crowd struct {
	mu             sync.Mutex
	now, most, all int
	last           time.Time
}

// stay is there for a time.
func (x *crowd) stay(ctx context.Context, d time.Duration) {
	x.mu.Lock()
	x.now++
	x.all++
	x.most = max(x.most, x.now)
	x.last = time.Now()
	x.mu.Unlock()
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
	x.mu.Lock()
	x.now--
	x.mu.Unlock()
}

// total counts those who have been there.
func (x *crowd) total() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.all
}

// was checks how many were there at once, and in all.
func (x *crowd) was(t *testing.T, what string, most, all int) {
	t.Helper()
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.most != most || x.all != all {
		t.Errorf("%s: %d calls, %d at once; want %d, and %d at once", what, x.all, x.most, all, most)
	}
}

func (w *scene) limit(name string, in api.PutLimit) {
	w.t.Helper()
	if _, err := w.c.PutLimit(w.ctx, name, in); err != nil {
		w.t.Fatal(err)
	}
}

// free checks that nothing holds a slot of a limit, or waits there.
func (w *scene) free(name string) {
	w.t.Helper()
	l, err := w.c.Limit(w.ctx, name)
	if err != nil || l.Leased+l.Waiting+l.Offered != 0 {
		w.t.Errorf("limit %s in the end: %+v, %v; want it free", name, l, err)
	}
}

// Steps of many agents share a limit. Those that wait for long free their workers, and each function is called
// once.
func TestStepsShareALimit(t *testing.T) {
	virtual(t, func(w *scene) {
		w.limit("model", api.PutLimit{Concurrency: new(2)})
		var calls, items, branches crowd
		call := func(x *crowd, d time.Duration) func(context.Context) (int, error) {
			return func(ctx context.Context) (int, error) { x.stay(ctx, d); return 1, nil }
		}
		model := agent.Limit("model", "", 0)
		stop := w.work(func(wk *worker.Worker) {
			worker.Agent(wk, "calls", func(ctx *agent.Context, _ struct{}) (int, error) {
				return agent.Step(ctx, "call", call(&calls, 5*time.Second), model)
			})
			worker.Agent(wk, "items", func(ctx *agent.Context, _ struct{}) (int, error) {
				pages := []int{1, 2, 3, 4, 5, 6}
				out, err := agent.Parallel(ctx, "fetch", pages, func(ctx context.Context, n int) (int, error) {
					return call(&items, 5*time.Second)(ctx)
				}, agent.MapOptions{Step: model})
				return out.Completed, err
			})
			worker.Agent(wk, "branches", func(ctx *agent.Context, _ struct{}) (int, error) {
				var joins []*agent.Branch
				for n := range 4 {
					joins = append(joins, agent.Go(ctx, fmt.Sprint("b", n), func(ctx *agent.Context) error {
						_, err := agent.Step(ctx, "call", call(&branches, 5*time.Second), model)
						return err
					}))
				}
				for _, b := range joins {
					if err := b.Join(ctx); err != nil {
						return 0, err
					}
				}
				return len(joins), nil
			})
		})
		defer stop()
		var ids []perdure.RunID
		for range 8 {
			ids = append(ids, w.start(perdure.Submission{Kind: "calls"}))
		}
		suspended := 0
		for _, id := range ids {
			completed(w.t, w.end(id), "1")
			suspended += len(w.lines(id, perdure.LineSuspended))
		}
		calls.was(w.t, "eight agents", 2, 8)
		if suspended < 4 {
			w.t.Errorf("runs were suspended %d times, want it for those that wait longer than 2 s", suspended)
		}
		completed(w.t, w.ends("items", nil), "6")
		items.was(w.t, "six items", 2, 6)
		completed(w.t, w.ends("branches", nil), "4")
		branches.was(w.t, "four branches", 2, 4)
		w.free("model")
	})
}

// A step that is told 429 closes the limit for all steps, also for its own further try.
func TestStepClosesALimit(t *testing.T) {
	virtual(t, func(w *scene) {
		w.limit("model", api.PutLimit{Rate: &perdure.LimitRate{Count: 60, Per: perdure.Duration(time.Minute)}})
		var told, calls crowd
		stop := w.work(func(wk *worker.Worker) {
			worker.Agent(wk, "told", func(ctx *agent.Context, _ struct{}) (int, error) {
				return agent.Step(ctx, "call", func(ctx context.Context) (int, error) {
					if told.stay(ctx, 0); told.all > 1 {
						return 1, nil
					}
					err := agent.CloseLimit(ctx, "model", "", time.Minute, "429")
					if err == nil {
						err = perdure.Errorf("busy", "429")
					}
					return 0, err
				}, agent.Limit("model", "", 0), agent.Retry{Attempts: 2})
			})
			worker.Agent(wk, "calls", func(ctx *agent.Context, _ struct{}) (int, error) {
				return agent.Step(ctx, "call", func(ctx context.Context) (int, error) {
					calls.stay(ctx, 0)
					return 1, nil
				}, agent.Limit("model", "", 0))
			})
			worker.Agent(wk, "mistaken", func(ctx *agent.Context, _ struct{}) (int, error) {
				_, err := agent.Step(ctx, "call", func(ctx context.Context) (int, error) { return 1, nil },
					agent.Limit("mdoel", "", 0))
				if perdure.CodeOf(err) != perdure.CodeUnknownLimit {
					return 0, fmt.Errorf("the error is %w, want unknown_limit", err)
				}
				return 1, nil
			})
		})
		defer stop()
		began := time.Now()
		first := w.start(perdure.Submission{Kind: "told"})
		for told.total() == 0 {
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(500 * time.Millisecond)
		completed(w.t, w.ends("calls", nil), "1")
		if after := calls.last.Sub(began); after < time.Minute {
			w.t.Errorf("a step was called after %s, while the limit was closed for a minute", after)
		}
		completed(w.t, w.end(first), "1")
		if after := told.last.Sub(began); after < time.Minute || told.all != 2 {
			w.t.Errorf("the step that closed the limit was called %d times, the last after %s", told.all, after)
		}
		completed(w.t, w.ends("mistaken", nil), "1")
	})
}

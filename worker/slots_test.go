package worker_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/testkit/servertest"
	"github.com/perdure/perdure/internal/testkit/stage"
	"github.com/perdure/perdure/worker"
)

func TestFullPoolDoesNotBlockTheOther(t *testing.T) {
	both(t, func(w *world) {
		let := make(chan struct{})
		running := make(chan string, 2)
		wk := worker.New(w.C, worker.Options{Slots: 1, AgentSlots: 1})
		worker.Handle(wk, "slow task", func(context.Context, int) (int, error) {
			running <- "task"
			<-let
			return 1, nil
		})
		worker.Handle(wk, "task", func(context.Context, int) (int, error) { return 1, nil })
		worker.Agent(wk, "slow agent", func(*agent.Context, int) (int, error) {
			running <- "agent"
			<-let
			return 1, nil
		})
		worker.Agent(wk, "agent", func(*agent.Context, int) (int, error) { return 1, nil })
		w.Work(wk)
		for _, slow := range []string{"slow task", "slow agent"} {
			id := w.Start(perdure.Submission{Kind: slow})
			other := map[string]string{"slow task": "agent", "slow agent": "task"}[slow]
			<-running
			waits := w.Start(perdure.Submission{Kind: slow[len("slow "):]})
			for range 3 {
				if run := w.End(w.Start(perdure.Submission{Kind: other})); run.State != perdure.Completed {
					w.T.Errorf("%s beside a %s: %s, attempt %d, want completed", other, slow, run.State, run.Attempt)
				}
			}
			if run, err := w.C.Get(w.Ctx, waits); err != nil || run.State != perdure.Queued {
				w.T.Errorf("a run over the slots of its pool: %+v, %v, want it queued", run, err)
			}
			let <- struct{}{}
			w.End(id)
			w.End(waits)
		}
	})
}

// An agent that waits holds no slot, so a tree of agents completes with one slot.
func TestTreeOfAgentsCompletesWithOneSlot(t *testing.T) {
	virtual(t, func(w *world) {
		wk := worker.New(w.C, worker.Options{Slots: 1, AgentSlots: 1})
		worker.Handle(wk, "leaf", func(context.Context, int) (int, error) { return 1, nil })
		worker.Agent(wk, "tree", func(ctx *agent.Context, depth int) (int, error) {
			kind := "tree"
			if depth == 0 {
				kind = "leaf"
			}
			var children []*agent.Future[int]
			for range 2 {
				children = append(children, agent.Spawn[int](ctx, kind, depth-1))
			}
			sum := 0
			counts, err := agent.JoinAll(ctx, children...)
			for _, n := range counts {
				sum += n
			}
			return sum, err
		})
		w.Work(wk)
		run := w.End(w.Start(perdure.Submission{Kind: "tree", Input: client.JSON(3)}))
		if got, err := client.Result[int](run); got != 16 || err != nil {
			t.Errorf("leaves of the tree: %d, %v, want 16", got, err)
		}
	})
}

// A new run wakes the poll of its pool, whichever of the two polls came first.
func TestNewRunWakesThePollOfItsPool(t *testing.T) {
	virtual(t, func(w *world) {
		wk := worker.New(w.C, worker.Options{})
		worker.Handle(wk, "task", func(context.Context, int) (int, error) { return 1, nil })
		worker.Agent(wk, "agent", func(*agent.Context, int) (int, error) { return 1, nil })
		w.Work(wk)
		for _, kind := range []string{"task", "task", "task", "agent", "agent", "agent", "task", "agent"} {
			synctest.Wait()
			began := time.Now()
			w.End(w.Start(perdure.Submission{Kind: kind}))
			if took := time.Since(began); took > 100*time.Millisecond {
				t.Errorf("run of %s took %s, want at most 100ms", kind, took)
			}
		}
	})
}

func TestIdleWorkerOnlyPolls(t *testing.T) {
	stage.NoStore(t)
	virtual(t, func(w *world) {
		var mu sync.Mutex
		calls := make(map[string]int)
		c := w.Via(servertest.Tripper(func(r *http.Request) (*http.Response, error) {
			mu.Lock()
			calls[path.Base(r.URL.Path)]++
			mu.Unlock()
			return w.Wire.RoundTrip(r)
		}))
		wk := worker.New(c, worker.Options{})
		worker.Handle(wk, "task", func(context.Context, int) (int, error) { return 1, nil })
		worker.Agent(wk, "agent", func(*agent.Context, int) (int, error) { return 1, nil })
		w.Work(wk)
		for _, kind := range []string{"task", "agent"} { // the worker is idle after some work
			w.End(w.Start(perdure.Submission{Kind: kind}))
		}
		synctest.Wait()
		mu.Lock()
		clear(calls)
		mu.Unlock()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if polls := calls["poll"]; polls > 2*20 || polls < 2*19 || len(calls) != 1 {
			t.Errorf("calls in ten minutes: %v, want 38 to 40 polls and nothing else", calls)
		}
	})
}

// Slow handlers, silent or streaming, do not delay runs that have a slot.
func TestFiftySlowRunsDelayNoOther(t *testing.T) {
	const slow, others = 50, 10
	pace := func(t *testing.T, busy func(context.Context) error) (longest time.Duration) {
		virtual(t, func(w *world) {
			running := make(chan struct{}, slow)
			wk := worker.New(w.C, worker.Options{Slots: slow + 2})
			worker.Handle(wk, "model call", func(ctx context.Context, _ int) (int, error) {
				running <- struct{}{}
				return 1, busy(ctx)
			})
			worker.Handle(wk, "other", func(ctx context.Context, _ int) (int, error) {
				return 1, worker.Emit(ctx, "x:note", 1)
			})
			w.Work(wk)
			var ids []perdure.RunID
			for range slow {
				ids = append(ids, w.Start(perdure.Submission{Kind: "model call"}))
			}
			for range slow {
				<-running
			}
			for range others {
				began := time.Now()
				run := w.End(w.Start(perdure.Submission{Kind: "other"}))
				if run.State != perdure.Completed || run.Attempt != 1 {
					t.Errorf("other run: %s, attempt %d, want completed in attempt 1", run.State, run.Attempt)
				}
				longest = max(longest, time.Since(began))
				time.Sleep(100 * time.Millisecond)
			}
			for _, id := range ids {
				if run := w.End(id); run.State != perdure.Completed || run.Attempt != 1 {
					t.Errorf("slow run %s: %s, attempt %d, want completed in attempt 1", id, run.State, run.Attempt)
				}
			}
		})
		return longest
	}
	for name, busy := range map[string]func(context.Context) error{
		"silent": func(ctx context.Context) error { time.Sleep(time.Minute); return nil },
		"streaming": func(ctx context.Context) error {
			for i := range 60 {
				if err := worker.Delta(ctx, fmt.Sprintf("token %d ", i)); err != nil {
					return err
				}
				time.Sleep(25 * time.Millisecond)
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			if longest := pace(t, busy); longest > 10*time.Millisecond {
				t.Errorf("a run beside them took %s, want at most 10ms", longest)
			}
		})
	}
}

// A cancelled agent that is suspended is called once more, with an ended context, because it may
// have something to undo.
func TestSuspendedAgentIsCalledForItsCancel(t *testing.T) {
	both(t, func(w *world) {
		calls := make(chan error, 2)
		wk := worker.New(w.C, worker.Options{})
		worker.Agent(wk, "agent", func(ctx *agent.Context, _ int) (int, error) {
			calls <- context.Cause(ctx)
			return 0, agent.Sleep(ctx, time.Hour)
		})
		w.Work(wk)
		id := w.Start(perdure.Submission{Kind: "agent"})
		for e, err := range w.C.Events(w.Ctx, id, 0) {
			if err != nil {
				w.T.Fatal(err)
			}
			if e.Type == "run:suspended" {
				break
			}
		}
		run, err := w.C.Cancel(w.Ctx, id, "enough", w.Patience)
		if err != nil || run.State != perdure.Cancelled || run.Cancel.AckedAt == 0 {
			w.T.Errorf("Cancel = %+v, %v, want a cancelled run with an acknowledgement", run, err)
		}
		if len(calls) != 2 {
			w.T.Fatalf("the agent was called %d times, want 2", len(calls))
		}
		if first, second := <-calls, <-calls; first != nil || !errors.Is(second, worker.ErrCancelled) {
			w.T.Errorf("causes of the contexts: %v, then %v, want nil, then %v", first, second, worker.ErrCancelled)
		}
	})
}

package agent_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/worker"
)

// A panic in another goroutine of the agent fails the attempt. It ends neither the process nor
// blocks the worker's slot.
//
//perdurevet:ignore agenterror the step panics
func TestPanicInOtherGoroutineFailsAttempt(t *testing.T) {
	t.Parallel()
	virtual(t, func(w *scene) {
		stuck := make(chan int)
		w.work(func(wk *worker.Worker) {
			worker.Agent(wk, "side by side", func(ctx *agent.Context, _ struct{}) (int, error) {
				agent.Go(ctx, "side", func(ctx *agent.Context) error {
					n, _ := agent.Step(ctx, "burn", func(context.Context) (int, error) { panic("the disk is on fire") })
					stuck <- n
					return nil
				})
				return <-stuck, nil // nothing is sent
			})
		})
		run := w.ends("side by side", nil)
		if run.State != perdure.Failed || run.Error.Code != "panic" ||
			!strings.Contains(run.Error.Message, "burn#1") ||
			!strings.Contains(run.Error.Message, "goroutines_test.go") {
			t.Errorf("%s with error %+v, want failed with a panic in burn#1 and its stack", run.State, run.Error)
		}
		close(stuck)
	})
}

// The uses of a name are counted separately for steps, children, signals and so on. A new child
// does not shift the number of a step.
//
//perdurevet:ignore agentassign the second step is executed in the execution that reads its key
func TestUsesAreCountedPerKindOfThing(t *testing.T) {
	t.Parallel()
	w := open(t)
	var calls, mu = map[string]int{}, sync.Mutex{}
	w.work(func(wk *worker.Worker) {
		worker.Handle(wk, "x", func(context.Context, struct{}) (int, error) { return 1, nil })
		worker.Agent(wk, "changes", func(ctx *agent.Context, _ struct{}) (string, error) {
			mu.Lock()
			calls["agent"]++
			second := calls["agent"] > 1
			mu.Unlock()
			var key string
			step := func() error {
				_, err := agent.Step(ctx, "x", func(ctx context.Context) (int, error) {
					mu.Lock()
					defer mu.Unlock()
					calls["step"]++
					key = agent.IdempotencyKey(ctx)
					return 1, nil
				})
				return err
			}
			if err := step(); err != nil {
				return "", err
			}
			if err := agent.Sleep(ctx, time.Millisecond); err != nil {
				return "", err
			}
			if second { // a newer version of the code
				if _, err := agent.Spawn[int](ctx, "x", nil).Join(ctx); err != nil {
					return "", err
				}
			}
			if err := step(); err != nil {
				return "", err
			}
			return key[strings.LastIndexByte(key, '/'):], nil
		})
	})
	run := w.ends("changes", nil)
	completed(t, run, `"/x#2"`)
	if calls["step"] != 2 {
		t.Errorf("the steps were executed %d times, want once each", calls["step"])
	}
}

// A line that the agent writes while a step runs in a branch does not belong to the step,
// so it is written once.
func TestLinesBesideStepAreWrittenOnce(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "says", func(ctx *agent.Context, _ struct{}) (string, error) {
			begun, goOn := make(chan int, 1), make(chan int)
			side := agent.Go(ctx, "side", func(ctx *agent.Context) error {
				_, err := agent.Step(ctx, "s", func(context.Context) (int, error) { begun <- 1; <-goOn; return 1, nil })
				close(begun)
				return err
			})
			<-begun
			if err := agent.Emit(ctx, "x:beside", 1); err != nil {
				return "", err
			}
			close(goOn)
			if err := side.Join(ctx); err != nil {
				return "", err
			}
			if err := agent.Emit(ctx, "x:after", 1); err != nil {
				return "", err
			}
			return "", agent.Sleep(ctx, time.Millisecond)
		})
	})
	id := w.start(perdure.Submission{Kind: "says"})
	reached(t, w.end(id), perdure.Completed)
	for _, typ := range []perdure.LineType{"x:beside", "x:after"} {
		if n := len(w.lines(id, typ)); n != 1 {
			t.Errorf("log has %d lines %s, want 1", n, typ)
		}
	}
}

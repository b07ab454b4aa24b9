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

// A recorded step is not executed again. The number of a step inside it would go to the next step
// of the same name.
func TestStepInsideStepIsMisuse(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "nests", func(ctx *agent.Context, _ struct{}) (int, error) {
			return agent.Step(ctx, "outer", func(context.Context) (int, error) {
				return agent.Step(ctx, "inner", func(context.Context) (int, error) { return 1, nil })
			})
		})
	})
	run := w.ends("nests", nil)
	if run.State != perdure.Failed || run.Error.Code != agent.CodeMisuse ||
		!strings.Contains(run.Error.Message, `"inner"`) {
		t.Errorf("%s with error %+v, want failed with agent_misuse that names the inner step", run.State, run.Error)
	}
}

// A panic in another goroutine of the agent fails the attempt. It ends neither the process nor
// blocks the worker's slot.
func TestPanicInOtherGoroutineFailsAttempt(t *testing.T) {
	t.Parallel()
	virtual(t, func(w *scene) {
		stuck := make(chan int)
		w.work(func(wk *worker.Worker) {
			worker.Agent(wk, "side by side", func(ctx *agent.Context, _ struct{}) (int, error) {
				go func() {
					n, _ := agent.Step(ctx, "burn", func(context.Context) (int, error) { panic("the disk is on fire") })
					stuck <- n
				}()
				return <-stuck, nil // nothing is sent
			})
		})
		run := w.ends("side by side", nil)
		if run.State != perdure.Failed || run.Error.Code != "panic" ||
			!strings.Contains(run.Error.Message, "burn#1") || !strings.Contains(run.Error.Message, "goroutines_test.go") {
			t.Errorf("%s with error %+v, want failed with a panic in burn#1 and its stack", run.State, run.Error)
		}
		close(stuck)
	})
}

// The uses of a name are counted separately for steps, children, signals and so on. A new child
// does not shift the number of a step.
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
			if second { // a newer version of the code
				if _, err := agent.Spawn[int](ctx, "x", nil).Join(ctx); err != nil {
					return "", err
				}
			}
			var key string
			_, err := agent.Step(ctx, "x", func(ctx context.Context) (int, error) {
				mu.Lock()
				defer mu.Unlock()
				calls["step"]++
				key = agent.IdempotencyKey(ctx)
				return 1, nil
			})
			if err != nil {
				return "", err
			}
			return key, agent.Sleep(ctx, time.Millisecond)
		})
	})
	run := w.ends("changes", nil)
	if run.State != perdure.Completed || calls["step"] != 1 {
		t.Errorf("%s (error %+v), and the step was executed %d times; want completed, and once",
			run.State, run.Error, calls["step"])
	}
}

// A line that the agent writes while a step runs in another goroutine does not belong to the step,
// so it is written once.
func TestLinesBesideStepAreWrittenOnce(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "says", func(ctx *agent.Context, _ struct{}) (string, error) {
			begun, goOn, done := make(chan int, 1), make(chan int), make(chan error, 1)
			go func() {
				_, err := agent.Step(ctx, "s", func(context.Context) (int, error) { begun <- 1; <-goOn; return 1, nil })
				close(begun)
				done <- err
			}()
			<-begun
			if err := agent.Emit(ctx, "x:beside", 1); err != nil {
				return "", err
			}
			close(goOn)
			if err := <-done; err != nil {
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
	for _, typ := range []string{"x:beside", "x:after"} {
		if n := len(w.lines(id, typ)); n != 1 {
			t.Errorf("log has %d lines %s, want 1", n, typ)
		}
	}
}

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

// A step that is recorded is not executed again, and what was in it would hand its place to the next one of that name.
func TestAStepInsideOfAStepIsMisuse(t *testing.T) {
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
	if run.State != perdure.Failed || run.Error.Code != agent.CodeMisuse || !strings.Contains(run.Error.Message, `"inner"`) {
		t.Errorf("%s %+v", run.State, run.Error)
	}
}

// A panic in a goroutine of the agent's own is the end of the attempt, and neither of the program nor of the slot.
func TestAPanicInAStepOfAnotherGoroutineFailsTheAttempt(t *testing.T) {
	t.Parallel()
	virtual(t, func(w *scene) {
		stuck := make(chan int)
		w.work(func(wk *worker.Worker) {
			worker.Agent(wk, "side by side", func(ctx *agent.Context, _ struct{}) (int, error) {
				go func() {
					n, _ := agent.Step(ctx, "burn", func(context.Context) (int, error) { panic("the disk is on fire") })
					stuck <- n
				}()
				return <-stuck, nil // nobody sends
			})
		})
		run := w.ends("side by side", nil)
		if run.State != perdure.Failed || run.Error.Code != "panic" || !strings.Contains(run.Error.Message, "burn#1") || !strings.Contains(run.Error.Message, "goroutines_test.go") {
			t.Errorf("%s %+v", run.State, run.Error)
		}
		close(stuck)
	})
}

// Steps, children, signals and the rest have names of their own: one more of these shifts none of those.
func TestNamesAreCountedApart(t *testing.T) {
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
			if second { // the next version of the code
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
		t.Errorf("%s %+v, the step was executed %d times", run.State, run.Error, calls["step"])
	}
}

// A line that the agent writes while a step runs in another goroutine is the agent's, and is written once.
func TestLinesBesideAStepAreWrittenOnce(t *testing.T) {
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
	if run := w.end(id); run.State != perdure.Completed {
		t.Fatalf("%s %+v", run.State, run.Error)
	}
	for _, typ := range []string{"x:beside", "x:after"} {
		if n := len(w.lines(id, typ)); n != 1 {
			t.Errorf("%d lines %s", n, typ)
		}
	}
}

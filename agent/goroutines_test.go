package agent_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/worker"
)

// A recorded step is not executed again. The number of a step inside it would go to the next step
// of the same name.
//
//perdurevet:ignore agentcontext the misuse is what is tested
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
	id := w.start(perdure.Submission{Kind: "nests"})
	if message := w.defect(id, agent.CodeMisuse); !strings.Contains(message, `"inner"`) {
		t.Errorf("message = %q, want it to name the inner step", message)
	}
}

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

// Calls whose place among the others counts in a replay are for the agent's own goroutine and for
// branches. In another goroutine they do nothing, and the error says what to use.
//
//perdurevet:ignore agenterror the misuse is what is tested
func TestOrderedCallsInGoroutineAreMisuse(t *testing.T) {
	t.Parallel()
	w := open(t)
	var done tally
	effect := func(what string) int { return done.add(what) }
	calls := map[string]func(ctx *agent.Context){
		"Now":      func(ctx *agent.Context) { agent.Now(ctx, "n") },
		"UUID":     func(ctx *agent.Context) { agent.UUID(ctx, "u") },
		"Version":  func(ctx *agent.Context) { agent.Version(ctx, "v", 1) },
		"Message":  func(ctx *agent.Context) { _ = agent.Message(ctx, "user", 1) },
		"History":  func(ctx *agent.Context) { _, _ = ctx.History() },
		"Callback": func(ctx *agent.Context) { agent.Callback[int](ctx, "c", time.Minute) },
		"Sleep":    func(ctx *agent.Context) { _ = agent.Sleep(ctx, time.Minute) },
		"Signal":   func(ctx *agent.Context) { _, _ = agent.Signal[int](ctx, "s", time.Minute) },
		"Saga":     func(ctx *agent.Context) { _ = agent.Saga(ctx, "s", func() error { return nil }) },
		"Parallel": func(ctx *agent.Context) {
			one := func(context.Context, int) (int, error) { return effect("Parallel"), nil }
			_, _ = agent.Parallel(ctx, "p", []int{1}, one)
		},
		"Go": func(ctx *agent.Context) {
			agent.Go(ctx, "b", func(*agent.Context) error { effect("Go"); return nil })
		},
		`step "a"`: func(ctx *agent.Context) {
			_, _ = agent.Step(ctx, "a", func(context.Context) (int, error) { return effect("Step"), nil })
		},
		`Spawn of "kid"`: func(ctx *agent.Context) { agent.Spawn[int](ctx, "kid", 1) },
	}
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "elsewhere", func(ctx *agent.Context, what string) (string, error) {
			done := make(chan int)
			go func() {
				defer close(done)
				calls[what](ctx)
			}()
			<-done
			return "fine", nil
		})
	})
	for what := range calls {
		id := w.start(perdure.Submission{Kind: "elsewhere", Input: client.JSON(what), ThreadID: w.thread()})
		message := w.defect(id, agent.CodeMisuse)
		if !strings.HasPrefix(message, what+" in a goroutine") || !strings.Contains(message, "agent.Go") {
			t.Errorf("message = %q, want it to name %s and agent.Go", message, what)
		}
	}
	if len(done.all()) > 0 {
		t.Errorf("effects = %v, want none in a goroutine that is no branch", done.all())
	}
}

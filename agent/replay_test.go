package agent_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/worker"
)

var errStock = errors.New("out of stock")

// An agent may decide by the error of a saga, so every execution has to get the same error.
func TestSagaErrorIsTheSameInEveryExecution(t *testing.T) {
	t.Parallel()
	w := open(t)
	var done tally
	order := func(failing func(ctx *agent.Context) error) func(ctx *agent.Context, _ struct{}) (string, error) {
		return func(ctx *agent.Context, _ struct{}) (string, error) {
			err := agent.Saga(ctx, "order", func() error {
				if err := done.book(ctx, "pay"); err != nil {
					return err
				}
				return failing(ctx)
			})
			outcome := fmt.Sprint(err, "; stock: ", errors.Is(err, errStock), "; failed task: ",
				errors.Is(err, agent.ErrTaskFailed{}))
			path := strings.NewReplacer(";", "", "(", "", ")", "").Replace(outcome)
			if _, err := agent.Step(ctx, path, func(context.Context) (int, error) {
				done.add(outcome)
				return 0, nil
			}); err != nil {
				return "", err
			}
			return outcome, agent.Sleep(ctx, time.Millisecond)
		}
	}
	w.work(func(wk *worker.Worker) {
		worker.Handle(wk, "kid", func(context.Context, struct{}) (int, error) {
			return 0, perdure.Permanent(errors.New("no"))
		})
		worker.Agent(wk, "step", order(func(ctx *agent.Context) error {
			_, err := agent.Step(ctx, "ship", func(context.Context) (int, error) { return 0, errStock })
			return err
		}))
		worker.Agent(wk, "own", order(func(*agent.Context) error { return errStock }))
		worker.Agent(wk, "wrapped", order(func(ctx *agent.Context) error {
			_, err := agent.Step(ctx, "ship", func(context.Context) (int, error) { return 0, errStock })
			return fmt.Errorf("ship: %w", err)
		}))
		worker.Agent(wk, "child", order(func(ctx *agent.Context) error {
			_, err := agent.Spawn[int](ctx, "kid", nil).Join(ctx)
			return err
		}))
	})
	for _, kind := range []string{"step", "own", "wrapped", "child"} {
		reached(t, w.ends(kind, nil), perdure.Completed)
	}
	paths := 0
	for what := range done.n {
		if strings.Contains(what, "stock: ") {
			paths++
		}
	}
	if paths != 3 { // of four agents, of which two get the same error
		t.Errorf("%d different errors were seen, want 3, the same in every execution: %v", paths, done.all())
	}
}

// The shutdown of a worker is not a failure of its runs, whatever error the agent's functions
// return.
func TestWorkerShutdownIsNotRecorded(t *testing.T) {
	t.Parallel()
	w := open(t)
	var done tally
	started := make(chan int, 9)
	register := func(hang bool) func(wk *worker.Worker) {
		return func(wk *worker.Worker) {
			worker.Agent(wk, "saga", func(ctx *agent.Context, _ struct{}) (string, error) {
				err := agent.Saga(ctx, "a", func() error {
					if err := done.book(ctx, "pay"); err != nil {
						return err
					}
					started <- 1
					if hang {
						<-ctx.Done()
						return ctx.Err()
					}
					return nil
				})
				return "fine", err
			})
			worker.Agent(wk, "step", func(ctx *agent.Context, _ struct{}) (string, error) {
				return agent.Step(ctx, "call", func(ctx context.Context) (string, error) {
					started <- 1
					if hang {
						<-ctx.Done()
						return "", perdure.Permanent(fmt.Errorf("call: %w", ctx.Err()))
					}
					return "fine", nil
				})
			})
		}
	}
	for _, kind := range []string{"saga", "step"} {
		stop := w.workAt(w.nodes[0].Transport(), worker.Options{DrainTimeout: -1}, register(true))
		id := w.start(perdure.Submission{Kind: kind})
		next(w, started)
		stop()
		stop = w.work(register(false))
		completed(t, w.end(id), `"fine"`)
		stop()
	}
	if done.of("unpay") != 0 {
		t.Errorf("effects = %v, want no undo because of a shutdown", done.all())
	}
}

package agent_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/worker"
)

// The end of a step decides whether its function is called again.
func TestStepResultsAndErrors(t *testing.T) {
	t.Parallel()
	w := open(t)
	var done tally
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "recovers", func(ctx *agent.Context, _ struct{}) (string, error) {
			if err := done.do(ctx, "first"); err != nil {
				return "", err
			}
			return agent.Step(ctx, "second", func(ctx context.Context) (string, error) {
				if done.add("second") < 3 {
					return "", errors.New("not yet")
				}
				return agent.IdempotencyKey(ctx)[len("00000000-0000-0000-0000-000000000000"):], nil
			})
		})
		worker.Agent(wk, "permanent", func(ctx *agent.Context, _ struct{}) (string, error) {
			var errs []string
			for range 2 {
				_, err := agent.Step(ctx, "pay", func(context.Context) (int, error) {
					done.add("pay")
					return 0, perdure.Permanent(perdure.Errorf("no_money", "the card is empty"))
				})
				errs = append(errs, fmt.Sprint(perdure.CodeOf(err), " ", err, " ",
					errors.Is(err, &perdure.Error{Code: "no_money"})))
				if err := agent.Sleep(ctx, time.Millisecond); err != nil {
					return "", err
				}
			}
			return strings.Join(errs, "; "), nil
		})
		worker.Agent(wk, "panics", func(ctx *agent.Context, _ struct{}) (string, error) {
			return agent.Step(ctx, "burn", func(context.Context) (string, error) { panic("the disk is on fire") })
		})
		worker.Agent(wk, "exits", func(ctx *agent.Context, _ struct{}) (string, error) {
			return agent.Step(ctx, "huge", func(context.Context) (string, error) {
				done.add("huge")
				return strings.Repeat("x", perdure.MaxValue), nil
			})
		})
		worker.Agent(wk, "unwritable", func(ctx *agent.Context, _ struct{}) (string, error) {
			_, err := agent.Step(ctx, "open", func(context.Context) (chan int, error) {
				done.add("open")
				return nil, nil
			})
			return "", err
		})
		worker.Agent(wk, "handled", func(ctx *agent.Context, _ struct{}) (string, error) {
			_, err := agent.Step(ctx, "try", func(context.Context) (int, error) {
				return 0, errors.New("no such luck")
			})
			return fmt.Sprint(err), nil
		})
	})
	completed(t, w.ends("recovers", nil), `"/second#1"`)
	completed(t, w.ends("permanent", nil),
		`"no_money no_money: the card is empty true; no_money no_money: the card is empty true"`)
	completed(t, w.ends("handled", nil), `"no such luck"`)
	run := w.ends("panics", nil)
	failed(t, run, perdure.Failed, worker.CodePanic, 3)
	if !strings.Contains(run.Error.Message, "the disk is on fire") ||
		!strings.Contains(run.Error.Message, "step_test.go") {
		t.Errorf("error message = %s, want the panic's text and its stack", run.Error.Message)
	}
	run = w.ends("exits", nil)
	if run.State != perdure.Failed || run.Attempt != 1 || !strings.Contains(run.Error.Message, "huge#1") ||
		!strings.Contains(run.Error.Message, fmt.Sprint(perdure.MaxValue)) {
		t.Errorf("step with a large result: %s after %d attempts, error %+v; want failed after 1, with the key and "+
			"the limit",
			run.State, run.Attempt, run.Error)
	}
	run = w.ends("unwritable", nil)
	if run.State != perdure.Failed || run.Attempt != 1 || !strings.Contains(run.Error.Message, "open#1") ||
		!strings.Contains(run.Error.Message, "chan int") {
		t.Errorf("step with a channel as result: %s after %d attempts, error %+v; want failed after 1, with key "+
			"and type",
			run.State, run.Attempt, run.Error)
	}
	for what, n := range map[string]int{"first": 1, "second": 3, "pay": 2, "huge": 1, "open": 1} {
		if done.of(what) != n {
			t.Errorf("function of step %s was called %d times, want %d", what, done.of(what), n)
		}
	}
}

func TestStepRetriesWithinOneAttempt(t *testing.T) {
	virtual(t, func(w *scene) {
		var done tally
		stop := w.work(func(wk *worker.Worker) {
			worker.Agent(wk, "tries", func(ctx *agent.Context, good int) (int, error) {
				return agent.Step(ctx, "call", func(context.Context) (int, error) {
					if n := done.add(fmt.Sprint("call for ", good)); n < good {
						return 0, errors.New("busy")
					}
					return good, nil
				}, agent.Retry{Attempts: 4})
			})
			worker.Agent(wk, "gives up", func(ctx *agent.Context, _ struct{}) (int, error) {
				return agent.Step(ctx, "call", func(context.Context) (int, error) {
					done.add("permanent")
					return 0, perdure.Permanent(errors.New("no"))
				}, agent.Retry{Attempts: 4})
			})
		})
		defer stop()
		began := time.Now()
		run := w.ends("tries", 4)
		completed(w.t, run, "4")
		if run.Attempt != 1 || time.Since(began) < 7*time.Second { // 1, 2 and 4 s of pauses
			w.t.Errorf("run %s: %d attempts in %s, want 1 with 7 s of pauses", run.RunID, run.Attempt,
				time.Since(began))
		}
		completed(w.t, w.ends("tries", 5), "5") // in the second attempt
		failed(w.t, w.ends("gives up", nil), perdure.Failed, perdure.CodeFailed, 1)
		if done.of("permanent") != 1 {
			w.t.Errorf("a step with a permanent error was called %d times, want once", done.of("permanent"))
		}
	})
}

func TestPanicDoesNotAffectOtherRuns(t *testing.T) {
	t.Parallel()
	w := open(t)
	working, goOn := make(chan struct{}), make(chan struct{})
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "works", func(ctx *agent.Context, _ struct{}) (string, error) {
			return agent.Step(ctx, "long", func(context.Context) (string, error) {
				close(working)
				<-goOn
				return "done", nil
			})
		})
		worker.Agent(wk, "panics", func(ctx *agent.Context, _ struct{}) (string, error) { panic("no") })
	})
	id := w.start(perdure.Submission{Kind: "works"})
	next(w, working)
	panics := w.start(perdure.Submission{Kind: "panics"})
	w.held(panics, worker.CodePanic)
	w.giveUp(panics)
	failed(t, w.end(panics), perdure.Failed, worker.CodePanic, 1)
	close(goOn)
	completed(t, w.end(id), `"done"`)
}

func TestStepsRunConcurrently(t *testing.T) {
	t.Parallel()
	w := open(t)
	var done tally
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "parallel", func(ctx *agent.Context, n int) (sum int, err error) {
			var all sync.WaitGroup
			all.Add(n)
			got, errs := make([]int, n), make([]error, n)
			branches := make([]*agent.Branch, n)
			for i := range n {
				branches[i] = agent.Go(ctx, fmt.Sprint("branch ", i), func(ctx *agent.Context) (err error) {
					got[i], err = agent.Step(ctx, "part", func(context.Context) (int, error) {
						done.add("part")
						all.Done()
						all.Wait() // until all of them are running
						return i, nil
					})
					return err
				})
			}
			for i, b := range branches {
				errs[i] = b.Join(ctx)
			}
			if err := agent.Sleep(ctx, time.Millisecond); err != nil {
				return 0, err
			}
			for _, v := range got {
				sum += v
			}
			return sum, errors.Join(errs...)
		})
	})
	completed(t, w.ends("parallel", 20), "190")
	if done.of("part") != 20 {
		t.Errorf("steps were executed %d times, want 20", done.of("part"))
	}
}

// An agent may decide by times and ids, so a replay has to get the same.
func TestNowAndUUIDAreTheSameInEveryExecution(t *testing.T) {
	t.Parallel()
	w := open(t)
	var seen tally
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "draws", func(ctx *agent.Context, _ struct{}) (int, error) {
			for range 3 {
				seen.add(fmt.Sprint(agent.Now(ctx, "n").UnixNano(), agent.UUID(ctx, "u")))
				if err := agent.Sleep(ctx, time.Millisecond); err != nil {
					return 0, err
				}
			}
			return 0, nil
		})
	})
	completed(t, w.ends("draws", nil), "0")
	if len(seen.n) != 3 || len(seen.all()) != 4+3+2 { // four executions, of which the last two see all three
		t.Errorf("times and ids seen = %v, want 3 different ones, seen 9 times in all", seen.n)
	}
}

// Of several options, a field that is set replaces the earlier one.
//
//perdurevet:ignore agenterror the test counts how often the step fails
func TestLaterOptionsReplaceFieldsOfEarlierOnes(t *testing.T) {
	virtual(t, func(w *scene) {
		var calls tally
		stop := w.work(func(wk *worker.Worker) {
			worker.Handle(wk, "late", func(_ context.Context, n int) (int, error) { return n, nil })
			worker.Agent(wk, "boss", func(ctx *agent.Context, _ struct{}) (string, error) {
				fails := func(context.Context) (int, error) { calls.add("call"); return 0, errors.New("no") }
				_, _ = agent.Step(ctx, "fail", fails, agent.Retry{Attempts: 6}, agent.StepOptions{},
					agent.Retry{Attempts: 3})
				child := agent.Spawn[int](ctx, "late", 1, agent.Options{Queue: "nowhere", Delay: time.Minute},
					agent.Options{Queue: perdure.DefaultQueue}, agent.Timeout(time.Hour))
				run, err := child.Peek(ctx)
				if err != nil {
					return "", err
				}
				got, err := agent.Map[int](ctx, "late", numbers(2)) // options are optional
				return fmt.Sprint(run.Queue, run.DeadlineAt.Sub(run.CreatedAt), got.Completed), err
			})
		})
		defer stop()
		completed(w.t, w.ends("boss", nil), `"default1h1m0s 2"`)
		if n := calls.of("call"); n != 3 {
			w.t.Errorf("the step was called %d times, want 3", n)
		}
	})
}

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
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/worker"
)

// failsOnce executes a step whose function fails the first time it is called.
func (y *tally) failsOnce(ctx *agent.Context, name string) (string, error) {
	return agent.Step(ctx, name, func(context.Context) (string, error) {
		if y.add(name) == 1 {
			return "", perdure.Errorf("busy", "the line of %s is busy", name)
		}
		return name, nil
	})
}

// An error that the agent goes past is a fact: every later execution gets it, although the step would
// succeed by now.
func TestErrorThatAgentGoesPastIsRecorded(t *testing.T) {
	t.Parallel()
	w := open(t)
	for name, next := range map[string]func(ctx *agent.Context, done *tally) error{
		"step":  func(ctx *agent.Context, done *tally) error { return done.do(ctx, "fallback") },
		"spawn": func(ctx *agent.Context, _ *tally) error { agent.Spawn[int](ctx, "kid", nil).ID(); return nil },
		"sleep": func(ctx *agent.Context, _ *tally) error { return agent.Sleep(ctx, time.Millisecond) },
		"join": func(ctx *agent.Context, _ *tally) error {
			_, err := agent.Spawn[int](ctx, "kid", nil).Join(ctx)
			return err
		},
		"signal": func(ctx *agent.Context, _ *tally) error {
			_, err := agent.Signal[int](ctx, "s", -1)
			if !errors.Is(err, agent.ErrSignalTimeout) {
				return err
			}
			return nil
		},
		"version": func(ctx *agent.Context, _ *tally) error { agent.Version(ctx, "v", 1); return nil },
		"now":     func(ctx *agent.Context, _ *tally) error { agent.Now(ctx, "n"); return nil },
		"uuid":    func(ctx *agent.Context, _ *tally) error { agent.UUID(ctx, "u"); return nil },
		"callback": func(ctx *agent.Context, _ *tally) error {
			agent.Callback[int](ctx, "c", time.Minute).Token()
			return nil
		},
		"saga": func(ctx *agent.Context, done *tally) error {
			return agent.Saga(ctx, "s", func() error { return done.book(ctx, "saga") })
		},
	} {
		t.Run(name, func(t *testing.T) {
			var done tally
			kind := "past by " + name
			w.work(func(wk *worker.Worker) {
				worker.Handle(wk, "kid", func(context.Context, struct{}) (int, error) { return 1, nil })
				worker.Agent(wk, kind, func(ctx *agent.Context, _ struct{}) (string, error) {
					_, err := done.failsOnce(ctx, "a")
					text := fmt.Sprint(err, " ", perdure.CodeOf(err), " ", errors.Is(err, &perdure.Error{Code: "busy"}))
					if err := next(ctx, &done); err != nil {
						return "", err
					}
					if done.add("execution") == 1 {
						return "", errors.New("crash") // the next execution replays all of it
					}
					return text, agent.Sleep(ctx, 2*time.Millisecond)
				})
			})
			completed(t, w.ends(kind, nil), `"busy: the line of a is busy busy true"`)
			if done.of("a") != 1 {
				t.Errorf("the failed step was executed %d times, want once", done.of("a"))
			}
		})
	}
}

// An error that the agent returns is no fact, also if it has reported it before: the next attempt
// executes the step again.
func TestErrorThatAgentReturnsIsNotRecorded(t *testing.T) {
	t.Parallel()
	w := open(t)
	for name, report := range map[string]func(ctx *agent.Context, done *tally) error{
		"at once": func(*agent.Context, *tally) error { return nil },
		"after a message": func(ctx *agent.Context, _ *tally) error {
			return agent.Message(ctx, "assistant", "it does not work")
		},
		"after progress": func(ctx *agent.Context, _ *tally) error { return agent.Progress(ctx, 1) },
		"after a line":   func(ctx *agent.Context, _ *tally) error { return agent.Emit(ctx, "x:line", 1) },
		"after text":     func(ctx *agent.Context, _ *tally) error { return agent.Delta(ctx, "oh no") },
		"after a flush": func(ctx *agent.Context, _ *tally) error {
			err := agent.Emit(ctx, "x:line", 1)
			eventually.True(t, "the line is flushed", func() bool { return len(w.lines(ctx.RunID(), "x:line")) > 0 })
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			var done tally
			kind := "returns " + name
			w.work(func(wk *worker.Worker) {
				worker.Agent(wk, kind, func(ctx *agent.Context, _ struct{}) (string, error) {
					v, err := done.failsOnce(ctx, "a")
					if err := report(ctx, &done); err != nil {
						return "", err
					}
					if err != nil {
						return "", fmt.Errorf("wrapped: %w", err)
					}
					return v, nil
				})
			})
			run := w.end(w.start(perdure.Submission{Kind: kind, ThreadID: w.thread()}))
			completed(t, run, `"a"`)
			if done.of("a") != 2 {
				t.Errorf("the failed step was executed %d times, want twice", done.of("a"))
			}
		})
	}
}

// An agent that returns an error that is recorded fails at once: the next attempt would get the same.
func TestReturnOfRecordedErrorEndsRun(t *testing.T) {
	t.Parallel()
	w := open(t)
	var done tally
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "cleans up", func(ctx *agent.Context, _ struct{}) (string, error) {
			v, err := done.failsOnce(ctx, "a")
			if err != nil {
				if err := done.do(ctx, "clean up"); err != nil {
					return "", err
				}
				return "", fmt.Errorf("cleaned up after: %w", err)
			}
			return v, nil
		})
		worker.Agent(wk, "tries thrice", func(ctx *agent.Context, _ struct{}) (v string, err error) {
			for range 3 { // the errors of the first two are facts, that of the third is tried again
				if v, err = agent.Step(ctx, "try", func(context.Context) (string, error) {
					if done.add("try") < 5 {
						return "", errors.New("not yet")
					}
					return "at last", nil
				}); err == nil {
					break
				}
			}
			return v, err
		})
	})
	run := w.ends("cleans up", nil)
	failed(t, run, perdure.Failed, "busy", 1)
	if run.Error != nil && !strings.Contains(run.Error.Message, "cleaned up after: ") {
		t.Errorf("error = %+v, want the agent's own words", run.Error)
	}
	if done.of("a") != 1 || done.of("clean up") != 1 {
		t.Errorf("effects = %v, want each once", done.all())
	}
	run = w.ends("tries thrice", nil)
	completed(t, run, `"at last"`)
	if run.Attempt != 3 || done.of("try") != 5 {
		t.Errorf("attempt %d after %d tries, want the third after 5: 3, 1 and 1", run.Attempt, done.of("try"))
	}
}

// The step that fails in a saga belongs to the saga's failure, which every execution gets in the same
// words.
func TestErrorOfStepInSagaIsTheSagas(t *testing.T) {
	t.Parallel()
	w := open(t)
	var done tally
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "trip", func(ctx *agent.Context, _ struct{}) (string, error) {
			err := agent.Saga(ctx, "s", func() error {
				if err := done.book(ctx, "flight"); err != nil {
					return err
				}
				_, err := done.failsOnce(ctx, "hotel")
				return fmt.Errorf("no hotel: %w", err)
			})
			if err := agent.Sleep(ctx, time.Millisecond); err != nil {
				return "", err
			}
			if err := done.do(ctx, strings.NewReplacer(":", "").Replace(err.Error())); err != nil {
				return "", err
			}
			return err.Error(), agent.Sleep(ctx, time.Millisecond)
		})
	})
	const text = "busy: no hotel: busy: the line of hotel is busy"
	completed(t, w.ends("trip", nil), fmt.Sprintf("%q", text))
	done.expect(t, "flight", "hotel", "unflight", strings.ReplaceAll(text, ":", ""))
}

package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/worker"
)

// book executes a step with an undo. Both are counted.
func (y *tally) book(ctx *agent.Context, name string) error {
	return y.do(ctx, name, agent.Undo(func(_ context.Context, result string) error {
		y.add("un" + result)
		return nil
	}))
}

// expect checks all effects, in order.
func (y *tally) expect(t *testing.T, want ...string) {
	t.Helper()
	if got := y.all(); !slices.Equal(got, want) {
		t.Errorf("effects = %v, want %v", got, want)
	}
}

func TestSagaIsUndoneInReverse(t *testing.T) {
	t.Parallel()
	w := open(t)
	var done tally
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "trip", func(ctx *agent.Context, _ struct{}) (string, error) {
			err := agent.Saga(ctx, "trip", func() error {
				for _, what := range []string{"flight", "hotel", "car"} {
					if err := done.book(ctx, what); err != nil {
						return err
					}
					// so that each step is in another execution
					if err := agent.Sleep(ctx, time.Millisecond); err != nil {
						return err
					}
				}
				return fmt.Errorf("payment: %w", errors.New("refused"))
			})
			if err == nil {
				return "", errors.New("the saga returned no error")
			}
			if err := agent.Sleep(ctx, time.Millisecond); err != nil { // so that the saga is replayed as a whole
				return "", err
			}
			if err := done.do(ctx, "apologize"); err != nil {
				return "", err
			}
			return "sorry: " + err.Error(), nil
		})
	})
	run := w.ends("trip", nil)
	if run.State != perdure.Completed || !strings.Contains(string(run.Result), "payment: refused") {
		t.Errorf("%s with result %s (error %+v), want completed with the saga's error", run.State, run.Result,
			run.Error)
	}
	done.expect(t, "flight", "hotel", "car", "uncar", "unhotel", "unflight", "apologize")
}

func TestSucceededSagaIsNotUndone(t *testing.T) {
	t.Parallel()
	w := open(t)
	var done tally
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "trip", func(ctx *agent.Context, _ struct{}) (string, error) {
			if err := agent.Saga(ctx, "trip", func() error { return done.book(ctx, "flight") }); err != nil {
				return "", err
			}
			return "", perdure.Permanent(errors.New("later, and elsewhere"))
		})
		worker.Agent(wk, "loose", func(ctx *agent.Context, _ struct{}) (string, error) {
			return "", done.book(ctx, "flight")
		})
	})
	run := w.ends("trip", nil)
	failed(t, run, perdure.Failed, perdure.CodeFailed, 1)
	w.notUndone(run) // none: the steps were to be kept
	w.defect(w.start(perdure.Submission{Kind: "loose"}), agent.CodeMisuse)
	done.expect(t, "flight")
}

// An inner saga that fails undoes its own steps. If it has succeeded, the outer saga undoes them.
func TestNestedSagas(t *testing.T) {
	t.Parallel()
	rows := []struct {
		fails string
		want  []string
	}{
		{"inner", []string{"a", "b", "c", "unc", "unb", "d", "e"}},         // the error is handled
		{"inner, passed on", []string{"a", "b", "c", "unc", "unb", "una"}}, // the error is returned
		{"outer", []string{"a", "b", "c", "d", "e", "une", "und", "unc", "unb", "una"}},
		{"", []string{"a", "b", "c", "d", "e"}},
	}
	for _, row := range rows {
		t.Run(row.fails, func(t *testing.T) {
			t.Parallel()
			w := open(t)
			var done tally
			w.work(func(wk *worker.Worker) {
				worker.Agent(wk, "nested", func(ctx *agent.Context, _ struct{}) (string, error) {
					book := func(names ...string) error {
						for _, name := range names {
							if err := done.book(ctx, name); err != nil {
								return err
							}
							if err := agent.Sleep(ctx, time.Millisecond); err != nil {
								return err
							}
						}
						return nil
					}
					err := agent.Saga(ctx, "outer", func() error {
						if err := book("a"); err != nil {
							return err
						}
						err := agent.Saga(ctx, "inner", func() error {
							if err := book("b", "c"); err != nil {
								return err
							}
							if strings.HasPrefix(row.fails, "inner") {
								return errors.New("inner")
							}
							return nil
						})
						if err != nil && row.fails != "inner" {
							return err
						}
						if err := book("d", "e"); err != nil {
							return err
						}
						if row.fails == "outer" {
							return errors.New("outer")
						}
						return nil
					})
					return fmt.Sprint(err != nil), nil
				})
			})
			completed(t, w.ends("nested", nil),
				fmt.Sprintf("%q", fmt.Sprint(row.fails == "outer" || row.fails == "inner, passed on")))
			done.expect(t, row.want...)
		})
	}
}

// The cancel request comes before the run has begun, while a step is executed, and while the run
// waits.
func TestCancelledSagaIsUndone(t *testing.T) {
	t.Parallel()
	w := open(t)
	begun := make(chan struct{}, 1)
	var done tally
	register := func(wk *worker.Worker) {
		worker.Agent(wk, "trip", func(ctx *agent.Context, in string) (string, error) {
			return "", agent.Saga(ctx, "trip", func() error {
				if err := done.do(ctx, in+" flight", agent.Undo(func(ctx context.Context, r string) error {
					if ctx.Err() != nil {
						return fmt.Errorf("the context of an undo has ended: %w", ctx.Err())
					}
					done.add("un" + r)
					return nil
				})); err != nil {
					return err
				}
				if in == "waiting" {
					_, err := agent.Signal[int](ctx, "go on", time.Hour)
					return err
				}
				_, err := agent.Step(ctx, "hotel", func(ctx context.Context) (int, error) {
					begun <- struct{}{}
					<-ctx.Done()
					return 0, ctx.Err()
				})
				return err
			})
		})
	}
	early := w.start(perdure.Submission{Kind: "trip", Input: client.JSON("early")})
	if _, err := w.c.Cancel(w.ctx, early, "", 0); err != nil {
		t.Fatal(err)
	}
	w.work(register)
	working := w.start(perdure.Submission{Kind: "trip", Input: client.JSON("working")})
	next(w, begun)
	waiting := w.start(perdure.Submission{Kind: "trip", Input: client.JSON("waiting")})
	w.suspended(waiting)
	for _, id := range []perdure.RunID{early, working, waiting} {
		if _, err := w.c.Cancel(w.ctx, id, "changed my mind", 0); err != nil {
			t.Fatal(err)
		}
		reached(t, w.end(id), perdure.Cancelled)
	}
	for what, n := range map[string]int{"early flight": 0, "unearly flight": 0, "working flight": 1,
		"unworking flight": 1, "waiting flight": 1, "unwaiting flight": 1} {
		if done.of(what) != n {
			t.Errorf("effect %q happened %d times, want %d", what, done.of(what), n)
		}
	}
}

// After a cancel request the agent is replayed, to find the steps to undo. Everything that it reads
// on the way has to be available.
func TestCancelledSagaIsReplayedAndUndone(t *testing.T) {
	t.Parallel()
	w := open(t)
	var done tally
	w.work(func(wk *worker.Worker) {
		worker.Handle(wk, "child", func(context.Context, int) (int, error) { return 1, nil })
		worker.Agent(wk, "trip", func(ctx *agent.Context, _ json.RawMessage) (string, error) {
			return "", agent.Saga(ctx, "trip", func() error {
				messages, err := ctx.History()
				if err != nil {
					return err
				}
				if err := agent.Message(ctx, "assistant", len(messages)); err != nil {
					return err
				}
				if err := done.book(ctx, "a"); err != nil {
					return err
				}
				if _, err := agent.Spawn[int](ctx, "child", 1).Join(ctx); err != nil {
					return err
				}
				if err := agent.Sleep(ctx, time.Millisecond); err != nil {
					return err
				}
				if messages, err := ctx.History(); err != nil || len(messages) != 1 {
					return fmt.Errorf("%d messages, want 1: %w", len(messages), err)
				}
				if err := done.book(ctx, "b"); err != nil {
					return err
				}
				answer := agent.Callback[int](ctx, "answer", time.Hour)
				agent.Spawn[int](ctx, "tells", answer.Token())
				if err := done.book(ctx, "c"); err != nil {
					return err
				}
				_, err = answer.Join(ctx)
				return err
			})
		})
	})
	id := w.start(perdure.Submission{Kind: "trip", ThreadID: w.thread()})
	w.waits(id, "callback:answer#1")
	if _, err := w.c.Cancel(w.ctx, id, "", 0); err != nil {
		t.Fatal(err)
	}
	reached(t, w.end(id), perdure.Cancelled)
	done.expect(t, "a", "b", "c", "unc", "unb", "una")
}

// An undo that fails is retried at once. If it keeps failing, the other steps are undone
// nevertheless, and the error names the step.
func TestFailedUndoIsRetriedAndReported(t *testing.T) {
	virtual(t, func(w *scene) {
		var done tally
		stop := w.work(func(wk *worker.Worker) {
			worker.Agent(wk, "trip", func(ctx *agent.Context, good int) (string, error) {
				return "", agent.Saga(ctx, "trip", func() error {
					if err := done.book(ctx, "first"); err != nil {
						return err
					}
					if err := done.do(ctx, "second", agent.Undo(func(ctx context.Context, r string) error {
						if n := done.add(agent.IdempotencyKey(ctx)[36:]); n < good {
							return errors.New("the line is busy")
						}
						return nil
					})); err != nil {
						return err
					}
					return perdure.Errorf("refused", "no money")
				})
			})
		})
		defer stop()
		run := w.ends("trip", 3)
		failed(w.t, run, perdure.Failed, "refused", 1)
		if done.of("unfirst") != 1 {
			w.t.Errorf("effects = %v, want unfirst once", done.all())
		}
		run = w.ends("trip", 1000)
		failed(w.t, run, perdure.Failed, agent.CodeNotUndone, 3)
		if done.of("unfirst") != 2 {
			w.t.Errorf("effects = %v, want unfirst twice: the failure of second must not stop it", done.n)
		}
		if !strings.Contains(run.Error.Message, "second#1") || strings.Contains(run.Error.Message, "first#1") ||
			!strings.Contains(run.Error.Message, "no money") {
			w.t.Errorf("error message = %q, want it to name second#1 alone, and the first cause", run.Error.Message)
		}
		w.notUndone(run, "second#1")
	})
}

// After the deadline nothing is undone, and the deliverable lists the steps.
func TestNothingIsUndoneAfterDeadline(t *testing.T) {
	virtual(t, func(w *scene) {
		var done tally
		stop := w.work(func(wk *worker.Worker) {
			worker.Agent(wk, "trip", func(ctx *agent.Context, _ struct{}) (string, error) {
				return "", agent.Saga(ctx, "trip", func() error {
					if err := done.book(ctx, "flight"); err != nil {
						return err
					}
					if err := done.book(ctx, "hotel"); err != nil {
						return err
					}
					_, err := agent.Step(ctx, "pay", func(ctx context.Context) (int, error) {
						<-ctx.Done()
						return 0, ctx.Err()
					})
					return err
				})
			})
		})
		defer stop()
		run := w.end(w.start(perdure.Submission{Kind: "trip", Timeout: perdure.Duration(time.Minute)}))
		failed(w.t, run, perdure.TimedOut, perdure.CodeDeadline, 1)
		done.expect(w.t, "flight", "hotel")
		w.notUndone(run, "flight#1", "hotel#1")
	})
}

// notUndone checks the steps that a run's deliverable lists as not undone.
func (w *scene) notUndone(run *api.Run, want ...string) {
	w.t.Helper()
	d, err := w.c.Deliverable(w.ctx, run.RunID)
	if err != nil {
		w.t.Fatal(err)
	}
	var fallback struct {
		NotUndone []string `json:"not_undone"`
	}
	if err := json.Unmarshal(d.Content, &fallback); err != nil {
		w.t.Fatal(err)
	}
	slices.Sort(fallback.NotUndone)
	if !slices.Equal(fallback.NotUndone, want) {
		w.t.Errorf("not_undone = %v, want %v (deliverable %s)", fallback.NotUndone, want, d.Content)
	}
}

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
	"github.com/perdure/perdure/agenttest"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/worker"
)

// both begins two branches and joins them.
func both(ctx *agent.Context, left, right func(ctx *agent.Context) error) error {
	l, r := agent.Go(ctx, "left", left), agent.Go(ctx, "right", right)
	if err := l.Join(ctx); err != nil {
		return err
	}
	return r.Join(ctx)
}

// opens waits until a run is suspended and has opened a wait.
func (w *scene) opens(id perdure.RunID, wait string) {
	w.t.Helper()
	eventually.True(w.t, "run "+string(id)+" opens the wait "+wait, func() bool {
		return slices.ContainsFunc(w.lines(id, perdure.LineWaitOpened), func(line json.RawMessage) bool {
			return strings.Contains(string(line), fmt.Sprintf("%q", wait))
		})
	})
	w.suspended(id)
}

// inBranch returns an agent with a branch that executes steps and waits in order.
func inBranch(done *tally, branch string, names ...string) code {
	return func(ctx *agent.Context, in int) (out string, err error) {
		err = agent.Go(ctx, branch, func(ctx *agent.Context) (err error) {
			out, err = steps(done, names...)(ctx, in)
			return err
		}).Join(ctx)
		return out, err
	}
}

// The run is suspended when all branches wait, on the waits of all. Either may go on first.
func TestRunIsSuspendedWhenAllBranchesWait(t *testing.T) {
	t.Parallel()
	w := open(t)
	var done tally
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "two", func(ctx *agent.Context, _ struct{}) (string, error) {
			one := func(ctx *agent.Context) error {
				if err := done.do(ctx, "before"); err != nil {
					return err
				}
				_, err := agent.Signal[int](ctx, "go on", time.Hour)
				return errors.Join(err, done.do(ctx, "after"))
			}
			other := func(ctx *agent.Context) error {
				_, err := agent.Signal[int](ctx, "come", time.Hour)
				return errors.Join(err, done.do(ctx, "after"))
			}
			return "both", both(ctx, one, other)
		})
	})
	id := w.start(perdure.Submission{Kind: "two"})
	w.opens(id, "left#1//signal:go on#1")
	w.signal(id, "come", nil)
	eventually.True(t, "one branch goes on", func() bool { return done.of("after") == 1 })
	w.suspended(id)
	w.signal(id, "go on", nil)
	completed(t, w.end(id), `"both"`)
	if done.of("before") != 1 || done.of("after") != 2 {
		t.Errorf("effects = %v, want before once, and after once in each branch", done.all())
	}
}

// A branch that waits goes on while another one works: for a signal, for a time, for a child.
func TestBranchGoesOnWhileAnotherWorks(t *testing.T) {
	t.Parallel()
	w := open(t)
	for name, wait := range map[string]func(ctx *agent.Context) error{
		"signal": func(ctx *agent.Context) error { _, err := agent.Signal[int](ctx, "come", time.Hour); return err },
		"sleep":  func(ctx *agent.Context) error { return agent.Sleep(ctx, 30*time.Millisecond) },
		"child":  func(ctx *agent.Context) error { _, err := agent.Spawn[int](ctx, "kid", 1).Join(ctx); return err },
		"timer": func(ctx *agent.Context) error {
			n, err := agent.Select(ctx, agent.OnSignal[int](ctx, "never"), agent.After(ctx, 30*time.Millisecond))
			if err == nil && n != 1 {
				err = fmt.Errorf("%d was the first, want the timer", n)
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var done tally
			working, waited := make(chan int, 1), make(chan int)
			w.work(func(wk *worker.Worker) {
				worker.Handle(wk, "kid", func(context.Context, int) (int, error) { return 1, nil })
				worker.Agent(wk, "waits for "+name, func(ctx *agent.Context, _ struct{}) (string, error) {
					err := both(ctx, func(ctx *agent.Context) error {
						if err := wait(ctx); err != nil {
							return err
						}
						if done.add("waited") == 1 {
							close(waited)
						}
						return nil
					}, func(ctx *agent.Context) error {
						_, err := agent.Step(ctx, "work", func(context.Context) (int, error) {
							working <- done.add("work")
							<-waited
							return 1, nil
						})
						return err
					})
					if err != nil {
						return "", err
					}
					return "both", agent.Sleep(ctx, time.Millisecond)
				})
			})
			id := w.start(perdure.Submission{Kind: "waits for " + name})
			next(w, working)
			w.signal(id, "come", nil)
			completed(t, w.end(id), `"both"`)
			if done.of("work") != 1 || done.of("waited") < 2 {
				t.Errorf("effects = %v, want the work once, and the wait again in the replay", done.all())
			}
		})
	}
}

// Branches have what an agent has: branches within, Parallel, Map, versions, ids, and the same names.
func TestBranchesHaveWhatAnAgentHas(t *testing.T) {
	t.Parallel()
	w := open(t)
	var done tally
	w.work(func(wk *worker.Worker) {
		worker.Handle(wk, "double", func(_ context.Context, n int) (int, error) { return 2 * n, nil })
		worker.Agent(wk, "all", func(ctx *agent.Context, _ struct{}) (out [2]int, err error) {
			part := func(n int) func(ctx *agent.Context) error {
				return func(ctx *agent.Context) error {
					id := agent.UUID(ctx, "id")
					if agent.Version(ctx, "v", n+1) != n+1 {
						return errors.New("another version")
					}
					square := func(_ context.Context, v int) (int, error) { return v*v + 0*done.add("square"), nil }
					squares, err := agent.Parallel(ctx, "square", []int{1, 2, n}, square)
					if err != nil {
						return err
					}
					doubles, err := agent.Map[int](ctx, "double", []int{1, n})
					if err != nil {
						return err
					}
					inner := 0
					deep := agent.Go(ctx, "deep", func(ctx *agent.Context) (err error) {
						inner, err = agent.Step(ctx, "work", func(ctx context.Context) (int, error) {
							key := agent.IdempotencyKey(ctx)
							done.add(key[strings.IndexByte(key, '/')+1:])
							return n, nil
						})
						return errors.Join(err, agent.Sleep(ctx, time.Millisecond))
					})
					if err := deep.Join(ctx); err != nil {
						return err
					}
					if err := agent.Sleep(ctx, time.Millisecond); err != nil {
						return err
					}
					if again := agent.UUID(ctx, "id"); again == id {
						return errors.New("the same id twice")
					}
					for _, v := range slices.Concat(squares.Results, doubles.Results, []int{inner}) {
						out[n] += v
					}
					return nil
				}
			}
			return out, both(ctx, part(0), part(1))
		})
	})
	completed(t, w.ends("all", nil), "[7,11]")
	for what, want := range map[string]int{"square": 6, "left#1//deep#1//work#1": 1, "right#1//deep#1//work#1": 1} {
		if got := done.of(what); got != want {
			t.Errorf("%s was executed %d times, want %d: %v", what, got, want, done.all())
		}
	}
}

// An agent that returns an error while a branch waits does not wait for it. If the error is permanent,
// the saga of the branch is undone. If it is not, the next attempt goes on with the branch.
func TestErrorOfAgentEndsItsBranches(t *testing.T) {
	t.Parallel()
	w := open(t)
	var done tally
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "ends", func(ctx *agent.Context, permanent bool) (string, error) {
			began := make(chan int)
			side := agent.Go(ctx, "side", func(ctx *agent.Context) error {
				return agent.Saga(ctx, "trip", func() error {
					err := done.book(ctx, fmt.Sprint("book ", permanent))
					close(began)
					if err != nil {
						return err
					}
					_, err = agent.Signal[int](ctx, "go on", time.Hour)
					return err
				})
			})
			<-began
			switch {
			case permanent:
				return "", perdure.Permanent(errors.New("no"))
			case done.add("attempt") == 1:
				return "", errors.New("not yet")
			}
			return "went on", side.Join(ctx)
		})
	})
	run := w.ends("ends", true)
	reached(t, run, perdure.Failed)
	if done.of("unbook true") != 1 || strings.Contains(run.Error.Message, "undone") {
		t.Errorf("effects = %v, error %+v, want the booking undone", done.all(), run.Error)
	}
	id := w.start(perdure.Submission{Kind: "ends", Input: client.JSON(false)})
	w.opens(id, "side#1//signal:go on#1")
	w.signal(id, "go on", nil)
	completed(t, w.end(id), `"went on"`)
	if done.of("book false") != 1 || done.of("unbook false") != 0 {
		t.Errorf("effects = %v, want one booking that is kept", done.all())
	}
}

// A saga undoes the steps of its branches, also of one that it did not come to join, after every crash.
func TestSagaUndoesBranchesAfterEveryCrash(t *testing.T) {
	t.Parallel()
	agenttest.Scenario{
		Setup: func(s *agenttest.Trial) func(*worker.Worker) {
			book := func(ctx *agent.Context, what string) error {
				_, err := agent.Step(ctx, "book", func(ctx context.Context) (string, error) {
					s.Note(ctx, "book "+what)
					return what, nil
				}, agent.Undo(func(ctx context.Context, what string) error {
					s.Note(ctx, "undo "+what)
					return nil
				}))
				return err
			}
			return func(wk *worker.Worker) {
				worker.Agent(wk, "trip", func(ctx *agent.Context, _ struct{}) (string, error) {
					err := agent.Saga(ctx, "trip", func() error {
						return both(ctx, func(ctx *agent.Context) error {
							if err := book(ctx, "flight"); err != nil {
								return err
							}
							if err := agent.Sleep(ctx, time.Minute); err != nil {
								return err
							}
							return perdure.Permanent(errors.New("full"))
						}, func(ctx *agent.Context) error {
							if err := book(ctx, "hotel"); err != nil {
								return err
							}
							return agent.Sleep(ctx, 24*time.Hour)
						})
					})
					return fmt.Sprint(err), nil
				})
			}
		},
		Start: perdure.Submission{Kind: "trip", Class: perdure.Agent},
	}.CrashEverywhere(t, func(t *testing.T, end *agenttest.End) {
		if got := string(end.Run.Result); got != `"full"` {
			t.Errorf("result = %s (error %+v), want the saga's error", got, end.Run.Error)
		}
	})
}

// Two branches with steps, waits, children and lines end the same after every crash.
func TestBranchesAfterEveryCrash(t *testing.T) {
	t.Parallel()
	agenttest.Scenario{
		Setup: func(s *agenttest.Trial) func(*worker.Worker) {
			return func(wk *worker.Worker) {
				worker.Handle(wk, "kid", func(_ context.Context, n int) (int, error) { return n, nil })
				worker.Agent(wk, "two", func(ctx *agent.Context, _ struct{}) (out [2]int, err error) {
					err = both(ctx, func(ctx *agent.Context) error {
						if err := errors.Join(note(ctx, s, "left"), agent.Message(ctx, "assistant", "left"),
							agent.Sleep(ctx, time.Minute)); err != nil {
							return err
						}
						out[0], err = agent.Spawn[int](ctx, "kid", 1).Join(ctx)
						return err
					}, func(ctx *agent.Context) error {
						_, err := agent.Signal[int](ctx, "go on", time.Hour)
						err = errors.Join(err, note(ctx, s, "right"), agent.Emit(ctx, "x:line", "right"))
						if err != nil {
							return err
						}
						out[1], err = agent.Spawn[int](ctx, "kid", 2).Join(ctx)
						return err
					})
					return out, err
				})
			}
		},
		Start:  perdure.Submission{Kind: "two", ThreadID: "new", Class: perdure.Agent},
		Script: func(s *agenttest.Trial) { s.Sleep(10 * time.Minute); s.Signal("go on", 1) },
	}.CrashEverywhere(t, func(t *testing.T, end *agenttest.End) {
		lines := 0
		for _, e := range end.Events {
			if e.Type == "x:line" {
				lines++
			}
		}
		if got := string(end.Run.Result); got != `[1,2]` || len(end.Messages) != 1 || lines != 1 {
			t.Errorf("result = %s, %d messages, %d lines (error %+v), want [1,2], 1 and 1", got, len(end.Messages),
				lines, end.Run.Error)
		}
	})
}

// A cancel undoes the sagas of all branches.
func TestCancelUndoesTheSagasOfBranches(t *testing.T) {
	t.Parallel()
	w := open(t)
	var done tally
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "two", func(ctx *agent.Context, _ struct{}) (string, error) {
			trip := func(what string) func(ctx *agent.Context) error {
				return func(ctx *agent.Context) error {
					return agent.Saga(ctx, "trip", func() error {
						if err := done.book(ctx, what); err != nil {
							return err
						}
						_, err := agent.Signal[int](ctx, "never", time.Hour)
						return err
					})
				}
			}
			return "", both(ctx, trip("flight"), trip("hotel"))
		})
	})
	id := w.start(perdure.Submission{Kind: "two"})
	w.opens(id, "left#1//signal:never#1")
	if _, err := w.c.Cancel(w.ctx, id, "", 0); err != nil {
		t.Fatal(err)
	}
	reached(t, w.end(id), perdure.Cancelled)
	for _, what := range []string{"flight", "hotel"} {
		if done.of(what) != 1 || done.of("un"+what) != 1 {
			t.Errorf("effects = %v, want %s booked and undone once", done.all(), what)
		}
	}
}

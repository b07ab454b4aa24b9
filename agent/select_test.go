package agent_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/agenttest"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/stage"
	"github.com/perdure/perdure/worker"
)

// steered is an agent that waits for a child, and takes directions meanwhile.
func steered(ctx *agent.Context, _ struct{}) (out []string, err error) {
	work := agent.Spawn[int](ctx, "gated", 1)
	limit := agent.After(ctx, 24*time.Hour)
	for {
		steer := agent.OnSignal[string](ctx, "steer")
		n, err := agent.Select(ctx, work, steer, limit)
		if err != nil {
			return out, err
		}
		switch n {
		case 0:
			v, err := work.Result()
			return append(out, fmt.Sprint(v)), err
		case 1:
			word, err := steer.Result()
			if err != nil {
				return out, err
			}
			out = append(out, word)
			if err := agent.Emit(ctx, "x:took", word); err != nil {
				return out, err
			}
		default:
			return append(out, "too late"), nil
		}
	}
}

func TestSelectTakesSignalsWhileAChildWorks(t *testing.T) {
	t.Parallel()
	w := open(t)
	var g gates
	w.work(func(wk *worker.Worker) {
		g.register(wk)
		worker.Agent(wk, "steered", steered)
	})
	id := w.start(perdure.Submission{Kind: "steered"})
	w.signal(id, "steer", "left")
	w.suspended(id)
	w.signal(id, "steer", "right")
	w.signal(id, "steer", "on")
	eventually.True(t, "all signals are taken", func() bool { return len(w.lines(id, "x:took")) == 3 })
	g.open(1)
	completed(t, w.end(id), `["left","right","on","1"]`)
}

// A timer that lost is selected again, and ends when it would have.
func TestTimerThatLostEndsWhenItWouldHave(t *testing.T) {
	virtual(t, func(w *scene) {
		stop := w.work(func(wk *worker.Worker) {
			worker.Agent(wk, "waits", func(ctx *agent.Context, _ struct{}) (out []int, err error) {
				limit := agent.After(ctx, time.Hour)
				for {
					n, err := agent.Select(ctx, limit, agent.After(ctx, 25*time.Minute))
					if err != nil {
						return nil, err
					}
					if out = append(out, n); n == 0 {
						return out, nil
					}
				}
			})
		})
		defer stop()
		began := time.Now()
		completed(w.t, w.ends("waits", struct{}{}), `[1,1,0]`)
		if took := time.Since(began); took < time.Hour || took > time.Hour+10*time.Second {
			t.Errorf("the timers took %s, want an hour to 10 s more", took)
		}
	})
}

// A signal that came for a wait that lost is there for the next one, be it Select or Signal.
func TestSignalOfAWaitThatLostIsKept(t *testing.T) {
	t.Parallel()
	w := open(t)
	var g gates
	working, goOn := make(chan struct{}), make(chan struct{})
	w.work(func(wk *worker.Worker) {
		g.register(wk)
		worker.Agent(wk, "boss", func(ctx *agent.Context, _ struct{}) (string, error) {
			child, word := agent.Spawn[int](ctx, "gated", 1), agent.OnSignal[string](ctx, "word")
			n, err := agent.Select(ctx, child, word)
			if err != nil {
				return "", err
			}
			if _, err := agent.Step(ctx, "work", func(context.Context) (int, error) {
				close(working)
				<-goOn
				return 0, nil
			}); err != nil {
				return "", err
			}
			first, err := agent.Signal[string](ctx, "word", time.Hour)
			if err != nil {
				return "", err
			}
			second, err := word.Join(ctx) // the future that lost still works
			return fmt.Sprint(n, first, second), err
		})
	})
	id := w.start(perdure.Submission{Kind: "boss"})
	w.suspended(id)
	g.open(1)
	next(w, working)
	w.signal(id, "word", "a")
	w.signal(id, "word", "b")
	close(goOn)
	completed(t, w.end(id), `"0ab"`)
}

func TestSelectOfAnApproval(t *testing.T) {
	virtual(t, func(w *scene) {
		stop := w.work(func(wk *worker.Worker) {
			worker.Agent(wk, "asks", func(ctx *agent.Context, _ struct{}) (string, error) {
				ok := agent.OnApproval(ctx, agent.Approval{Title: "Push?", Action: "git push", Timeout: time.Hour})
				n, err := agent.Select(ctx, ok, agent.After(ctx, time.Minute))
				if err != nil {
					return "", err
				}
				// The question stays open after its caller has lost patience.
				m, err := agent.Select(ctx, agent.After(ctx, 2*time.Hour), ok)
				if err != nil {
					return "", err
				}
				v, err := ok.Result()
				return fmt.Sprint(n, m, v.Approved, v.TimedOut), err
			})
		})
		defer stop()
		completed(w.t, w.ends("asks", nil), `"1 1 false true"`)
	})
}

func TestCancelWithdrawsAnApproval(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "asks", func(ctx *agent.Context, _ struct{}) (string, error) {
			ask := agent.OnApproval(ctx, agent.Approval{Title: "Push?", Action: "git push"})
			if err := ask.Cancel(ctx); err != nil {
				return "", err
			}
			if err := agent.Sleep(ctx, time.Millisecond); err != nil { // the next execution finds it closed
				return "", err
			}
			n, err := agent.Select(ctx, agent.After(ctx, time.Hour), ask)
			if err != nil {
				return "", err
			}
			_, err = ask.Result()
			return fmt.Sprint(n, errors.Is(err, agent.ErrCancelled)), ask.Cancel(ctx)
		})
	})
	completed(t, w.ends("asks", nil), `"1 true"`)
	open, err := w.c.Approvals(w.ctx, client.ApprovalFilter{})
	if err != nil || len(open.Approvals) != 0 {
		t.Errorf("open approvals = %+v (%v), want none", open, err)
	}
}

// A future without a child, such as one of a kind that a model made up, ends at once.
func TestSelectReturnsAFutureThatCouldNotBegin(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "boss", func(ctx *agent.Context, _ struct{}) (string, error) {
			bad := agent.Spawn[int](ctx, "kind", 1, agent.Options{Priority: 1000})
			n, err := agent.Select(ctx, agent.After(ctx, time.Hour), bad)
			if err != nil {
				return "", err
			}
			_, err = bad.Result()
			return fmt.Sprint(n, err != nil), nil
		})
	})
	completed(t, w.ends("boss", nil), `"1 true"`)
}

func TestResultOfAFutureThatHasNotEndedIsMisuse(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "boss", func(ctx *agent.Context, _ struct{}) (int, error) {
			return agent.OnSignal[int](ctx, "n").Result()
		})
	})
	w.held(w.start(perdure.Submission{Kind: "boss"}), agent.CodeMisuse)
}

// A run that is asked to stop while it waits in a Select learns that from Select, and not from the
// result of a future that could not begin any more.
func TestCancelledSelectReturnsTheCancel(t *testing.T) {
	t.Parallel()
	w := open(t)
	type answer struct {
		n   int
		err error
	}
	answers := make(chan answer, 1)
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "waits", func(ctx *agent.Context, how string) (string, error) {
			ask := agent.OnApproval(ctx, agent.Approval{Title: "Push?", Action: "git push"})
			var n int
			var err error
			switch how {
			case "Select":
				n, err = agent.Select(ctx, agent.OnSignal[int](ctx, "word"), ask)
			case "Race":
				var first agent.Selected[agent.Verdict]
				first, err = agent.Race(ctx, time.Hour, ask)
				n = first.Index
			case "SelectOK":
				var first agent.Selected[agent.Verdict]
				first, err = agent.SelectOK(ctx, ask)
				n = first.Index
			}
			answers <- answer{n, err}
			return "", err
		})
	})
	for _, how := range []string{"Select", "Race", "SelectOK"} {
		id := w.start(perdure.Submission{Kind: "waits", Input: client.JSON(how)})
		w.suspended(id)
		if _, err := w.c.Cancel(w.ctx, id, "", 0); err != nil {
			t.Fatal(err)
		}
		if got := next(w, answers); got.n != -1 || !errors.Is(got.err, agent.ErrCancelled) ||
			errors.As(got.err, new(agent.ErrAllTasksFailed)) {
			t.Errorf("%s returned %d, %v, want -1 and the cancel", how, got.n, got.err)
		}
		reached(t, w.end(id), perdure.Cancelled)
	}
}

func TestFirstOKReturnsTheFirstThatComplete(t *testing.T) {
	t.Parallel()
	w := open(t)
	var g gates
	w.work(func(wk *worker.Worker) {
		g.register(wk)
		worker.Handle(wk, "fails", func(context.Context, int) (int, error) {
			return 0, perdure.Permanent(errors.New("no"))
		})
		worker.Agent(wk, "boss", func(ctx *agent.Context, _ struct{}) (string, error) {
			fs := append(gated(ctx, 0, 1, 2, 3), agent.Spawn[int](ctx, "fails", 4))
			got, err := agent.FirstOK(ctx, 3, fs...)
			if err != nil {
				return "", err
			}
			return fmt.Sprint(got.Index, got.Values, len(got.Remaining)), nil
		})
	})
	id := w.start(perdure.Submission{Kind: "boss"})
	w.children("fails", perdure.Failed, 1)
	for i, n := range []int{2, 0, 3} {
		g.open(n)
		w.children("gated", perdure.Completed, i+1)
	}
	completed(t, w.end(id), `"[2 0 3] [2 0 3] 1"`)
}

func TestFirstOKFailsWhenTooFewCanComplete(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.work(func(wk *worker.Worker) {
		worker.Handle(wk, "odd", func(_ context.Context, n int) (int, error) {
			if n%2 == 0 {
				return 0, perdure.Permanent(worker.Fail("even", "%d", n))
			}
			return n, nil
		})
		worker.Agent(wk, "boss", func(ctx *agent.Context, k int) (string, error) {
			var fs []*agent.Future[int]
			for n := range 5 {
				fs = append(fs, agent.Spawn[int](ctx, "odd", n))
			}
			_, err := agent.FirstOK(ctx, k, fs...)
			var all agent.ErrAllTasksFailed
			if !errors.As(err, &all) {
				return "", err
			}
			return fmt.Sprint(slices.IndexFunc(all.Errors, func(err error) bool { return err != nil }),
				len(all.Errors)), nil
		})
	})
	completed(t, w.ends("boss", 3), `"0 5"`)
	w.defect(w.start(perdure.Submission{Kind: "boss", Input: client.JSON(6)}), agent.CodeMisuse)
	w.defect(w.start(perdure.Submission{Kind: "boss", Input: client.JSON(0)}), agent.CodeMisuse)
}

// A child that nobody takes is reported as slow after five minutes.
func TestStalledChildEndsTheWait(t *testing.T) {
	virtual(t, func(w *scene) {
		stop := w.work(func(wk *worker.Worker) {
			worker.Agent(wk, "boss", func(ctx *agent.Context, _ struct{}) (string, error) {
				stuck := agent.Options{OnStall: true, Timeout: 30 * time.Minute}
				child := agent.Spawn[int](ctx, "nobody", 1, stuck)
				other := agent.Spawn[int](ctx, "nobody", 2, agent.Timeout(30*time.Minute))
				_, err := agent.JoinAll(ctx, other, child)
				var stalled agent.ErrStalled
				if !errors.As(err, &stalled) || stalled.TaskID != child.ID() || stalled.Key != "nobody#1" {
					return "", perdure.Permanent(fmt.Errorf("%#v, want a stall of %s: %w", stalled, child.ID(), err))
				}
				third := agent.Spawn[int](ctx, "nobody", 3, stuck)
				n, err := agent.Select(ctx, other, third, agent.OnSignal[int](ctx, "never"))
				if !errors.Is(err, agent.ErrStalled{TaskID: third.ID()}) || n != 1 {
					return "", perdure.Permanent(fmt.Errorf("%d, want the stall of 1: %w", n, err))
				}
				state, err := agent.Step(ctx, "look", func(ctx context.Context) (perdure.State, error) {
					run, err := child.Peek(ctx)
					if err != nil {
						return "", err
					}
					return run.State, nil
				})
				if err != nil {
					return "", err
				}
				_, err = child.Join(ctx)
				return fmt.Sprint(state, errors.Is(err, agent.ErrTaskTimedOut{TaskID: child.ID()})), nil
			})
		})
		defer stop()
		completed(w.t, w.ends("boss", nil), `"queuedtrue"`)
	})
}

// After every crash the same future is the first, and no signal is lost or taken twice.
func TestMixedSelectSurvivesCrashes(t *testing.T) {
	stage.NoRace(t)
	stage.NoStore(t)
	t.Parallel()
	agenttest.Scenario{
		Setup: func(s *agenttest.Trial) func(*worker.Worker) {
			return func(wk *worker.Worker) {
				worker.Handle(wk, "gated", func(ctx context.Context, n int) (int, error) {
					s.Note(ctx, "worked")
					return n, nil
				})
				worker.Agent(wk, "boss", func(ctx *agent.Context, _ struct{}) (out []string, err error) {
					limit := agent.After(ctx, 24*time.Minute)
					for len(out) < 2 {
						word := agent.OnSignal[string](ctx, "word")
						n, err := agent.Select(ctx, limit, word, agent.After(ctx, 7*time.Minute))
						if err != nil {
							return nil, err
						}
						if n != 1 {
							if _, err := agent.Step(ctx, "remind", func(ctx context.Context) (int, error) {
								s.Note(ctx, "reminded")
								return n, nil
							}); err != nil {
								return nil, err
							}
							continue
						}
						v, err := word.Result()
						if err != nil {
							return nil, err
						}
						out = append(out, v)
					}
					got, err := agent.FirstOK(ctx, 1, agent.Spawn[int](ctx, "gated", 5))
					return append(out, fmt.Sprint(got.Values)), err
				})
			}
		},
		Start: perdure.Submission{Kind: "boss", Class: perdure.Agent},
		Script: func(s *agenttest.Trial) {
			s.Sleep(8 * time.Minute)
			s.Signal("word", "a")
			s.Sleep(12 * time.Minute) // a crash delays the second reminder by a lease
			s.Signal("word", "b")
		},
	}.CrashEverywhere(t, func(t *testing.T, end *agenttest.End) {
		if got := string(end.Run.Result); got != `["a","b","[5]"]` {
			t.Errorf("result = %s (error %+v), want both signals and the child's", got, end.Run.Error)
		}
	})
}

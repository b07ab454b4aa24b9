package agenttest_test

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
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/testkit/stage"
	"github.com/perdure/perdure/internal/testkit/storetest"
	"github.com/perdure/perdure/worker"
)

type booking struct {
	Hotel, Paid, Ticket   string
	CarFailed, LostInTime bool
}

// journey is an agent with steps, children, a signal, a timer and a saga that is undone. Its
// durations are multiples of tick, so that it can run in virtual time and in real time.
func journey(tick time.Duration) agenttest.Scenario {
	return agenttest.Scenario{
		Start: perdure.Submission{Kind: "journey", Input: client.JSON("Lisbon"), ThreadID: "new"},
		Setup: func(s *agenttest.Trial) func(*worker.Worker) {
			return func(w *worker.Worker) {
				does := func(what string) func(context.Context) (string, error) {
					return func(ctx context.Context) (string, error) {
						s.Note(ctx, what)
						return what, nil
					}
				}
				worker.Agent(w, "journey", func(ctx *agent.Context, to string) (b booking, err error) {
					if _, err = agent.Step(ctx, "look up", does("looked up "+to)); err != nil {
						return b, err
					}
					if err = agent.Message(ctx, "assistant", "I look for a hotel and a car."); err != nil {
						return b, err
					}
					hotel := agent.Spawn[string](ctx, "hotel", to)
					car := agent.Spawn[string](ctx, "car", to)
					lost := agent.Spawn[string](ctx, "nobody executes it", to, agent.Timeout(5*tick))
					found, err := agent.JoinAllSettled(ctx, hotel, car, lost)
					if err != nil {
						return b, err
					}
					b.Hotel = found.Results[0]
					b.CarFailed, b.LostInTime = errors.Is(found.Errors[1], agent.ErrTaskFailed{}),
						errors.Is(found.Errors[2],
							agent.ErrTaskTimedOut{})
					if b.Paid, err = agent.Signal[string](ctx, "paid", time.Hour); err != nil {
						return b, err
					}
					if err = agent.Sleep(ctx, 3*tick); err != nil {
						return b, err
					}
					undo := func(ctx context.Context, result string) error {
						s.Note(ctx, "undo of "+result)
						return nil
					}
					err = agent.Saga(ctx, "saga", func() error {
						if _, err := agent.Step(ctx, "charge", does("charged"), agent.Undo(undo)); err != nil {
							return err
						}
						if _, err := agent.Step(ctx, "reserve", does("reserved"), agent.Undo(undo)); err != nil {
							return err
						}
						_, err := agent.Step(ctx, "ticket", func(ctx context.Context) (string, error) {
							return "", perdure.Permanent(errors.New("sold out"))
						})
						return err
					})
					b.Ticket = fmt.Sprint(err)
					return b, agent.Message(ctx, "assistant", b)
				})
				worker.Agent(w, "hotel", func(ctx *agent.Context, to string) (string, error) {
					name, err := agent.Step(ctx, "choose", does("chose a hotel"))
					if err != nil {
						return "", err
					}
					if err := agent.Sleep(ctx, 2*tick); err != nil {
						return "", err
					}
					return name + " in " + to, nil
				})
				worker.Handle(w, "car", func(ctx context.Context, to string) (string, error) {
					return "", perdure.Permanent(errors.New("no car in " + to))
				})
			}
		},
		Script: func(s *agenttest.Trial) {
			s.Sleep(7 * tick) // until the run waits for it; after a crash it may not be there yet
			s.Signal("paid", "by card")
		},
	}
}

// arrived checks the end of a trial of the journey.
func arrived(t *testing.T, end *agenttest.End) {
	t.Helper()
	got, err := client.Result[booking](&end.Run)
	if err != nil || got.Hotel != "chose a hotel in Lisbon" || !got.CarFailed || !got.LostInTime ||
		got.Paid != "by card" || !strings.Contains(got.Ticket, "sold out") {
		t.Errorf("result = %+v (error %v), want a hotel in Lisbon, no car, one timeout, paid by card, sold out",
			got, err)
	}
	for name, state := range map[string]perdure.State{"journey": perdure.Completed,
		"journey/hotel#1": perdure.Completed, "journey/car#1": perdure.Failed,
		"journey/nobody executes it#1": perdure.TimedOut} {
		if end.Tree[name].State != state {
			t.Errorf("run %s: state = %s, want %s", name, end.Tree[name].State, state)
		}
	}
	if len(end.Messages) != 2 || len(end.Tree) != 4 {
		t.Errorf("%d messages and %d runs, want 2 and 4", len(end.Messages), len(end.Tree))
	}
	for _, what := range []string{"looked up Lisbon", "chose a hotel", "charged", "reserved", "undo of charged",
		"undo of reserved"} {
		if end.Notes[what] < 1 {
			t.Errorf("notes = %v, want %q among them", end.Notes, what)
		}
	}
}

func TestAgentEndsTheSameAfterEveryCrash(t *testing.T) {
	t.Parallel()
	twice := 0
	journey(time.Minute).CrashEverywhere(t, func(t *testing.T, end *agenttest.End) {
		arrived(t, end)
		again := 0
		for what, n := range end.Notes {
			if again += n - 1; n > 2 {
				t.Errorf("note %q was made %d times, want at most twice", what, n)
			}
		}
		// Only after the death of a worker are steps repeated: those that it was about to record.
		if again > 0 && !strings.HasPrefix(end.Crash, "the worker dies ") {
			t.Errorf("notes after a restart of the server = %v, want each once", end.Notes)
		}
		twice += again
	})
	if twice < 6 { // as many as there are different notes
		t.Errorf("notes were repeated %d times in all trials, want at least 6", twice)
	}
}

// The same scenario on PostgreSQL, in real time, with a short lease so that a dead worker is
// noticed soon.
func TestAgentEndsTheSameAfterEveryCrashOnPostgres(t *testing.T) {
	stage.NoRace(t)
	t.Parallel()
	p := perdure.DefaultPolicy()
	p.Lease, p.DispatchedRetry, p.DispatchedTimeout = 1200*time.Millisecond, 500*time.Millisecond, 5*time.Second
	p.BackoffBase, p.MaxAttempts, p.MaxGrants, p.WatchdogInterval = 10*time.Millisecond, 20, 100,
		50*time.Millisecond
	sc := journey(100 * time.Millisecond)
	sc.Patience = 5 * time.Minute
	sc.Server = embedded.Options{Store: storetest.Postgres(t), Policy: &p}
	// A slow machine may take longer than any pause. The signal is sent when the run waits for it,
	// so every trial has the same boundaries.
	sc.Script = func(s *agenttest.Trial) {
		for e, err := range s.Client().Events(s.Context(), s.RunID(), 0) {
			if err != nil || e.Type == perdure.LineWaitOpened && strings.Contains(string(e.Data), `"paid"`) {
				break
			}
		}
		s.Signal("paid", "by card")
	}
	sc.CrashEverywhere(t, arrived)
}

// A cancelled run undoes its steps. If its worker dies meanwhile, the deliverable lists those that
// are left.
func TestCancelledStepsAreUndoneOrListedAfterEveryCrash(t *testing.T) {
	t.Parallel()
	sc := agenttest.Scenario{
		Start: perdure.Submission{Kind: "order", Class: perdure.Agent},
		Setup: func(s *agenttest.Trial) func(*worker.Worker) {
			return func(w *worker.Worker) {
				worker.Agent(w, "order", func(ctx *agent.Context, _ struct{}) (string, error) {
					return "delivered", agent.Saga(ctx, "saga", func() error {
						for _, what := range []string{"reserve", "charge"} {
							_, err := agent.Step(ctx, what, func(ctx context.Context) (string, error) {
								s.Note(ctx, what)
								return what + "d", nil
							}, agent.Undo(func(ctx context.Context, result string) error {
								s.Note(ctx, "undo of "+result)
								return nil
							}))
							if err != nil {
								return err
							}
						}
						return agent.Sleep(ctx, 24*time.Hour)
					})
				})
			}
		},
		Script: func(s *agenttest.Trial) {
			s.Await(perdure.LineSuspended)
			s.Cancel("changed my mind")
		},
	}
	sc.Scrub = func(field, text string) string {
		if field == "order: state" {
			return text
		}
		return ""
	}
	whole := 0
	sc.CrashEverywhere(t, func(t *testing.T, end *agenttest.End) {
		var fallback struct {
			NotUndone []string `json:"not_undone"`
		}
		if err := json.Unmarshal(end.Deliverable.Content, &fallback); err != nil {
			t.Fatal(err)
		}
		for _, step := range []string{"reserve#1", "charge#1"} {
			_, undone := end.Steps["order"]["undo "+step]
			if undone == slices.Contains(fallback.NotUndone, step) {
				t.Errorf("step %s: undone = %v, and not_undone = %v; want exactly one of both", step, undone,
					fallback.NotUndone)
			}
		}
		if end.Run.State != perdure.Cancelled {
			t.Errorf("state = %s, want %s", end.Run.State, perdure.Cancelled)
		}
		if len(fallback.NotUndone) == 0 {
			whole++
		}
	})
	if whole < 10 {
		t.Errorf("%d trials undid everything, want at least 10", whole)
	}
}

// A callback and a person's decision count once, and there is one continuation.
func TestCallbackAndDecisionCountOnceAfterEveryCrash(t *testing.T) {
	t.Parallel()
	sc := agenttest.Scenario{
		Start: perdure.Submission{Kind: "release", ThreadID: "new"},
		Setup: func(s *agenttest.Trial) func(*worker.Worker) {
			return func(w *worker.Worker) {
				worker.Agent(w, "release", func(ctx *agent.Context, _ struct{}) (string, error) {
					if history, err := ctx.History(); err != nil || len(history) > 0 {
						return fmt.Sprintf("%d messages", len(history)), err // this run is the continuation
					}
					built := agent.Callback[string](ctx, "answer", time.Hour)
					if _, err := agent.Step(ctx, "build", func(ctx context.Context) (int, error) {
						s.Note(ctx, "build asked for")
						return 1, nil
					}); err != nil {
						return "", err
					}
					version, err := built.Join(ctx)
					if err != nil {
						return "", err
					}
					decision, err := agent.Approve(ctx,
						agent.Approval{Name: agent.ApprovePush, Title: "Push " + version, Action: version})
					if err != nil || !decision.Approved {
						return "not pushed", err
					}
					if err := agent.Message(ctx, "assistant", "It is being pushed."); err != nil {
						return "", err
					}
					return agent.Continue(ctx, version, agent.Spawn[string](ctx, "push", version))
				})
				worker.Handle(w, "push", func(ctx context.Context, version string) (string, error) {
					return "pushed " + version, nil
				})
			}
		},
		Script: func(s *agenttest.Trial) {
			s.Callback("v1.2")
			s.Decide(perdure.Decision{Decision: perdure.Approve})
		},
	}
	sc.CrashEverywhere(t, func(t *testing.T, end *agenttest.End) {
		if string(end.Run.Result) != `"v1.2"` || len(end.Messages) != 2 ||
			string(end.Tree["release (continued 1)"].Result) != `"2 messages"` {
			t.Errorf("result %s, %d messages, runs %v; want v1.2, 2 messages, and a continuation that read both",
				end.Run.Result, len(end.Messages), end.Tree)
		}
	})
}

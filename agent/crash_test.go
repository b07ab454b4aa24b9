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
	"github.com/perdure/perdure/agenttest"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/testkit/stage"
	"github.com/perdure/perdure/worker"
)

// note executes a step that is only noted.
func note(ctx *agent.Context, s *agenttest.Trial, what string) error {
	_, err := agent.Step(ctx, what, func(ctx context.Context) (bool, error) {
		s.Note(ctx, what)
		return true, nil
	})
	return err
}

// An agent takes each message of its user once and in order, also with a future that
// lost to a timer before.
func TestMessagesAreTakenOnceAfterEveryCrash(t *testing.T) {
	stage.NoRace(t)
	t.Parallel()
	agenttest.Scenario{
		Setup: func(s *agenttest.Trial) func(*worker.Worker) {
			return func(wk *worker.Worker) {
				worker.Agent(wk, "chat", func(ctx *agent.Context, _ struct{}) (out []string, _ error) {
					for len(out) < 2 {
						said := agent.OnMessage[string](ctx)
						for {
							n, err := agent.Select(ctx, said, agent.After(ctx, 8*time.Minute))
							if err != nil {
								return nil, err
							}
							if n == 0 {
								break
							}
							if err := note(ctx, s, "remind"); err != nil {
								return nil, err
							}
						}
						text, err := said.Result()
						if err != nil {
							return nil, err
						}
						out = append(out, text)
						if err := agent.Message(ctx, "assistant", "you said "+text); err != nil {
							return nil, err
						}
					}
					return out, nil
				})
			}
		},
		Start: perdure.Submission{Kind: "chat", ThreadID: "new"},
		Script: func(s *agenttest.Trial) {
			run, err := s.Client().Get(s.Context(), s.RunID())
			if err != nil {
				t.Error(err)
				return
			}
			for _, text := range []string{"one", "two"} {
				s.Sleep(12 * time.Minute) // a reminder each time; a crash delays it by a lease
				if _, err := s.Client().AppendMessage(s.Context(), run.ThreadID,
					perdure.Message{Role: perdure.RoleUser, Content: client.JSON(text)}); err != nil {
					t.Error(err)
				}
			}
		},
	}.CrashEverywhere(t, func(t *testing.T, end *agenttest.End) {
		if got := string(end.Run.Result); got != `["one","two"]` || len(end.Messages) != 4 {
			t.Errorf("result = %s with %d messages (error %+v), want both in order, and 4 messages",
				got, len(end.Messages), end.Run.Error)
		}
	})
}

// A question is withdrawn and a child is cancelled once and for all, and the next
// question is decided.
func TestWithdrawnQuestionStaysWithdrawnAfterEveryCrash(t *testing.T) {
	stage.NoRace(t)
	t.Parallel()
	agenttest.Scenario{
		Setup: func(s *agenttest.Trial) func(*worker.Worker) {
			return func(wk *worker.Worker) {
				worker.Handle(wk, "hang", func(ctx context.Context, _ struct{}) (int, error) {
					<-ctx.Done()
					return 0, context.Cause(ctx)
				})
				worker.Agent(wk, "boss", func(ctx *agent.Context, _ struct{}) (string, error) {
					child := agent.Spawn[int](ctx, "hang", nil)
					first := agent.OnApproval(ctx, agent.Approval{Name: "first", Action: 1, Timeout: 24 * time.Hour})
					n, err := agent.Select(ctx, child, first, agent.After(ctx, 5*time.Minute))
					if err != nil {
						return "", err
					}
					if err := errors.Join(first.Cancel(ctx), child.Cancel(ctx)); err != nil {
						return "", err
					}
					if err := note(ctx, s, "gave up"); err != nil {
						return "", err
					}
					_, withdrawn := first.Join(ctx)
					_, stopped := child.Join(ctx)
					second, err := agent.Approve(ctx,
						agent.Approval{Name: "second", Action: 2, Timeout: 24 * time.Hour})
					return fmt.Sprint(n, errors.Is(withdrawn, agent.ErrCancelled),
						errors.Is(stopped, agent.ErrCancelled),
						second.Approved), err
				})
			}
		},
		Start: perdure.Submission{Kind: "boss", Class: perdure.Agent},
		Script: func(s *agenttest.Trial) {
			s.Sleep(30 * time.Minute) // the first question is withdrawn by then
			s.Decide(perdure.Decision{Decision: perdure.Approve})
		},
		Scrub: func(field, text string) string {
			if field == "boss/hang#1: error" {
				return "" // a child whose worker died is said not to have stopped in time
			}
			return text
		},
	}.CrashEverywhere(t, func(t *testing.T, end *agenttest.End) {
		if got := string(end.Run.Result); got != `"2 true true true"` {
			t.Errorf("result = %s (error %+v), want the timer first, both cancelled, and the second question approved",
				got, end.Run.Error)
		}
		if child := end.Tree["boss/hang#1"]; child.State != perdure.Cancelled {
			t.Errorf("child is %s, want cancelled", child.State)
		}
	})
}

// A run that is cancelled while it waits for a person and a message ends as cancelled,
// and leaves no question open.
func TestCancelledRunLeavesNoQuestionAfterEveryCrash(t *testing.T) {
	t.Parallel()
	agenttest.Scenario{
		Setup: func(s *agenttest.Trial) func(*worker.Worker) {
			return func(wk *worker.Worker) {
				worker.Agent(wk, "boss", func(ctx *agent.Context, _ struct{}) (string, error) {
					if err := note(ctx, s, "begin"); err != nil {
						return "", err
					}
					ask := agent.OnApproval(ctx, agent.Approval{Action: 1, Timeout: 24 * time.Hour})
					n, err := agent.Select(ctx, ask, agent.OnMessage[string](ctx))
					if err == nil && n == 0 {
						_, err = ask.Result() // the question can't be asked any more
					}
					return "went on", err
				})
			}
		},
		Start: perdure.Submission{Kind: "boss", ThreadID: "new"},
		Script: func(s *agenttest.Trial) {
			s.Await(perdure.LineSuspended)
			s.Cancel("never mind")
			if _, _, err := s.Client().Join(s.Context(), s.RunID(), time.Hour); err != nil {
				t.Error(err)
			}
			open, err := s.Client().Approvals(s.Context(), client.ApprovalFilter{Limit: 1})
			if err != nil || len(open.Approvals) > 0 {
				t.Errorf("open questions after the end: %+v (error %v), want none", open, err)
			}
		},
		Scrub: func(field, text string) string {
			if field == "boss: state" || strings.HasPrefix(field, "noted: ") {
				return text
			}
			return "" // the reason says whether the worker confirmed the cancel
		},
	}.CrashEverywhere(t, func(t *testing.T, end *agenttest.End) {
		if end.Run.State != perdure.Cancelled {
			t.Errorf("run is %s with %s, want cancelled", end.Run.State, end.Run.Result)
		}
	})
}

// Messages and lines around steps, waits and a failed step are written once, wherever a crash cuts them
// off. The error of the step becomes a fact after the agent has told of it.
func TestReportsAreWrittenOnceAfterEveryCrash(t *testing.T) {
	stage.NoRace(t)
	t.Parallel()
	agenttest.Scenario{
		Setup: func(s *agenttest.Trial) func(*worker.Worker) {
			return func(wk *worker.Worker) {
				worker.Agent(wk, "chat", func(ctx *agent.Context, _ struct{}) (string, error) {
					if err := errors.Join(say(ctx, "hello"), note(ctx, s, "begin"), say(ctx, "hello")); err != nil {
						return "", err
					}
					_, err := agent.Step(ctx, "model", func(context.Context) (int, error) {
						return 0, errors.New("busy")
					})
					if err == nil {
						return "", perdure.Permanent(errors.New("the step did not fail"))
					}
					if err := errors.Join(say(ctx, "busy"), agent.Sleep(ctx, time.Minute)); err != nil {
						return "", err
					}
					return "done", say(ctx, "order "+agent.UUID(ctx, "order"))
				})
			}
		},
		Start: perdure.Submission{Kind: "chat", ThreadID: "new"},
	}.CrashEverywhere(t, func(t *testing.T, end *agenttest.End) {
		var messages, lines []string
		for _, m := range end.Messages {
			messages = append(messages, unquote(t, string(m.Content)))
		}
		text := ""
		for _, e := range end.Events {
			switch e.Type {
			case "x:line":
				lines = append(lines, unquote(t, string(e.Data)))
			case perdure.LineDelta:
				text += perdure.DeltaText(perdure.Value(e.Data))
			}
		}
		want := "hello hello busy order "
		for what, got := range map[string]string{"messages": strings.Join(messages, " "),
			"lines": strings.Join(lines, " "), "text": strings.TrimSpace(text)} {
			if !strings.HasPrefix(got, want) || len(got) != len(want)+36 {
				t.Errorf("%s = %q, want %q and an id", what, got, want)
			}
		}
	})
}

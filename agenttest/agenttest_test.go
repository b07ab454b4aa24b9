package agenttest_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/agenttest"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/worker"
)

// task is a scenario of one run of a function.
func task(f func(s *agenttest.Session, ctx context.Context) (string, error)) agenttest.Scenario {
	return agenttest.Scenario{
		Setup: func(s *agenttest.Session) func(*worker.Worker) {
			return func(w *worker.Worker) {
				worker.Handle(w, "task", func(ctx context.Context, _ struct{}) (string, error) { return f(s, ctx) })
			}
		},
		Start: perdure.Submission{Kind: "task"},
	}
}

func TestADayIsOverAtOnce(t *testing.T) {
	began := time.Now()
	sc := task(func(_ *agenttest.Session, ctx context.Context) (string, error) {
		return time.Now().Format(time.DateOnly), nil
	})
	sc.Start.Delay = perdure.Duration(24 * time.Hour)
	end := sc.Run(t)
	if day, err := client.Result[string](&end.Run); err != nil || day != "2000-01-02" {
		t.Errorf("%s %v", day, err)
	}
	if time.Since(began) > time.Hour {
		t.Error("it was real time")
	}
}

func TestAFunctionThatIsDoneAgainIsTheSame(t *testing.T) {
	sc := task(func(s *agenttest.Session, ctx context.Context) (string, error) {
		select {
		case <-time.After(2 * time.Minute):
		case <-ctx.Done():
			return "", ctx.Err()
		}
		s.Note(ctx, "a mail")
		return "sent", nil
	})
	seen := map[string]int{}
	sc.CrashEverywhere(t, func(t *testing.T, end *agenttest.End) {
		seen[end.Crash] = end.Notes["a mail"]
		if sent, err := client.Result[string](&end.Run); err != nil || sent != "sent" {
			t.Errorf("%s %v", sent, err)
		}
	})
	for crash, mails := range map[string]int{
		"": 1,
		"the worker dies after grant 1 of task, before its answer":                  1,
		"the server restarts after grant 1 of task, before its answer":              1,
		"the worker dies before commit 1 of task (completes)":                       2, // nobody knows of the first
		"the worker dies after commit 1 of task (completes), before its answer":     1,
		"the server restarts before commit 1 of task (completes)":                   1,
		"the server restarts after commit 1 of task (completes), before its answer": 1,
	} {
		if seen[crash] != mails {
			t.Errorf("%q: %d mails, not %d", crash, seen[crash], mails)
		}
		delete(seen, crash)
	}
	for crash := range seen {
		t.Errorf("unexpected: %q", crash)
	}
}

// A dead worker's function may go on for a while: what it does is not done.
func TestTheDeadDoNothing(t *testing.T) {
	sc := task(func(s *agenttest.Session, ctx context.Context) (string, error) {
		if err := worker.Emit(ctx, "x:begun", nil); err != nil {
			return "", err
		}
		time.Sleep(3 * time.Second) // deaf to its context
		s.Note(ctx, "a mail")
		return "sent", nil
	})
	crashed := false
	sc.CrashEverywhere(t, func(t *testing.T, end *agenttest.End) {
		if end.Crash == "the worker dies before commit 1 of task (1 to the log)" {
			crashed = true
			if n := end.Notes["a mail"]; n != 1 {
				t.Errorf("%d mails: the dead have sent one", n)
			}
		}
	})
	if !crashed {
		t.Error("there was no such crash")
	}
}

// inner is set in the process that has failing tests.
const inner = "PERDURE_AGENTTEST_INNER"

// What is not safe is found, and is said in words.
func TestWhatDependsOnACrashIsFound(t *testing.T) {
	var calls atomic.Int64
	broken := map[string]agenttest.Scenario{
		"counts in memory": task(func(*agenttest.Session, context.Context) (string, error) {
			return strings.Repeat("x", int(calls.Add(1))), nil
		}),
		"fails the second time": task(func(s *agenttest.Session, ctx context.Context) (string, error) {
			if info, _ := worker.Info(ctx); info.Attempt > 1 {
				return "", worker.Permanent(errors.New("I was here before"))
			}
			time.Sleep(10 * time.Second) // until it is heard from: what nobody knows of costs no attempt
			return "well", nil
		}),
		"notes who it is": task(func(s *agenttest.Session, ctx context.Context) (string, error) {
			info, _ := worker.Info(ctx)
			s.Note(ctx, "done by "+info.WorkerID)
			return "well", nil
		}),
		"does it outside of a step": {
			Setup: func(s *agenttest.Session) func(*worker.Worker) {
				return func(w *worker.Worker) {
					worker.Agent(w, "task", func(ctx *agent.Context, _ struct{}) (string, error) {
						s.Note(ctx, "charged")
						return "well", nil
					})
				}
			},
			Start: perdure.Submission{Kind: "task"},
		},
		"spawns what nobody knows": {
			Setup: func(s *agenttest.Session) func(*worker.Worker) {
				return func(w *worker.Worker) {
					worker.Agent(w, "task", func(ctx *agent.Context, _ struct{}) (string, error) {
						return agent.Spawn[string](ctx, "hotle", "Lisbon").Join(ctx)
					})
				}
			},
			Start: perdure.Submission{Kind: "task"},
		},
		"never returns": task(func(*agenttest.Session, context.Context) (string, error) { select {} }),
	}
	if name := os.Getenv(inner); name != "" {
		broken[name].CrashEverywhere(t, nil)
		return
	}
	const before = "the worker dies before commit 1 of task (completes): what comes of it is not the same:\n"
	for name, want := range map[string][]string{
		"counts in memory":          {before, `task: result`, `was "x"`},
		"fails the second time":     {before, "task: state", "was completed", "is  failed", "task: error is there, and was not without the crash: failed: I was here before", `deliverable: result is missing; without the crash it was "well"`},
		"does it outside of a step": {`"charged" is done outside of a step`},
		"spawns what nobody knows":  {`task/hotle#1: no handler is registered for the kind "hotle"`},
		"never returns":             {"these functions do not return, although their contexts have ended long ago: task (run "},
		"notes who it is":           {before, "noted: done by worker-1 is missing", "noted: done by worker-2 is there, and was not"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run=^TestWhatDependsOnACrashIsFound$")
			cmd.Env = append(os.Environ(), inner+"="+name)
			out, err := cmd.CombinedOutput()
			if err == nil {
				t.Fatalf("nothing was found:\n%s", out)
			}
			for _, w := range want {
				if !strings.Contains(strings.ReplaceAll(string(out), "\n        ", "\n"), w) {
					t.Errorf("%q is not said:\n%s", w, out)
				}
			}
		})
	}
}

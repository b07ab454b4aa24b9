package agenttest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/agenttest"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/worker"
)

// task returns a scenario with one run of a function.
func task(f func(s *agenttest.Trial, ctx context.Context) (string, error)) agenttest.Scenario {
	return agenttest.Scenario{
		Setup: func(s *agenttest.Trial) func(*worker.Worker) {
			return func(w *worker.Worker) {
				worker.Handle(w, "task", func(ctx context.Context, _ struct{}) (string, error) { return f(s, ctx) })
			}
		},
		Start: perdure.Submission{Kind: "task"},
	}
}

// agentTask returns a scenario with one run of an agent.
func agentTask(f func(ctx *agent.Context) (any, error)) agenttest.Scenario {
	return agenttest.Scenario{
		Setup: func(s *agenttest.Trial) func(*worker.Worker) {
			return func(w *worker.Worker) {
				worker.Agent(w, "task", func(ctx *agent.Context, _ struct{}) (any, error) { return f(ctx) })
				worker.Handle(w, "slow", func(ctx context.Context, n int) (int, error) {
					select {
					case <-time.After(time.Duration(n) * 10 * time.Second):
						return n, nil
					case <-ctx.Done():
						return 0, context.Cause(ctx)
					}
				})
			}
		},
		Start: perdure.Submission{Kind: "task"},
	}
}

// addsInStep changes a variable in a step's function: 0 in every execution but the first.
func addsInStep(ctx *agent.Context) (total int, err error) {
	_, err = agent.Step(ctx, "add", func(context.Context) (bool, error) {
		total += 10 //perdurevet:ignore agentassign the mistake is what is tested
		return true, nil
	})
	return total, err
}

// waitsForEverything is a right agent with every kind of wait. What it returns says how each of them ended.
func waitsForEverything() agenttest.Scenario {
	sc := agentTask(func(ctx *agent.Context) (any, error) {
		var ends []string
		note := func(what ...any) { ends = append(ends, fmt.Sprint(what...)) }
		one, two := agent.Spawn[int](ctx, "slow", 1), agent.Spawn[int](ctx, "slow", 2)
		steer := agent.OnSignal[string](ctx, "steer")
		left := agent.Go(ctx, "left", func(ctx *agent.Context) error {
			if err := agent.Sleep(ctx, time.Minute); err != nil {
				return err
			}
			_, err := agent.Spawn[int](ctx, "slow", 3).Join(ctx)
			return err
		})
		note("branch ", left.Join(ctx))
		n, err := agent.Select(ctx, steer, one, two, agent.After(ctx, time.Hour))
		note("select ", n, err)
		n, err = agent.Select(ctx, steer, agent.After(ctx, 20*time.Minute))
		note("select ", n, err)
		text, err := agent.Signal[string](ctx, "go", 30*time.Minute)
		note("signal ", text, err)
		_, err = agent.Signal[string](ctx, "never", 10*time.Minute)
		note("timeout ", errors.Is(err, agent.ErrSignalTimeout))
		_, err = agent.Race(ctx, 5*time.Second, agent.Spawn[int](ctx, "slow", 4))
		note("race ", errors.Is(err, agent.ErrTimeout))
		first, err := agent.FirstOK(ctx, 2, two, agent.Spawn[int](ctx, "slow", 1), agent.Spawn[int](ctx, "slow", 9))
		note("first ", first.Index, err)
		all, err := agent.Map[int](ctx, "slow", []int{3, 1, 2}, agent.MapOptions{Limit: 2})
		note("map ", all.Results, err)
		settled, err := agent.JoinAllSettled(ctx, one, agent.Spawn[int](ctx, "slow", 2))
		note("settled ", settled.Completed, err)
		return ends, nil
	})
	sc.Script = func(s *agenttest.Trial) {
		s.Sleep(5 * time.Minute)
		s.Signal("steer", "left")
		s.Sleep(10 * time.Minute)
		s.Signal("go", "now")
	}
	return sc
}

// A right agent ends in the same way if it stays awake, whatever it waits for.
func TestRightAgentMayStayAwake(t *testing.T) { waitsForEverything().StayAwake(t) }

// Differences that a crash explains, and that are not the agent's decision, are no findings.
func TestRightAgentsAreNotAccused(t *testing.T) {
	var trials atomic.Int64
	fails := agentTask(func(ctx *agent.Context) (any, error) {
		_, err := agent.Step(ctx, "call", func(context.Context) (int, error) { return 0, errors.New("no answer") })
		return nil, err
	})
	once := fails
	once.Start.MaxAttempts = 1
	for name, sc := range map[string]agenttest.Scenario{
		"losers of FirstOK are cancelled or completed": {
			Setup: func(s *agenttest.Trial) func(*worker.Worker) {
				return func(w *worker.Worker) {
					worker.Agent(w, "race", func(ctx *agent.Context, _ struct{}) (string, error) {
						quick, slow := agent.Spawn[string](ctx, "runner", 1), agent.Spawn[string](ctx, "runner", 10)
						first, err := agent.FirstOK(ctx, 1, quick, slow)
						if err != nil {
							return "", err
						}
						for _, loser := range first.Remaining {
							if err := loser.Cancel(ctx); err != nil {
								return "", err
							}
						}
						return first.Values[0], nil
					})
					worker.Handle(w, "runner", func(ctx context.Context, seconds int) (string, error) {
						select {
						case <-time.After(time.Duration(seconds) * time.Second):
							s.Note(ctx, fmt.Sprint("ran ", seconds))
							return fmt.Sprint(seconds), nil
						case <-ctx.Done():
							return "", ctx.Err()
						}
					})
				}
			},
			Start: perdure.Submission{Kind: "race"},
		},
		"an agent that always fails":                      fails,
		"an agent that always fails, and has one attempt": once,
		"a line by itself once": task(func(_ *agenttest.Trial, ctx context.Context) (string, error) {
			if trials.Add(1) == 1 { // the trial without a crash
				if err := worker.Emit(ctx, "x:begun", nil); err != nil {
					return "", err
				}
				time.Sleep(time.Second)
			}
			return "done", nil
		}),
	} {
		t.Run(name, func(t *testing.T) { sc.CrashEverywhere(t, nil) })
	}
}

func TestVirtualTimePassesQuickly(t *testing.T) {
	began := time.Now()
	sc := task(func(_ *agenttest.Trial, ctx context.Context) (string, error) {
		return time.Now().Format(time.DateOnly), nil
	})
	sc.Start.Delay = perdure.Duration(24 * time.Hour)
	end := sc.Run(t)
	if day, err := client.Result[string](&end.Run); err != nil || day != "2000-01-02" {
		t.Errorf("day of the run = %s (error %v), want 2000-01-02", day, err)
	}
	if time.Since(began) > time.Hour {
		t.Errorf("the trial took %s, want much less than the delay of a day", time.Since(began))
	}
}

func TestRepeatedHandlerEndsTheSame(t *testing.T) {
	sc := task(func(s *agenttest.Trial, ctx context.Context) (string, error) {
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
			t.Errorf("result = %s (error %v), want sent", sent, err)
		}
	})
	for crash, mails := range map[string]int{
		"": 1,
		"the worker dies after grant 1 of task, before its answer":                  1,
		"the server restarts after grant 1 of task, before its answer":              1,
		"the worker dies before commit 1 of task (completes)":                       2, // the first was not recorded
		"the worker dies after commit 1 of task (completes), before its answer":     1,
		"the server restarts before commit 1 of task (completes)":                   1,
		"the server restarts after commit 1 of task (completes), before its answer": 1,
	} {
		if seen[crash] != mails {
			t.Errorf("crash %q: %d mails, want %d", crash, seen[crash], mails)
		}
		delete(seen, crash)
	}
	for crash := range seen {
		t.Errorf("crash %q was tried, want it not among the points", crash)
	}
}

// The handler of a dead worker may go on for a while. Its notes are not counted.
func TestNotesOfDeadWorkerAreIgnored(t *testing.T) {
	sc := task(func(s *agenttest.Trial, ctx context.Context) (string, error) {
		if err := worker.Emit(ctx, "x:begun", nil); err != nil {
			return "", err
		}
		time.Sleep(3 * time.Second) // ignores its context
		s.Note(ctx, "a mail")
		return "sent", nil
	})
	crashed := false
	sc.CrashEverywhere(t, func(t *testing.T, end *agenttest.End) {
		if end.Crash == "the worker dies before commit 1 of task (1 to the log)" {
			crashed = true
			if n := end.Notes["a mail"]; n != 1 {
				t.Errorf("%d mails, want 1: that of the dead worker is not counted", n)
			}
		}
	})
	if !crashed {
		t.Error("no trial crashed before the commit of the log line, want one")
	}
}

// inner is the environment variable of the process whose tests fail.
const inner = "PERDURE_AGENTTEST_INNER"

// Handlers whose result depends on a crash are found, and the failure says how.
func TestUnsafeHandlersAreFound(t *testing.T) {
	var calls atomic.Int64
	broken := map[string]agenttest.Scenario{
		"counts in memory": task(func(*agenttest.Trial, context.Context) (string, error) {
			return strings.Repeat("x", int(calls.Add(1))), nil
		}),
		"fails the second time": task(func(s *agenttest.Trial, ctx context.Context) (string, error) {
			if info, _ := worker.Info(ctx); info.Attempt > 1 {
				return "", perdure.Permanent(errors.New("I was here before"))
			}
			time.Sleep(10 * time.Second) // until its first sign of life: a lost dispatch costs no attempt
			return "well", nil
		}),
		"notes who it is": task(func(s *agenttest.Trial, ctx context.Context) (string, error) {
			info, _ := worker.Info(ctx)
			s.Note(ctx, "done by "+info.WorkerID)
			return "well", nil
		}),
		"does it outside of a step": {
			Setup: func(s *agenttest.Trial) func(*worker.Worker) {
				return func(w *worker.Worker) {
					worker.Agent(w, "task", func(ctx *agent.Context, _ struct{}) (string, error) {
						s.Note(ctx, "charged")
						return "well", nil
					})
				}
			},
			Start: perdure.Submission{Kind: "task"},
		},
		"names a step by the clock": {
			Setup: func(s *agenttest.Trial) func(*worker.Worker) {
				return func(w *worker.Worker) {
					worker.Agent(w, "task", func(ctx *agent.Context, _ struct{}) (string, error) {
						//perdurevet:ignore agentclock the mistake is what is tested
						name := "call at " + time.Now().Format("15:04:05")
						if _, err := agent.Step(ctx, name, func(context.Context) (int, error) {
							return 1, nil
						}); err != nil {
							return "", err
						}
						return "well", agent.Sleep(ctx, time.Minute)
					})
				}
			},
			Start: perdure.Submission{Kind: "task"},
		},
		"spawns what nobody knows": {
			Setup: func(s *agenttest.Trial) func(*worker.Worker) {
				return func(w *worker.Worker) {
					worker.Agent(w, "task", func(ctx *agent.Context, _ struct{}) (string, error) {
						return agent.Spawn[string](ctx, "hotle", "Lisbon").Join(ctx)
					})
				}
			},
			Start: perdure.Submission{Kind: "task"},
		},
		"changes a variable in a step": agentTask(func(ctx *agent.Context) (any, error) {
			total := 0
			if _, err := agent.Step(ctx, "add", func(context.Context) (bool, error) {
				total += 10 //perdurevet:ignore agentassign the mistake is what is tested
				return true, nil
			}); err != nil {
				return 0, err
			}
			return total, agent.Sleep(ctx, time.Hour)
		}),
		"keeps a variable over a join": agentTask(func(ctx *agent.Context) (any, error) {
			total, err := addsInStep(ctx)
			if err != nil {
				return 0, err
			}
			_, err = agent.Spawn[int](ctx, "slow", 1).Join(ctx)
			return total, err
		}),
		"keeps a variable over a Select": agentTask(func(ctx *agent.Context) (any, error) {
			total, err := addsInStep(ctx)
			if err != nil {
				return 0, err
			}
			child, signal := agent.Spawn[int](ctx, "slow", 1), agent.OnSignal[string](ctx, "never")
			n, err := agent.Select(ctx, signal, child, agent.After(ctx, time.Hour))
			return fmt.Sprint(total, " by ", n), err
		}),
		"keeps a variable over a Map": agentTask(func(ctx *agent.Context) (any, error) {
			total, err := addsInStep(ctx)
			if err != nil {
				return 0, err
			}
			_, err = agent.Map[int](ctx, "slow", []int{1})
			return total, err
		}),
		"takes the clock as a start": agentTask(func(ctx *agent.Context) (any, error) {
			began := time.Now() //perdurevet:ignore agentclock the mistake is what is tested
			if err := agent.Sleep(ctx, time.Hour); err != nil {
				return 0, err
			}
			//perdurevet:ignore agentclock the mistake is what is tested
			return fmt.Sprintf("%.0f hours", time.Since(began).Hours()), nil
		}),
		"loses its answer": {
			Setup: func(s *agenttest.Trial) func(*worker.Worker) {
				said := false // of all workers of a trial
				return func(w *worker.Worker) {
					worker.Agent(w, "task", func(ctx *agent.Context, _ struct{}) (string, error) {
						if !said {
							said = true
							if err := agent.Message(ctx, "assistant", "the answer"); err != nil {
								return "", err
							}
						}
						return "said", nil
					})
				}
			},
			Start: perdure.Submission{Kind: "task", ThreadID: "new"},
		},
		"holds a mutex over a step": {
			Setup: func(s *agenttest.Trial) func(*worker.Worker) {
				var mu sync.Mutex
				return func(w *worker.Worker) {
					worker.Agent(w, "task", func(ctx *agent.Context, _ struct{}) (string, error) {
						one, two := agent.Spawn[string](ctx, "locks", 1), agent.Spawn[string](ctx, "locks", 2)
						_, err := agent.JoinAll(ctx, one, two)
						return "", err
					})
					worker.Agent(w, "locks", func(ctx *agent.Context, _ int) (string, error) {
						mu.Lock()
						defer mu.Unlock()
						return agent.Step(ctx, "work", func(context.Context) (string, error) {
							time.Sleep(time.Second)
							return "", nil
						})
					})
				}
			},
			Start: perdure.Submission{Kind: "task"},
		},
		"never returns": task(func(*agenttest.Trial, context.Context) (string, error) { select {} }),
	}
	if name := os.Getenv(inner); name != "" {
		agenttest.LookAtClockEvery(200 * time.Millisecond)
		if strings.HasPrefix(name, "keeps a variable over") {
			broken[name].StayAwake(t) // crashes show nothing: every execution but the first is wrong
			return
		}
		broken[name].CrashEverywhere(t, nil)
		return
	}
	const before = "the worker dies before commit 1 of task (completes): the end is not the same as without the " +
		"crash:\n"
	for name, want := range map[string][]string{
		"counts in memory": {before, `task: result`, `was "x"`},
		"fails the second time": {before, "task: state", "was completed", "is  failed",
			"task: error is there, and was not without the crash: failed: I was here before",
			`deliverable: result is missing; without the crash it was "well"`},
		"does it outside of a step": {`"charged" is done outside of a step`},
		"names a step by the clock": {"task: a defect of the agent's code: nondeterminism: call at 00:01:",
			"the step call at 00:00:"},
		"spawns what nobody knows": {`task/hotle#1: no handler is registered for the kind "hotle"`},
		"never returns": {"these functions do not return, although their contexts have ended long ago: " +
			"task (run "},
		"changes a variable in a step": {"a run that does not sleep: the end is not the same", "task: result\n",
			"was 0\n", "is  10", "does a step's function change a variable of the agent"},
		"keeps a variable over a join": {"a run that does not sleep: the end is not the same", "task: result\n",
			"was 0\n", "is  10"},
		"keeps a variable over a Select": {"a run that does not sleep: the end is not the same", "task: result\n",
			`was "0 by 1"`, `is  "10 by 1"`},
		"keeps a variable over a Map": {"a run that does not sleep: the end is not the same", "task: result\n",
			"was 0\n", "is  10"},
		"takes the clock as a start": {"a run that does not sleep: the end is not the same",
			`was "0 hours"`, `is  "1 hours"`},
		"loses its answer": {`thread: message 1 is missing; without the crash it was assistant: "the answer"`},
		"holds a mutex over a step": {"the clock has stopped: a goroutine waits for a mutex whose holder waits",
			"Release a mutex before a step", "locks (run ", "sync.(*Mutex).Lock"},
		"notes who it is": {before, "noted: done by worker-1 is missing",
			"noted: done by worker-2 is there, and was not"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run=^TestUnsafeHandlersAreFound$")
			cmd.Env = append(os.Environ(), inner+"="+name)
			out, err := cmd.CombinedOutput()
			if err == nil {
				t.Fatalf("the test passed, want it to fail:\n%s", out)
			}
			if n := strings.Count(string(out), "log of server and workers:"); n > 1 {
				t.Errorf("the output has %d logs, want one", n)
			}
			if n := strings.Count(string(out), "the end is not the same"); n > 1 {
				want = append(want, fmt.Sprint(n, " trials ended in another way, for "), " times, such as: ")
			}
			for _, w := range want {
				if !strings.Contains(strings.ReplaceAll(string(out), "\n        ", "\n"), w) {
					t.Errorf("the output lacks %q:\n%s", w, out)
				}
			}
		})
	}
}

func TestRunTakesWhatItsKindAnnounces(t *testing.T) {
	sc := agenttest.Scenario{
		Start: perdure.Submission{Kind: "trip"},
		Setup: func(*agenttest.Trial) func(*worker.Worker) {
			return func(w *worker.Worker) {
				worker.Agent(w, "trip", func(*agent.Context, struct{}) (int, error) { return 1, nil },
					worker.Kind{MaxAttempts: 7, Timeout: 90 * time.Minute})
			}
		},
	}
	run := sc.Run(t).Run
	if took := run.DeadlineAt.Sub(run.CreatedAt); run.Class != perdure.Agent || run.MaxAttempts != 7 ||
		took != 90*time.Minute {
		t.Errorf("run: class %s, %d attempts, deadline after %s; want agent, 7 and 90m", run.Class,
			run.MaxAttempts, took)
	}
}

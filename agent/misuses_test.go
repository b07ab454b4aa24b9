package agent_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/agenttest"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/testkit/agentcases"
	"github.com/perdure/perdure/internal/testkit/stage"
	"github.com/perdure/perdure/worker"
)

// A misuseTrial is the execution of a misuse of package agentcases.
type misuseTrial struct {
	*agentcases.Misuse
	kind string
	// run returns the error of the misuse. ignores ignores it, and goes on with a step.
	run, ignores perdure.RunID
}

// Each misuse of package agentcases is executed: by an agent that returns its error, and by one that ignores
// the error and goes on with a step. None is silent: the run is right, or held before the step with a text, or
// the error has a code.
func TestMisusesOfTheTable(t *testing.T) {
	t.Parallel()
	w, world := openHeld(t), agentcases.NewWorld()
	var trials []*misuseTrial
	for _, area := range agentcases.Misuses {
		for n := range everyRow(len(area.Rows)) {
			trials = append(trials, &misuseTrial{Misuse: &area.Rows[n], kind: fmt.Sprintf("misuse-%03d", len(trials))})
		}
	}
	w.work(func(wk *worker.Worker) {
		world.Children(wk)
		for _, m := range trials {
			worker.Agent(wk, m.kind, func(ctx *agent.Context, ignores bool) (string, error) {
				out, err := m.Do(ctx, world)
				if !ignores {
					return out, err
				}
				if m.Error != "" && codeOf(err) != m.Error {
					return "", perdure.Permanent(fmt.Errorf("the error is %q, want the code %s", err, m.Error))
				}
				_, err = agent.Step(ctx, "next", func(context.Context) (int, error) {
					world.Did(ctx.RunID(), "next")
					return 1, nil
				})
				return "ignored", err
			})
		}
	})
	for _, m := range trials {
		m.run, m.ignores = m.start(w, false), m.start(w, true)
	}
	for _, m := range trials {
		t.Run(m.Name, func(t *testing.T) { m.check(t, w, world) })
	}
}

// codeOf returns the code with which a run fails that returns an error.
func codeOf(err error) perdure.Code {
	var own interface{ FailureCode() perdure.Code }
	var coded *perdure.Error
	switch {
	case errors.As(err, &coded):
		return coded.Code
	case errors.As(err, &own):
		return own.FailureCode()
	}
	return "failed"
}

func (m *misuseTrial) start(w *scene, ignores bool) perdure.RunID {
	sub := perdure.Submission{Kind: m.kind, Input: client.JSON(ignores), MaxAttempts: 1}
	if m.OnThread {
		sub.ThreadID = w.thread()
	}
	id := w.start(sub)
	if m.Wakes {
		w.stands(id, "go on")
		w.signal(id, "go on", nil)
	}
	return id
}

func (m *misuseTrial) check(t *testing.T, w *scene, world *agentcases.World) {
	switch {
	case m.Held != "":
		for _, id := range []perdure.RunID{m.run, m.ignores} {
			text := w.heldWith(t, id, m.Held)
			contains(t, text, m.Says...)
			for _, what := range world.Effects(id) {
				if what == "next" && !m.AtEnd {
					t.Errorf("the step after it was executed, want the run held before")
				}
			}
		}
	case m.Fails != "" || m.Error != "":
		run := w.end(m.run)
		if want := perdure.Code(string(m.Fails) + string(m.Error)); run.Error == nil || run.Error.Code != want {
			t.Errorf("%s (result %.100s, error %.300v), want the code %s", run.State, run.Result, run.Error, want)
		} else {
			contains(t, run.Error.Message, m.Says...)
		}
		if m.Error != "" {
			completed(t, w.end(m.ignores), `"ignored"`)
		}
	case m.Right != "":
		completed(t, w.end(m.run), fmt.Sprintf("%q", m.Right))
	case m.Vet == "" && !m.Kit:
		t.Error("the row has no outcome")
	}
}

// The misuses that no execution can find by itself are found by a test with package agenttest.
func TestKitFindsMisusesOfTheTable(t *testing.T) {
	stage.NoStore(t)
	const inner = "PERDURE_TEST_MISUSES"
	if os.Getenv(inner) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestKitFindsMisusesOfTheTable$", "-test.v")
		cmd.Env = append(os.Environ(), inner+"=1", "PERDURE_TEST_STORE=")
		out, err := cmd.CombinedOutput()
		if err == nil {
			t.Fatalf("the test passed, want it to fail:\n%s", out)
		}
		for _, area := range agentcases.Misuses {
			for _, m := range area.Rows {
				name := fmt.Sprintf("--- FAIL: %s/%s ", t.Name(), strings.ReplaceAll(m.Name, " ", "_"))
				if found := strings.Contains(string(out), name); !found && m.Kit {
					t.Errorf("%s: the kit does not find it", m.Name)
				}
			}
		}
		return
	}
	for _, area := range agentcases.Misuses {
		for _, m := range area.Rows {
			if !m.Kit {
				continue
			}
			t.Run(m.Name, func(t *testing.T) {
				sc := agenttest.Scenario{
					Start: perdure.Submission{Kind: "task", Class: perdure.Agent},
					Setup: func(*agenttest.Trial) func(*worker.Worker) {
						world := agentcases.NewWorld()
						return func(wk *worker.Worker) {
							worker.Agent(wk, "task", func(ctx *agent.Context, _ any) (string, error) {
								return m.Do(ctx, world)
							})
						}
					},
				}
				sc.CrashEverywhere(t, nil)
			})
		}
	}
}

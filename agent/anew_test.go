package agent_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/agenttest"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/worker"
)

// A keeper is what an agent remembers that goes on anew.
type keeper struct {
	Round int
	Words []string
}

// keep takes a signal a round, and goes on anew until it has three.
func keep(ctx *agent.Context, in keeper) (int, error) {
	if in.Round == 0 { // until all signals have come
		if err := agent.Sleep(ctx, time.Hour); err != nil {
			return 0, err
		}
	}
	word, err := agent.Signal[string](ctx, "word", time.Hour)
	if err != nil {
		return 0, err
	}
	in.Words = append(in.Words, word)
	if in.Round++; in.Round < 3 {
		return agent.Anew(ctx, in.Round, in)
	}
	_, err = agent.Step(ctx, "all", func(context.Context) (string, error) { return strings.Join(in.Words, " "), nil })
	return in.Round, err
}

// The signals are all sent to the first run. Those that it does not take go with it.
func TestAnewMakesOneRunAfterEveryCrash(t *testing.T) {
	t.Parallel()
	agenttest.Scenario{
		Setup: func(*agenttest.Trial) func(*worker.Worker) {
			return func(wk *worker.Worker) { worker.Agent(wk, "keeper", keep) }
		},
		Start: perdure.Submission{Kind: "keeper", Class: perdure.Agent, Input: client.JSON(keeper{})},
		Script: func(s *agenttest.Trial) {
			for _, word := range []string{"a", "b", "c"} {
				s.Signal("word", word)
			}
		},
	}.CrashEverywhere(t, func(t *testing.T, end *agenttest.End) {
		last := ""
		for _, steps := range end.Steps {
			if all, ok := steps["all#1"]; ok {
				last = string(all)
			}
		}
		if len(end.Tree) != 3 || last != `"a b c"` || string(end.Run.Result) != "1" {
			t.Errorf("%d runs, the last has %s, the first returned %s; want 3 runs, all words in order, and 1",
				len(end.Tree), last, end.Run.Result)
		}
	})
}

func TestMisusesOfAnewHoldTheRun(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "other-type", func(ctx *agent.Context, _ keeper) (int, error) {
			return agent.Anew(ctx, 1, "no keeper")
		})
		worker.Agent(wk, "twice", func(ctx *agent.Context, in keeper) (int, error) {
			if _, err := agent.Anew(ctx, 1, in); err != nil {
				return 0, err
			}
			return agent.Anew(ctx, 1, in)
		})
		worker.Agent(wk, "in-a-step", func(ctx *agent.Context, in keeper) (int, error) {
			return agent.Step(ctx, "s", func(context.Context) (int, error) {
				return agent.Anew(ctx, 1, in) //perdurevet:ignore agentcontext the misuse is what is tested
			})
		})
	})
	wants := map[string]string{"other-type": "can't be read", "twice": "before", "in-a-step": "between"}
	for kind, says := range wants {
		id := w.start(perdure.Submission{Kind: kind, Input: client.JSON(keeper{})})
		if held := w.held(id, agent.CodeMisuse).Hold; !strings.Contains(held.Message, says) {
			t.Errorf("%s: held because %s, want a text with %q", kind, held.Message, says)
		}
	}
}

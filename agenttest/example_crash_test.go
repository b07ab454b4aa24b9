package agenttest_test

import (
	"context"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/agenttest"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/worker"
)

// greet is the agent under test: it looks up a name by its number, and greets.
func greet(ctx *agent.Context, number int) (string, error) {
	name, err := agent.Step(ctx, "look up", func(context.Context) (string, error) {
		return map[int]string{7: "Ann"}[number], nil
	})
	return "hello, " + name, err
}

// testGreet crashes the agent's worker and its server at every point where that makes a difference. The
// run has to end with the same result each time.
func testGreet(t *testing.T) {
	scenario := agenttest.Scenario{
		Start: perdure.Submission{Kind: "greet", Class: perdure.Agent, Input: client.JSON(7)},
		Setup: func(*agenttest.Trial) func(*worker.Worker) {
			return func(w *worker.Worker) { worker.Agent(w, "greet", greet) }
		},
	}
	scenario.CrashEverywhere(t, func(t *testing.T, end *agenttest.End) {
		if greeting, err := client.Result[string](&end.Run); err != nil || greeting != "hello, Ann" {
			t.Errorf("result = %q (error %v), want %q", greeting, err, "hello, Ann")
		}
	})
}

// In a package of tests testGreet is called TestGreet, and go test calls it.
func ExampleScenario_CrashEverywhere() {
	var t *testing.T // that of the test
	testGreet(t)
}

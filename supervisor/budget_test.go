package supervisor_test

import (
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agenttest"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/testkit/mockmodel"
	"github.com/perdure/perdure/supervisor"
)

// A stream that always breaks costs its tokens again with every retry. The budget ends that.
func TestRetriesStayWithinTheBudget(t *testing.T) {
	w := &world{opt: supervisor.Options{Budget: supervisor.Budget{Tokens: 6000}}, rules: []mockmodel.Rule{
		{Answer: mockmodel.Answer{Text: "blah ", Repeat: 400, Fault: mockmodel.FaultCut, FaultAfter: 300}}}}
	end := w.scenario("go " + strings.Repeat("on ", 1000)).Run(t)
	checkThread(t, end, "user: go", "assistant: I stop here: the budget")
	if out := result(t, end); out.Usage.Total() > 6000+1500 || out.Usage.Total() < 2000 {
		t.Errorf("the run has used %d tokens, want 6000 and the answer of the last call at most", out.Usage.Total())
	}
}

// A worker that somebody starts by hand has the budget of the configuration, whatever its input says.
func TestWorkerStartedByHandHasABudget(t *testing.T) {
	for _, in := range []supervisor.Budget{{}, {Tokens: 1 << 40}, {Tokens: -1}} {
		w := &world{opt: supervisor.Options{Budget: supervisor.Budget{Tokens: 2000}},
			rules: []mockmodel.Rule{{Answer: mockmodel.Answer{ToolCalls: []mockmodel.Call{
				call("count", args{"to": 1})}}}},
			tools: func(s *agenttest.Trial) []supervisor.Tool { return []supervisor.Tool{counter(s, true)} }}
		sc := w.scenario("")
		sc.Start = perdure.Submission{Kind: supervisor.WorkerKind, Class: perdure.Agent,
			Input: client.JSON(supervisor.Task{Task: "count for ever", Budget: in})}
		if out := result(t, sc.Run(t)); out.Ended != supervisor.EndedBudget || out.Usage.Total() > 700 {
			t.Errorf("budget %+v: the worker ended with %+v, want the budget of 500 tokens", in, out)
		}
	}
}

// A model that spawns a worker in the background whenever it is called again does not get a new budget
// with each run: the question ends when its budget is used up.
func TestContinuationsShareABudget(t *testing.T) {
	w := &world{opt: supervisor.Options{Budget: supervisor.Budget{Tokens: 3000}}, rules: []mockmodel.Rule{
		{Match: mockmodel.Match{System: "You are a worker"}, Answer: mockmodel.Answer{Text: "worked",
			FirstToken: perdure.Duration(20 * time.Second)}},
		says("tool", "", "It goes on."),
		{Answer: mockmodel.Answer{ToolCalls: []mockmodel.Call{
			call("spawn_worker", args{"task": strings.Repeat("mine coins ", 40), "wait": 0})}}},
	}}
	end := w.scenario("go " + strings.Repeat("on ", 100)).Run(t)
	spent, runs := 0, 0
	for _, r := range end.Tree {
		if out, err := client.Result[supervisor.Result](&r); r.Kind == supervisor.Kind && err == nil {
			runs++
			spent += out.Usage.Total()
		}
	}
	for _, r := range end.Tree { // those that ended in the background are in no other run's usage
		if out, err := client.Result[supervisor.Result](&r); r.Kind == supervisor.WorkerKind && err == nil {
			spent += out.Usage.Total()
		}
	}
	if runs < 2 || spent > 3800 {
		t.Errorf("%d runs have used %d tokens, want several with 3000 and a last call at most", runs, spent)
	}
}

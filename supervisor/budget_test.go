package supervisor_test

import (
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/mockmodel"
	"github.com/perdure/perdure/supervisor"
)

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

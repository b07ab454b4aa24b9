package agent_test

import (
	"context"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/worker"
)

// An agent may spawn and wait for more children than one commit takes. The package splits its
// commits.
func TestMoreChildrenThanOneCommitTakes(t *testing.T) {
	t.Parallel()
	const children = 3000
	w := open(t)
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "parent", func(ctx *agent.Context, _ struct{}) (int, error) {
			kids := make([]*agent.Future[int], children)
			for i := range kids {
				kids[i] = agent.Spawn[int](ctx, "kid", i)
			}
			return agent.Select(ctx, agent.Awaitables(kids...)...)
		})
		worker.Handle(wk, "kid", func(_ context.Context, n int) (int, error) { return n, nil })
	})
	run := w.ends("parent", struct{}{})
	if run.State != perdure.Completed {
		t.Errorf("the parent of %d children is %s, want completed: %+v", children, run.State, run.Error)
	}
}

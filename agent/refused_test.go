package agent_test

import (
	"context"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/worker"
)

// What comes after something that the server refuses is not done.
func TestNothingIsDoneBehindARefusal(t *testing.T) {
	t.Parallel()
	w := open(t)
	var done tally
	refused := func(ctx *agent.Context) { agent.Spawn[any](ctx, "kid", nil, agent.Options{ThreadID: ctx.ThreadID()}) } // on its own thread
	w.work(func(wk *worker.Worker) {
		worker.Agent(wk, "steps", func(ctx *agent.Context, _ struct{}) (string, error) {
			refused(ctx)
			for range 1000 { // more than one commit
				if err := agent.Message(ctx, "assistant", "x"); err != nil {
					return "", err
				}
			}
			return "", done.do(ctx, "effect")
		})
		worker.Agent(wk, "waits elsewhere", func(ctx *agent.Context, _ struct{}) (string, error) {
			refused(ctx)
			got := make(chan string)
			go func() {
				s, _ := agent.Step(ctx, "s", func(context.Context) (string, error) { done.add("elsewhere"); return "x", nil })
				got <- s
			}()
			return <-got, nil
		})
	})
	for _, kind := range []string{"steps", "waits elsewhere"} {
		run := w.end(w.start(perdure.Submission{Kind: kind, ThreadID: w.thread()}))
		if run.State != perdure.Failed || run.Error.Code != perdure.CodeThreadBusy {
			t.Errorf("%s: %s %+v", kind, run.State, run.Error)
		}
	}
	if len(done.all()) > 0 {
		t.Errorf("done all the same: %v", done.all())
	}
}

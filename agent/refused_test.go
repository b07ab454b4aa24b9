package agent_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/worker"
)

// Steps after a commit that the server refuses are not executed.
//
//perdurevet:ignore agenterror the execution is over before the step returns
func TestNoStepRunsAfterRefusedCommit(t *testing.T) {
	t.Parallel()
	w := open(t)
	var done tally
	refused := func(ctx *agent.Context) {
		for range perdure.MaxOpenWaits + 1 {
			agent.Callback[int](ctx, "one of too many", time.Hour)
		}
	}
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
			agent.Go(ctx, "side", func(ctx *agent.Context) error {
				s, err := agent.Step(ctx, "s", func(context.Context) (string, error) {
					done.add("elsewhere")
					return "x", nil
				})
				got <- s
				return err
			})
			return <-got, nil
		})
	})
	for _, kind := range []string{"steps", "waits elsewhere"} {
		run := w.end(w.start(perdure.Submission{Kind: kind, ThreadID: w.thread()}))
		if run.State != perdure.Failed || !strings.Contains(run.Error.Message, "waits") {
			t.Errorf("kind %s: %s with error %+v, want failed because of its waits", kind, run.State, run.Error)
		}
	}
	if len(done.all()) > 0 {
		t.Errorf("effects = %v, want none", done.all())
	}
}

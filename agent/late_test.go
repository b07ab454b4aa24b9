package agent_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/worker"
)

// A child delivers its result after its deadline. Once somebody has adopted it, the parent gets it.
func TestLateResultOfAChild(t *testing.T) {
	t.Parallel()
	w := open(t)
	finish := make(chan struct{})
	w.work(func(wk *worker.Worker) {
		worker.Handle(wk, "slow", func(context.Context, int) (string, error) {
			<-finish
			return "after all", nil
		})
		worker.Agent(wk, "boss", func(ctx *agent.Context, _ struct{}) (string, error) {
			child := agent.Spawn[string](ctx, "slow", 1, agent.Timeout(300*time.Millisecond))
			if _, err := child.Join(ctx); !errors.Is(err, agent.ErrTaskTimedOut{}) {
				return "", perdure.Permanent(fmt.Errorf("%w, want a timeout", err))
			}
			_, early, err := child.Late(ctx)
			if err != nil {
				return "", err
			}
			if _, err := agent.Signal[int](ctx, "adopted", time.Hour); err != nil {
				return "", err
			}
			v, ok, err := child.Late(ctx)
			if err != nil {
				return "", err
			}
			if err := agent.Sleep(ctx, time.Millisecond); err != nil { // the next execution gets the same
				return "", err
			}
			_, again, err := child.Late(ctx)
			return fmt.Sprint(early, v, ok, again), err
		})
	})
	id := w.start(perdure.Submission{Kind: "boss"})
	w.children("slow", perdure.TimedOut, 1)
	child := w.runs(client.Filter{Kind: "slow"})[0].RunID
	w.suspended(id)
	close(finish)
	eventually.True(t, "the late result is kept", func() bool {
		late, err := w.c.LateResults(w.ctx, child)
		return err == nil && len(late) == 1
	})
	if _, err := w.c.Adopt(w.ctx, child, 1); err != nil {
		t.Fatal(err)
	}
	w.signal(id, "adopted", 1)
	completed(t, w.end(id), `"falseafter alltrue false"`)
}

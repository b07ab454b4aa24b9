package agent_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/worker"
)

// Of a decision and the withdrawal of its question exactly one counts: a decision that the server has
// taken is the result, and after a withdrawal the server takes none.
func TestWithdrawnQuestionLosesNoDecision(t *testing.T) {
	for _, c := range []struct {
		name    string
		decides bool
	}{{"decided before", true}, {"decided after", false}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := open(t)
			thread := w.thread()
			decide := func(ctx context.Context) error {
				page, err := w.c.Approvals(ctx, client.ApprovalFilter{State: "all"})
				if err != nil || len(page.Approvals) != 1 {
					return errors.Join(err, errors.New("there is not exactly one approval"))
				}
				_, err = w.c.Decide(ctx, page.Approvals[0].ID, api.Decide{Decision: perdure.Approve})
				return err
			}
			type outcome struct{ Withdrawn, Approved, Cancelled bool }
			w.work(func(wk *worker.Worker) {
				worker.Agent(wk, "asks", func(ctx *agent.Context, _ struct{}) (out outcome, err error) {
					f := agent.OnApproval(ctx, agent.Approval{Title: "Which?", Action: 1, Timeout: time.Hour})
					if n, err := agent.Select(ctx, f, agent.OnMessage[string](ctx)); err != nil || n != 1 {
						return out, errors.Join(err, errors.New("the message is not the first"))
					}
					// The run works on, so it does not learn of the decision until it asks.
					if _, err := agent.Step(ctx, "meanwhile", func(ctx context.Context) (bool, error) {
						if c.decides {
							return true, decide(ctx)
						}
						return false, nil
					}); err != nil {
						return out, err
					}
					if out.Withdrawn, err = f.Withdraw(ctx); err != nil {
						return out, err
					}
					v, err := f.Result()
					out.Approved, out.Cancelled = v.Approved, errors.Is(err, agent.ErrCancelled)
					again, err := f.Withdraw(ctx)
					if err != nil || again != out.Withdrawn {
						return out, errors.Join(err, errors.New("the second call has another result"))
					}
					return out, agent.Sleep(ctx, time.Millisecond) // the agent is executed again
				})
			})
			id := w.start(perdure.Submission{Kind: "asks", ThreadID: thread})
			w.suspended(id)
			w.say(thread, "blue")
			want := `{"Withdrawn":true,"Approved":false,"Cancelled":true}`
			if c.decides {
				want = `{"Withdrawn":false,"Approved":true,"Cancelled":false}`
			}
			completed(t, w.end(id), want)
			if c.decides {
				return
			}
			if err := decide(w.ctx); client.CodeOf(err) != perdure.CodeWaitClosed {
				t.Errorf("a decision after the withdrawal: %v, want %s", err, perdure.CodeWaitClosed)
			}
		})
	}
}

package agent_test

import (
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/client"
)

// A release that asks a person before something that is recorded is held, and nobody is asked. The
// release before goes on.
func TestHeldBuildAsksNobody(t *testing.T) {
	t.Parallel()
	for name, ask := range map[string]func(ctx *agent.Context) error{
		"and waits": func(ctx *agent.Context) error {
			_, err := agent.Approve(ctx, agent.Approval{Title: "Push?", Action: "git push"})
			return err
		},
		"and goes on": func(ctx *agent.Context) error {
			agent.OnApproval(ctx, agent.Approval{Title: "Push?", Action: "git push"})
			agent.Callback[int](ctx, "door", time.Hour)
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := openHeld(t)
			var done tally
			before := steps(&done, "a", "b", "wait", "c")
			message, run := w.rollsBack(before, func(ctx *agent.Context, in int) (string, error) {
				if err := ask(ctx); err != nil {
					return "", err
				}
				return steps(&done, "a", "bee", "wait", "c")(ctx, in)
			})
			contains(t, message, "does not have this")
			completed(t, run, `"a 1, b 1, c 1"`)
			asked, err := w.c.Approvals(w.ctx, client.ApprovalFilter{State: perdure.ApprovalAll})
			if err != nil || len(asked.Approvals) != 0 {
				t.Errorf("approvals = %+v (%v), want none", asked, err)
			}
			if lines := w.lines(run.RunID, "wait:opened"); len(lines) != 1 {
				t.Errorf("%d waits were opened (%s), want that for the signal alone", len(lines), lines)
			}
		})
	}
}

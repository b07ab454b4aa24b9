package client_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/testkit/servertest"
	"github.com/perdure/perdure/internal/wire/session"
)

func TestDecisionWithLostAnswersCountsOnce(t *testing.T) {
	both(t, func(t *testing.T, w *servertest.Server) {
		ctx := context.Background()
		lossy := &servertest.Wire{}
		c := w.Client(lossy.Wrap)
		run := ok[*api.Run](t)(c.Start(ctx, perdure.Submission{Kind: "deploy"}))
		g := ok[*api.Polled](t)(session.Of(c).Poll(ctx, "w", api.Poll{Slots: 1, Start: true})).Runs[0]
		wait := func(id, action string) perdure.WaitSpec {
			return perdure.WaitSpec{ID: id, Type: perdure.WaitApproval, Name: "approve_push",
				Approval: &perdure.ApprovalSpec{Action: json.RawMessage(action)}}
		}
		ok[[]api.CommitResult](t)(session.Of(c).Commit(ctx, "w", perdure.Commit{ID: "ask", RunID: g.RunID,
			Epoch:   g.Epoch,
			Waits:   []perdure.WaitSpec{wait("a", `{"push":"main"}`), wait("b", `2`)},
			Outcome: &perdure.Outcome{Type: perdure.OutcomeSuspend}}))
		first := ok[*api.Approvals](t)(c.Approvals(ctx, client.ApprovalFilter{RunID: run.RunID, Limit: 1}))
		next := client.ApprovalFilter{RunID: run.RunID, Limit: 1, Cursor: first.NextCursor}
		rest := ok[*api.Approvals](t)(c.Approvals(ctx, next))
		if len(first.Approvals) != 1 || len(rest.Approvals) != 1 || rest.NextCursor != "" {
			t.Fatalf("pages: %+v and %+v, want one approval on each", first, rest)
		}
		a := ok[*perdure.Approval](t)(c.Approval(ctx, perdure.IDOfApproval("default", run.RunID, "a")))
		if string(a.Action) != `{"push":"main"}` || a.Kind != "deploy" || a.State != perdure.ApprovalOpen {
			t.Errorf("approval: %+v, want it open, with the action and the kind deploy", a)
		}
		lossy.Lose.Store(2)
		decision := api.Decide{Decision: perdure.Approve, Comment: "go", ActionHash: a.ActionHash}
		a = ok[*perdure.Approval](t)(c.Decide(ctx, a.ID, decision))
		if a.State != perdure.ApprovalApproved || a.Comment != "go" || a.DecidedBy == nil || lossy.Lose.Load() > 0 {
			t.Errorf("approval after two lost answers: %+v, want it approved", a)
		}
		if _, err := c.Decide(ctx, a.ID,
			api.Decide{Decision: perdure.Reject}); client.CodeOf(err) != perdure.CodeAlreadyDecided {
			t.Errorf("the opposite decision: %v, want %s", err, perdure.CodeAlreadyDecided)
		}
		if _, err := c.Approval(ctx, "apv_none"); client.CodeOf(err) != perdure.CodeNotFound {
			t.Errorf("an unknown approval: %v, want %s", err, perdure.CodeNotFound)
		}
		done := ok[*api.Approvals](t)(c.Approvals(ctx, client.ApprovalFilter{State: perdure.ApprovalApproved}))
		if len(done.Approvals) != 1 || done.Approvals[0].ID != a.ID {
			t.Errorf("approved: %+v, want %s", done, a.ID)
		}
	})
}

package client_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
)

func TestAnApprovalIsDecidedOnceWhateverIsLost(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		ctx := context.Background()
		lossy := &wire{}
		c := w.client(lossy.wrap)
		run := ok[*api.Run](t)(c.Start(ctx, perdure.Submission{Kind: "deploy"}))
		g := ok[*api.Polled](t)(c.Poll(ctx, "w", api.Poll{Slots: 1, Start: true})).Runs[0]
		ok[[]api.CommitResult](t)(c.Commit(ctx, "w", perdure.Commit{ID: "ask", RunID: g.RunID, Epoch: g.Epoch, Outcome: &perdure.Outcome{Type: perdure.OutcomeSuspend},
			Waits: []perdure.WaitSpec{{ID: "a", Type: perdure.WaitApproval, Name: "approve_push", Approval: &perdure.ApprovalSpec{Action: json.RawMessage(`{"push":"main"}`)}},
				{ID: "b", Type: perdure.WaitApproval, Name: "approve_push", Approval: &perdure.ApprovalSpec{Action: json.RawMessage(`2`)}}}}))
		first := ok[*api.Approvals](t)(c.Approvals(ctx, client.ApprovalFilter{RunID: run.RunID, Limit: 1}))
		rest := ok[*api.Approvals](t)(c.Approvals(ctx, client.ApprovalFilter{RunID: run.RunID, Limit: 1, Cursor: first.NextCursor}))
		if len(first.Approvals) != 1 || len(rest.Approvals) != 1 || rest.NextCursor != "" {
			t.Fatalf("%+v %+v", first, rest)
		}
		a := ok[*perdure.Approval](t)(c.Approval(ctx, perdure.IDOfApproval("default", run.RunID, "a")))
		if string(a.Action) != `{"push":"main"}` || a.Kind != "deploy" || a.State != perdure.ApprovalOpen {
			t.Errorf("%+v", a)
		}
		lossy.loseNext.Store(2)
		a = ok[*perdure.Approval](t)(c.Decide(ctx, a.ID, api.Decide{Decision: perdure.Approve, Comment: "go", ActionHash: a.ActionHash}))
		if a.State != perdure.ApprovalApproved || a.Comment != "go" || a.DecidedBy == nil || lossy.loseNext.Load() > 0 {
			t.Errorf("%+v", a)
		}
		if _, err := c.Decide(ctx, a.ID, api.Decide{Decision: perdure.Reject}); client.CodeOf(err) != perdure.CodeAlreadyDecided {
			t.Errorf("%v", err)
		}
		if _, err := c.Approval(ctx, "apv_none"); client.CodeOf(err) != perdure.CodeNotFound {
			t.Errorf("%v", err)
		}
		if done := ok[*api.Approvals](t)(c.Approvals(ctx, client.ApprovalFilter{State: perdure.ApprovalApproved})); len(done.Approvals) != 1 || done.Approvals[0].ID != a.ID {
			t.Errorf("%+v", done)
		}
	})
}

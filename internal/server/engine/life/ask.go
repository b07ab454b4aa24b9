package life

import (
	"bytes"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/wire/redact"
)

// askForApproval stages the approval of a new wait. It refuses an action in which a secret was
// redacted, because a person could not see what is approved.
func askForApproval(
	tx *kernel.Tx, r *perdure.Run, w *perdure.Wait, spec *perdure.ApprovalSpec,
) (a perdure.Approval, err error) {
	if tx.Engine.Secrets != nil && bytes.Contains(spec.Action, []byte(redact.Mark)) {
		return a, perdure.Errorf(perdure.CodeInvalid,
			"the action has a secret in it: nobody could see what is approved")
	}
	a = perdure.Approval{Tenant: r.Tenant, ID: perdure.IDOfApproval(r.Tenant, r.ID, w.ID), RunID: r.ID,
		Kind: r.Kind, WaitID: w.ID, Name: w.Name, Title: spec.Title,
		Action: tx.DB.Values.Intern(r.Tenant, string(r.ID), spec.Action), Form: spec.Form,
		Default: spec.Default, State: perdure.ApprovalOpen,
		OpenedAt: w.OpenedAt, ExpiresAt: r.DeadlineAt, ExpiresBy: perdure.ExpiresByDeadline}
	if w.TimeoutAt != 0 && w.TimeoutAt < r.DeadlineAt {
		a.ExpiresAt, a.ExpiresBy = w.TimeoutAt, perdure.ExpiresByTimeout
	}
	if spec.Approvers == perdure.ApproversPlatform {
		a.Approvers = spec.Approvers
	}
	if a.ActionHash, err = spec.ActionHash(); err == nil {
		tx.DB.Approvals.Put(a)
	}
	return a, err
}

// checkSameAction refuses a replayed wait whose action differs from the first one.
func checkSameAction(tx *kernel.Tx, w *perdure.Wait, spec *perdure.ApprovalSpec) error {
	a, _, err := tx.DB.Approvals.Get(w.Tenant, w.RunID, w.ID)
	if err != nil {
		return err
	}
	hash, err := spec.ActionHash()
	if err == nil && hash != a.ActionHash {
		err = perdure.Errorf(perdure.CodeNondeterminism, "wait %q was opened for the approval of another action", w.ID)
	}
	return err
}

// endApproval closes an open approval together with its wait, and gives its new version. Waits of
// other types have none.
func endApproval(tx *kernel.Tx, w *perdure.Wait) (a perdure.Approval, err error) {
	if w.Type != perdure.WaitApproval {
		return a, nil
	}
	a, ok, err := tx.DB.Approvals.Get(w.Tenant, w.RunID, w.ID)
	if err != nil || !ok || a.State != perdure.ApprovalOpen {
		return a, err
	}
	a.State = perdure.ApprovalClosed
	if w.State == perdure.WaitTimedOut {
		a.State = perdure.ApprovalTimedOut
	}
	tx.DB.Approvals.Put(a)
	return a, nil
}

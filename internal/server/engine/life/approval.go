package life

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// Decide approves or rejects an action that a run asks about. Repeating the same decision is no
// error and counts once. Another decision is refused, and so is one that comes after the wait has
// ended.
type Decide struct {
	Tenant   perdure.TenantID
	ID       perdure.ApprovalID
	Decision perdure.Decision
	By       perdure.Key

	// Refused is set if the wait's timeout had passed unnoticed. The refusal is the answer, and the
	// wait ends in this operation, so it is not an error of Do.
	Refused *perdure.Error
}

func (op *Decide) Needs() []store.Ref { return nil }

// Do records the decision.
func (op *Decide) Do(tx *kernel.Tx) error {
	op.Refused = nil
	if err := op.By.MayDecide(); err != nil {
		return err
	}
	if err := op.Decision.Validate(); err != nil {
		return err
	}
	run, wait, ok, err := tx.DB.Approvals.Find(op.Tenant, op.ID)
	if err != nil {
		return err
	}
	if !ok {
		return kernel.NotFound("approval")
	}
	r, err := tx.Run(op.Tenant, run)
	if err != nil {
		return err
	}
	op.Refused, err = decideApproval(tx, &r, wait, &op.Decision, &op.By)
	return err
}

// decideApproval records a decision about the approval of a run's wait. late is a refusal that is
// stored together with the timeout of the wait.
func decideApproval(
	tx *kernel.Tx, r *perdure.Run, wait string, d *perdure.Decision, by *perdure.Key,
) (late *perdure.Error, err error) {
	a, ok, err := tx.DB.Approvals.Get(r.Tenant, r.ID, wait)
	if err != nil {
		return nil, err
	}
	w, found, err := tx.DB.Waits.Get(r.Tenant, r.ID, wait)
	if err != nil {
		return nil, err
	}
	if !ok || !found {
		return nil, kernel.NotFound("approval")
	}
	if err := a.MayDecide(by); err != nil {
		return nil, err
	}
	decision := *d
	if a.DecidedBy != nil {
		// Another comment does not make it another decision.
		decision.Comment = a.Comment
	}
	digest, err := decision.Digest()
	if err != nil {
		return nil, err
	}
	switch {
	case d.ActionHash != "" && d.ActionHash != a.ActionHash:
		return nil, &perdure.Error{Code: perdure.CodeActionChanged, Field: "action_hash",
			Message: "the approval is about the action " + a.ActionHash}
	case a.DecidedBy != nil && a.Digest == digest:
		return nil, nil
	case a.DecidedBy != nil:
		return nil, perdure.Errorf(perdure.CodeAlreadyDecided, "the approval is %s", a.State)
	case w.State != perdure.WaitOpen:
		return nil, perdure.Errorf(perdure.CodeWaitClosed, "the approval is %s", a.State)
	case w.TimeoutAt != 0 && w.TimeoutAt <= tx.Now:
		return perdure.Errorf(perdure.CodeWaitClosed, "the approval is %s", perdure.ApprovalTimedOut),
			TimeOutWaits(tx, r)
	}
	if d.Decision == perdure.Approve {
		if err := perdure.CheckAnswer(a.Form, d.Answer); err != nil {
			return nil, err
		}
	}
	a.State = perdure.ApprovalApproved
	if d.Decision == perdure.Reject {
		a.State = perdure.ApprovalRejected
	}
	a.DecidedAt, a.DecidedBy, a.Digest = tx.Now, &perdure.Decider{KeyID: by.ID, Name: by.Name}, digest
	a.Comment, a.Answer = d.Comment, tx.DB.Values.Intern(r.Tenant, string(r.ID), d.Answer)
	tx.DB.Approvals.Put(a)
	err = tx.Audit(r.Tenant, perdure.AuditApprovalDecide, string(a.ID),
		"decision", d.Decision, "run_id", string(r.ID), "action_hash", a.ActionHash)
	if err != nil {
		return nil, err
	}
	data := perdure.Object("approval_id", string(a.ID), "decision", d.Decision, "comment", d.Comment,
		"answer", perdure.Value(d.Answer), "by", a.DecidedBy, "at", a.DecidedAt,
		"action_hash", a.ActionHash)
	item, err := putItem(tx, r, perdure.Item{Type: perdure.ItemApproval, Name: a.Name,
		Outcome: perdure.WaitSatisfied, Data: tx.DB.Values.Intern(r.Tenant, string(r.ID), []byte(data))})
	if err != nil {
		return nil, err
	}
	return nil, EndWait(tx, r, w, perdure.WaitSatisfied, &item)
}

// approvalPrefix begins the names of signals that are decisions. Such a signal is not kept for a
// later wait: an approval is for the action that was shown, not for the next one.
const approvalPrefix = "approve_"

package life

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/engine/kernel"
	"github.com/perdure/perdure/internal/redact"
	"github.com/perdure/perdure/internal/store"
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

// approvalPrefix begins the names of signals that are decisions. Such a signal is not kept for a
// later wait: an approval is for the action that was shown, not for the next one.
const approvalPrefix = "approve_"

// decideIfApproval handles a signal that is a decision. It decides an open approval of that name,
// or refuses the signal if there is none. For any other signal it does nothing.
func (op *Signal) decideIfApproval(tx *kernel.Tx, r *perdure.Run, open []perdure.Wait) (decided bool, err error) {
	plain := false
	var asks []string
	for i := range open {
		switch w := &open[i]; {
		case w.Name != op.Name:
		case w.Type == perdure.WaitSignal:
			plain = true
		case w.Type == perdure.WaitApproval:
			asks = append(asks, w.ID)
		}
	}
	if len(asks) > 0 {
		return true, op.decide(tx, r, asks)
	}
	isOne := op.Decision != nil || strings.HasPrefix(op.Name, approvalPrefix) && !plain
	if !isOne && !plain && hasDecision(op.Data) {
		// The approval of that name may have been decided before, or have ended.
		if isOne, err = tx.DB.Approvals.Had(r.Tenant, r.ID, op.Name, ""); err != nil {
			return false, err
		}
	}
	if isOne {
		return false, perdure.Errorf(perdure.CodeNoOpenApproval,
			"the run asks for no approval %q now; a decision is not kept for later", op.Name)
	}
	return false, nil
}

// decide applies the decision to one of the waits that ask under the signal's name: the one with
// the decision's action hash, or the first.
func (op *Signal) decide(tx *kernel.Tx, r *perdure.Run, asks []string) error {
	if err := op.By.MayDecide(); err != nil {
		return err
	}
	d := op.Decision
	if d == nil {
		d = new(perdure.Decision)
		if !hasDecision(op.Data) || json.Unmarshal(op.Data, d) != nil {
			return perdure.Invalid("data",
				`the run waits for an approval of this name: send {"decision": "approve"} or "reject"`)
		}
	}
	if err := d.Validate(); err != nil {
		return err
	}
	wait, err := op.findWait(tx, r, asks, d)
	if err != nil {
		return err
	}
	op.Approval = perdure.IDOfApproval(r.Tenant, r.ID, wait)
	op.Refused, err = decideApproval(tx, r, wait, d, &op.By)
	return err
}

// findWait finds the wait that a decision is about. A name alone suffices only if the run asked
// once under it. Otherwise a late approval of one action would approve the next.
func (op *Signal) findWait(tx *kernel.Tx, r *perdure.Run, asks []string, d *perdure.Decision) (wait string, err error) {
	if d.ActionHash == "" {
		others, err := tx.DB.Approvals.Had(r.Tenant, r.ID, op.Name, asks[0])
		if err == nil && others {
			err = &perdure.Error{Code: perdure.CodeActionChanged, Field: "action_hash",
				Message: "the run has asked for more than one approval of this name: " +
					"give the action_hash of the action that you mean, or decide by the approval's id"}
		}
		return asks[0], err
	}
	for _, id := range asks {
		if a, _, err := tx.DB.Approvals.Get(r.Tenant, r.ID, id); err != nil || a.ActionHash == d.ActionHash {
			return id, err
		}
	}
	return asks[0], nil
}

// hasDecision tells whether a signal's data is an object with a decision.
func hasDecision(data json.RawMessage) bool {
	var in struct {
		Decision *json.RawMessage `json:"decision"`
	}
	return len(data) > 0 && json.Unmarshal(data, &in) == nil && in.Decision != nil
}

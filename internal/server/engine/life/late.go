package life

import (
	"encoding/json"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// keepLateResult keeps a result that came too late, beside its run: once per commit, and at most
// MaxLate per run.
func keepLateResult(
	tx *kernel.Tx, r *perdure.Run, l perdure.LateResult, result json.RawMessage,
) (kept bool, err error) {
	have, err := tx.DB.LateResults.List(r.Tenant, r.ID)
	if err != nil || len(have) >= perdure.MaxLate {
		return false, err
	}
	for _, before := range have {
		if before.CommitID == l.CommitID {
			return false, nil
		}
	}
	l.Tenant, l.RunID, l.N, l.State, l.At = r.Tenant, r.ID, r.Late+1, perdure.LateKept, tx.Now
	l.Result = tx.DB.Values.Intern(r.Tenant, string(r.ID), result)
	if l.FromRun == "" {
		if l.Attempt, err = tx.DB.Events.AttemptOf(r, l.Epoch); err != nil {
			return false, err
		}
	}
	tx.DB.LateResults.Put(l)
	return true, tx.Apply(r, perdure.LateResultKept{Late: l})
}

// keepResultForOriginal keeps the result of a retry as a late result of the original run.
func keepResultForOriginal(tx *kernel.Tx, r *perdure.Run) error {
	if r.RetryOf == "" || r.State != perdure.Completed {
		return nil
	}
	orig, ok, err := tx.DB.Runs.Get(r.Tenant, r.RetryOf)
	if err != nil || !ok {
		return err
	}
	result, err := tx.DB.Values.Resolve(r.Tenant, r.Result)
	if err != nil {
		return err
	}
	_, err = keepLateResult(tx, &orig, perdure.LateResult{CommitID: "retry:" + string(r.ID), Attempt: r.Attempt,
		Worker: r.Worker, FromRun: r.ID, Summary: r.Summary},
		json.RawMessage(result))
	return err
}

// Adopt accepts a late result. It completes a live run, and becomes the deliverable of an ended
// one.
type Adopt struct {
	Tenant perdure.TenantID
	RunID  perdure.RunID
	N      int
	// Discard discards the late result instead.
	Discard bool

	Run perdure.Run
}

func (op *Adopt) Needs() []store.Ref { return kernel.Refs(op.Tenant, op.RunID) }

// Do adopts or discards the late result. Repeating it is no error.
func (op *Adopt) Do(tx *kernel.Tx) error {
	r, err := tx.Run(op.Tenant, op.RunID)
	if err != nil {
		return err
	}
	op.Run = r
	have, err := tx.DB.LateResults.List(op.Tenant, op.RunID)
	if err != nil {
		return err
	}
	var late *perdure.LateResult
	for i := range have {
		if have[i].N == op.N {
			late = &have[i]
		}
	}
	if late == nil {
		return kernel.NotFound("late result")
	}
	want := perdure.LateAdopted
	if op.Discard {
		want = perdure.LateDiscarded
	}
	if late.State == want {
		return nil
	}
	if late.State != perdure.LateKept {
		return perdure.Errorf(perdure.CodeWrongState, "the late result is %s", late.State)
	}
	late.State = want
	tx.DB.LateResults.Put(*late)
	action := perdure.AuditLateAdopt
	if op.Discard {
		action = perdure.AuditLateDiscard
	}
	if err := tx.Audit(op.Tenant, action, string(op.RunID), "n", late.N); err != nil {
		return err
	}
	if op.Discard {
		// Writing the run's row makes this conflict with an adoption of the same result.
		err = tx.Apply(&r, perdure.LateResultDiscarded{N: late.N})
	} else {
		err = adoptResult(tx, &r, late)
	}
	op.Run = r
	return err
}

// adoptResult applies the late result to the run, and adds it to the thread and to a live parent's
// inbox.
func adoptResult(tx *kernel.Tx, r *perdure.Run, late *perdure.LateResult) error {
	text, err := tx.DB.Values.Resolve(r.Tenant, late.Result)
	if err != nil {
		return err
	}
	lines, err := addMessagesOf(tx, r, []perdure.Message{{Role: perdure.RoleAssistant, Content: json.RawMessage(text),
		Metadata: json.RawMessage(perdure.Object("run_id", string(r.ID), "late_result", late.N))}})
	if err != nil {
		return err
	}
	if r.State.Live() {
		if err := tx.Apply(r, perdure.MessagesAppended{Lines: lines}); err != nil {
			return err
		}
		return Finish(tx, r, perdure.Adopted{N: late.N, Result: late.Result,
			Shown: tx.DB.Values.InternShown(r.Tenant, string(r.ID), []byte(text)), Summary: late.Summary})
	}
	adopted := perdure.LateResultAdopted{N: late.N, Result: late.Result, Summary: late.Summary, Messages: lines}
	if err := tx.Apply(r, adopted); err != nil {
		return err
	}
	if r.ParentID == "" {
		return nil
	}
	parent, ok, err := tx.DB.Runs.Get(r.Tenant, r.ParentID)
	if err != nil || !ok || !parent.State.Live() {
		return err
	}
	_, err = putItem(tx, &parent, perdure.Item{Type: perdure.ItemLate, Name: r.JournalKey, From: r.ID,
		Outcome: string(perdure.Completed),
		Data:    tx.DB.Values.Share(r.Tenant, string(parent.ID), late.Result)})
	return err
}

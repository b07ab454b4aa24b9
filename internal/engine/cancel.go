package engine

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/store"
)

// Cancel asks a run to stop. The request is durable and leaves proof: requested, delivered, acknowledged,
// stopped. A run that never started ends at once; one that did is told, with the next grant or with the
// answers that its worker gets, and ends when the worker says so or the grace is over.
type Cancel struct {
	Tenant perdure.TenantID
	RunID  perdure.RunID
	Reason string

	Run perdure.Run
}

func (op *Cancel) Needs() []store.Ref { return refs(op.Tenant, op.RunID) }

// Do asks. Cancelling an ended run is no error: it drops the chord that the run left behind and stops the
// runs of it.
func (op *Cancel) Do(tx *Tx) error {
	if err := perdure.CheckText("reason", op.Reason); err != nil {
		return err
	}
	r, err := tx.run(op.Tenant, op.RunID)
	if err != nil {
		return err
	}
	if r.State.Terminal() {
		err = tx.dropChord(&r)
	} else {
		err = tx.askToStop(&r, op.Reason)
	}
	op.Run = r
	return err
}

// askToStop requests that a live run stops, and ends it if nothing has started.
func (tx *Tx) askToStop(r *perdure.Run, reason string) error {
	if r.State.Terminal() {
		return nil
	}
	if err := tx.Apply(r, perdure.CancelAsked{Reason: reason}); err != nil {
		return err
	}
	switch {
	case r.StartedAt == 0:
		return tx.Finish(r, perdure.CancelEnforced{})
	case r.State == perdure.Suspended:
		return tx.Apply(r, perdure.Woken{Reason: "cancel"})
	case r.State == perdure.Queued && !r.Ready && r.Turn <= perdure.TurnActive:
		return tx.Apply(r, perdure.Due{Now: true})
	}
	return nil
}

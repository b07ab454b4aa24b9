package life

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/doorbell"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// Cancel asks a run to stop. The request is durable and leaves proof in the log: requested,
// delivered, acknowledged, stopped.
//
// A run that never started ends at once. A run that did start is asked with its next grant, or with
// the next answer to its worker. It ends when the worker confirms, or when the grace period is
// over.
//
// With a Key the request counts once: a repeated request does not drop a chord that the run opened
// meanwhile.
type Cancel struct {
	Tenant perdure.TenantID
	RunID  perdure.RunID
	Reason string
	Key    string

	Run perdure.Run
}

func (op *Cancel) Needs() []store.Ref { return kernel.Refs(op.Tenant, op.RunID) }

// Do requests the cancellation. For an ended run it drops the chord that the run left, and stops
// the chord's members.
func (op *Cancel) Do(tx *kernel.Tx) error {
	if err := perdure.CheckText("reason", op.Reason); err != nil {
		return err
	}
	r, err := tx.Run(op.Tenant, op.RunID)
	if err != nil {
		return err
	}
	_, err = kernel.UnderKey(tx, op.Tenant, "cancel:"+string(r.ID), op.Key, op.Reason, func() (string, error) {
		return string(r.ID), cancelFor(tx, &r, op.Reason)
	}, func(string) error { return nil })
	op.Run = r
	return err
}

// cancelFor cancels a run on behalf of the operation's actor.
func cancelFor(tx *kernel.Tx, r *perdure.Run, reason string) error {
	if err := auditCancel(tx, r); err != nil {
		return err
	}
	if r.State.Terminal() {
		return dropChord(tx, r)
	}
	return RequestCancel(tx, r, reason)
}

// auditCancel writes an audit entry, unless the request changes nothing: the run was asked before,
// or has ended without a chord.
func auditCancel(tx *kernel.Tx, r *perdure.Run) error {
	if tx.Actor == nil || !r.State.Terminal() && r.Cancel.RequestedAt != 0 {
		return nil
	}
	if r.State.Terminal() {
		g, ok, err := tx.DB.Groups.Get(r.Tenant, perdure.GroupID(r.ID))
		if err != nil || !ok || g.State != perdure.GatheringOpen {
			return err
		}
	}
	return tx.Audit(r.Tenant, perdure.AuditRunCancel, string(r.ID))
}

// RequestCancel asks a live run to stop, and ends it if it has not started. It wakes a suspended
// run and makes a delayed one claimable, so that a worker can clean up.
func RequestCancel(tx *kernel.Tx, r *perdure.Run, reason string) error {
	if r.State.Terminal() {
		return nil
	}
	if err := tx.Apply(r, perdure.CancelAsked{Reason: reason}); err != nil {
		return err
	}
	// Ring the worker, so that it learns of the request before its next heartbeat.
	if r.State.Leased() {
		tx.Ring(doorbell.Worker(r.Tenant, r.Worker))
		tx.Ring(doorbell.Worker("", r.Worker))
	}
	switch {
	case r.StartedAt == 0:
		return Finish(tx, r, perdure.CancelEnforced{})
	case r.State == perdure.Suspended:
		if err := tx.Apply(r, perdure.Woken{Reason: "cancel"}); err != nil {
			return err
		}
	case r.State == perdure.Queued && !r.Ready && r.Turn <= perdure.TurnActive:
		if err := tx.Apply(r, perdure.Due{Now: true}); err != nil {
			return err
		}
	}
	noteCleanup(tx, r)
	return nil
}

// LoseCancelled takes a run from a holder that is lost, or that hands it back under its epoch, while the
// run is being cancelled. It ends, unless a saga has steps that are not undone: then it is granted again
// for that, until cleanup_grace is over.
func LoseCancelled(tx *kernel.Tx, r *perdure.Run, epoch int64, reason, why string) error {
	left, err := notCompensated(tx, r)
	if err != nil {
		return err
	}
	if len(left) == 0 {
		return Finish(tx, r, perdure.CancelEnforced{Why: why})
	}
	if err := Requeue(tx, r, perdure.CleanupAgain{Epoch: epoch, Reason: reason}); err != nil {
		return err
	}
	noteCleanup(tx, r)
	return nil
}

// noteCleanup remembers the place of a run that waits for its clean-up. Polls look there although the
// queue is paused.
func noteCleanup(tx *kernel.Tx, r *perdure.Run) {
	if !r.ForCleanup() {
		return
	}
	tellHeldBack(tx, r)
}

package engine

import (
	"context"
	"maps"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/doorbell"
	"github.com/perdure/perdure/internal/store"
)

// Cancel asks a run to stop. The request is durable and leaves proof: requested, delivered, acknowledged,
// stopped. A run that never started ends at once; one that did is told, with the next grant or with the
// answers that its worker gets, and ends when the worker says so or the grace is over. With a Key it counts once: a
// request that is sent again does not drop the chord that the run has left behind meanwhile.
type Cancel struct {
	Tenant perdure.TenantID
	RunID  perdure.RunID
	Reason string
	Key    string

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
	_, err = underKey(tx, op.Tenant, "cancel:"+string(r.ID), op.Key, op.Reason, func() (string, error) {
		return string(r.ID), cancelFor(tx, &r, op.Reason)
	}, func(string) error { return nil })
	op.Run = r
	return err
}

// cancelFor cancels a run for the actor of the operation.
func cancelFor(tx *Tx, r *perdure.Run, reason string) error {
	if err := auditCancel(tx, r); err != nil {
		return err
	}
	if r.State.Terminal() {
		return dropChord(tx, r)
	}
	return requestCancel(tx, r, reason)
}

// auditCancel tells of the request, unless it changes nothing: the run was asked before, or has ended and left no chord.
func auditCancel(tx *Tx, r *perdure.Run) error {
	if tx.actor == nil || !r.State.Terminal() && r.Cancel.RequestedAt != 0 {
		return nil
	}
	if r.State.Terminal() {
		if g, ok, err := tx.DB.Groups.Get(r.Tenant, perdure.GroupID(r.ID)); err != nil || !ok || g.State != perdure.GroupOpen {
			return err
		}
	}
	return tx.audit(r.Tenant, perdure.AuditRunCancel, string(r.ID))
}

// requestCancel requests that a live run stops, and ends it if nothing has started.
func requestCancel(tx *Tx, r *perdure.Run, reason string) error {
	if r.State.Terminal() {
		return nil
	}
	if err := tx.Apply(r, perdure.CancelAsked{Reason: reason}); err != nil {
		return err
	}
	if r.State.Leased() { // its worker need not wait for its next heartbeat to learn of it
		tx.ring(doorbell.Worker(r.Tenant, r.Worker))
		tx.ring(doorbell.Worker("", r.Worker))
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

// AnyToStop tells whether one of some leases stands, and its run was asked to stop and its worker
// has not said that it knows. The leases are epochs by run and tenant.
func (q Runs) AnyToStop(
	ctx context.Context, leases map[perdure.TenantID]map[perdure.RunID]int64,
) (found bool, err error) {
	err = q.e.store.View(ctx, func(v *store.View) error {
		for t, epochs := range leases {
			runs, err := v.Runs.ByID(t, slices.Sorted(maps.Keys(epochs)))
			if err != nil {
				return err
			}
			for i := range runs {
				r := &runs[i]
				found = found || r.State.Live() && r.Epoch == epochs[r.ID] && r.Cancel.Pending()
			}
		}
		return nil
	})
	return found, err
}

package engine

import (
	"encoding/json"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/store"
)

// Attach notes that somebody on a node waits for runs, and renews that note. Re-attaching to a deferred
// run ends its deferral.
type Attach struct {
	Tenant perdure.TenantID
	Node   string
	RunIDs []perdure.RunID
}

func (op *Attach) Needs() []store.Ref { return refs(op.Tenant, op.RunIDs...) }

// Do attaches.
func (op *Attach) Do(tx *Tx) error {
	for _, id := range op.RunIDs {
		r, err := tx.run(op.Tenant, id)
		if err != nil {
			return err
		}
		if r.State.Terminal() {
			continue
		}
		waiters, err := tx.Waiters(op.Tenant, id)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(waiters, func(w store.WaiterRow) bool { return w.Node == op.Node && w.ExpiresAt > tx.Now }) {
			// A new waiter writes the run's row: whoever finds at this moment that nobody waits looks again.
			if err := tx.Apply(&r, perdure.Noted{}); err != nil {
				return err
			}
		}
		tx.PutWaiter(store.WaiterRow{Tenant: op.Tenant, RunID: id, Node: op.Node, ExpiresAt: tx.Now.Add(tx.e.policy.WaiterTTL)})
		if r.DeferredAt != 0 {
			if err := tx.Apply(&r, perdure.Reattached{}); err != nil {
				return err
			}
		}
	}
	return nil
}

// Defer says that a waiter on a node has stopped waiting. When nobody else waits, the run is deferred: at
// once when the wait's own time was up or the caller said so, after DetachGrace when the connection was
// dropped. The work goes on in any case.
type Defer struct {
	Tenant perdure.TenantID
	RunID  perdure.RunID
	Node   string // empty: whoever waits, the caller wants it deferred
	Reason string // timeout, disconnect, detached

	Run perdure.Run
}

func (op *Defer) Needs() []store.Ref { return refs(op.Tenant, op.RunID) }

// Do defers. Deferring an ended run does nothing.
func (op *Defer) Do(tx *Tx) error {
	r, err := tx.run(op.Tenant, op.RunID)
	if err != nil {
		return err
	}
	op.Run = r
	if r.State.Terminal() {
		return nil
	}
	waiters, err := tx.Waiters(op.Tenant, op.RunID)
	if err != nil {
		return err
	}
	others := false
	for _, w := range waiters {
		switch {
		case op.Node == "": // one who was cut off, and might come back, does not keep others from saying so
			others = others || w.ExpiresAt > tx.Now.Add(tx.e.policy.DetachGrace)
		case w.Node != op.Node:
			others = others || w.ExpiresAt > tx.Now
		case op.Reason == "disconnect":
			w.ExpiresAt = min(w.ExpiresAt, tx.Now.Add(tx.e.policy.DetachGrace))
			tx.PutWaiter(w)
			others = true
		default:
			tx.DropWaiter(w)
		}
	}
	if !others {
		err = tx.deferRun(&r, op.Reason)
	}
	op.Run = r
	return err
}

// deferRun marks a run as deferred; the first time, its thread is told.
func (tx *Tx) deferRun(r *perdure.Run, reason string) error {
	if r.State.Terminal() || r.DeferredAt != 0 {
		return nil
	}
	attach := perdure.AttachURL(r.ID)
	first := !r.WasDefer
	if err := tx.Apply(r, perdure.WentDeferred{Reason: reason, Attach: attach}); err != nil || !first {
		return err
	}
	lines, err := tx.sayFor(r, []perdure.Message{{Role: "assistant",
		Content:  json.RawMessage(`"Still working on this in the background. You will be told when it is done."`),
		Metadata: json.RawMessage(perdure.Object("status", perdure.StatusDeferred, "run_id", string(r.ID), "attach_url", attach))}})
	if err != nil || len(lines) == 0 {
		return err
	}
	return tx.Apply(r, perdure.Noted{Lines: lines})
}

// ExpireWaiter drops a waiter that its node no longer vouches for, and defers the run if it was the last.
func (tx *Tx) ExpireWaiter(w store.WaiterRow) (deferred bool, err error) {
	tx.DropWaiter(w)
	r, ok, err := tx.Run(w.Tenant, w.RunID)
	if err != nil || !ok || r.State.Terminal() || r.DeferredAt != 0 {
		return false, err
	}
	left, err := tx.Waiters(w.Tenant, w.RunID)
	if err != nil {
		return false, err
	}
	for _, o := range left {
		if o.ExpiresAt > tx.Now {
			return false, nil
		}
	}
	return true, tx.deferRun(&r, "disconnect")
}

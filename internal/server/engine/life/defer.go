package life

import (
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// expected takes the place of the node of a follower that a foreground start announces and that has
// not attached yet. The row expires after DetachGrace. The first waiter that attaches, on any node,
// replaces it.
const expected = ""

// Attach records that a caller on a node waits for runs, or extends that record. Attaching to a
// deferred run ends its deferral.
type Attach struct {
	Tenant perdure.TenantID
	Node   string
	RunIDs []perdure.RunID
}

func (op *Attach) Needs() []store.Ref { return kernel.Refs(op.Tenant, op.RunIDs...) }

// Do records the waiters.
func (op *Attach) Do(tx *kernel.Tx) error {
	for _, id := range op.RunIDs {
		r, err := tx.Run(op.Tenant, id)
		if err != nil {
			return err
		}
		if r.State.Terminal() {
			continue
		}
		waiters, err := tx.DB.Waiters.Of(op.Tenant, id)
		if err != nil {
			return err
		}
		attached := slices.ContainsFunc(waiters, func(w store.WaiterRow) bool {
			return w.Node == op.Node && w.ExpiresAt > tx.Now
		})
		if !attached {
			// Writing the run's row makes this conflict with an operation that finds no waiter and
			// defers the run.
			if err := tx.Apply(&r, perdure.WaiterAttached{}); err != nil {
				return err
			}
		}
		for _, w := range waiters {
			if w.Node == expected {
				// The announced follower has attached.
				tx.DB.Waiters.Drop(w)
			}
		}
		tx.DB.Waiters.Put(store.WaiterRow{Tenant: op.Tenant, RunID: id, Node: op.Node,
			ExpiresAt: tx.Now.Add(tx.Engine.Policy().WaiterTTL)})
		if r.DeferredAt != 0 {
			if err := tx.Apply(&r, perdure.Reattached{}); err != nil {
				return err
			}
		}
	}
	return nil
}

// Defer records that a waiter on a node has stopped waiting. If no other waits, the run is
// deferred. That happens at once if the wait timed out or the caller detached, and after
// DetachGrace if the connection was dropped.
//
// A deferred run goes on. But a run with on_disconnect=cancel is asked to stop when its last waiter
// closes the connection.
type Defer struct {
	Tenant perdure.TenantID
	RunID  perdure.RunID
	// Node is the waiter's node. Empty: the caller detaches, and no waiter is dropped.
	Node string
	// Reason is timeout, disconnect or detached.
	Reason string
	// Closed says of a disconnect that the waiter closed the connection, as seen by this node. It
	// is not set for a connection that the server ended (a shutdown, a revoked key, a slow reader).
	Closed bool

	Run perdure.Run
}

func (op *Defer) Needs() []store.Ref { return kernel.Refs(op.Tenant, op.RunID) }

// Do removes the waiter, and defers or cancels the run. It does nothing for an ended run.
func (op *Defer) Do(tx *kernel.Tx) error {
	r, err := tx.Run(op.Tenant, op.RunID)
	if err != nil {
		return err
	}
	op.Run = r
	if r.State.Terminal() {
		return nil
	}
	waiters, err := tx.DB.Waiters.Of(op.Tenant, op.RunID)
	if err != nil {
		return err
	}
	var own *store.WaiterRow
	others := false
	for i := range waiters {
		switch w := &waiters[i]; {
		// A waiter within its grace period was cut off, and does not prevent the deferral.
		case op.Node == "":
			others = others || w.ExpiresAt > tx.Now.Add(tx.Engine.Policy().DetachGrace)
		case w.Node == op.Node:
			own = w
		default:
			others = others || w.ExpiresAt > tx.Now
		}
	}
	cancels := op.Closed && r.Options.OnDisconnect == perdure.DispositionCancel
	if own != nil && op.Reason == "disconnect" && (!cancels || !others) {
		own.ExpiresAt = min(own.ExpiresAt, tx.Now.Add(tx.Engine.Policy().DetachGrace))
		tx.DB.Waiters.Put(*own)
	} else {
		err = op.leave(tx, &r, own, others)
	}
	if err == nil && cancels && !others {
		err = cancelFor(tx, &r, "its caller disconnected")
	}
	op.Run = r
	return err
}

// leave drops the node's waiter, and defers the run if it was the last. If others wait, the run's
// row is written all the same. Of two nodes that leave at once, one conflicts, is decided again and
// finds that it is the last.
func (op *Defer) leave(tx *kernel.Tx, r *perdure.Run, own *store.WaiterRow, others bool) error {
	if own != nil {
		tx.DB.Waiters.Drop(*own)
	}
	switch {
	case !others:
		return deferRun(tx, r, op.Reason)
	case own != nil:
		return tx.Apply(r, perdure.WaiterLeft{})
	}
	return nil
}

// deferRun marks a run as deferred. The first time, it adds a notice to the thread.
func deferRun(tx *kernel.Tx, r *perdure.Run, reason string) error {
	if r.State.Terminal() || r.DeferredAt != 0 {
		return nil
	}
	attach := perdure.AttachURL(r.ID)
	first := !r.WasDefer
	if err := tx.Apply(r, perdure.WentDeferred{Reason: reason, Attach: attach}); err != nil || !first {
		return err
	}
	return addNotice(tx, r, "Still working on this in the background. You will be told when it is done.",
		"status", perdure.StatusDeferred, "attach_url", attach)
}

// ExpireWaiter drops a waiter that its node has not renewed, and defers the run if it was the last.
func ExpireWaiter(tx *kernel.Tx, w store.WaiterRow) (deferred bool, err error) {
	tx.DB.Waiters.Drop(w)
	r, ok, err := tx.DB.Runs.Get(w.Tenant, w.RunID)
	if err != nil || !ok || r.State.Terminal() || r.DeferredAt != 0 {
		return false, err
	}
	left, err := tx.DB.Waiters.Of(w.Tenant, w.RunID)
	if err != nil {
		return false, err
	}
	for _, o := range left {
		if o.ExpiresAt > tx.Now {
			return false, nil
		}
	}
	return true, deferRun(tx, &r, "disconnect")
}

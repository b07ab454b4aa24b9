package engine

import (
	"encoding/json"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/store"
)

// expected stands for the node of a follower that a start in the foreground announces and that is not attached yet.
// Its row expires after DetachGrace. The first waiter that attaches, on any node, takes its place.
const expected = ""

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
		waiters, err := tx.DB.Waiters.Of(op.Tenant, id)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(waiters, func(w store.WaiterRow) bool { return w.Node == op.Node && w.ExpiresAt > tx.Now }) {
			// A new waiter writes the run's row: whoever finds at this moment that nobody waits looks again.
			if err := tx.Apply(&r, perdure.WaiterAttached{}); err != nil {
				return err
			}
		}
		for _, w := range waiters {
			if w.Node == expected {
				tx.DB.Waiters.Drop(w) // the follower that the start expected is here
			}
		}
		tx.DB.Waiters.Put(store.WaiterRow{Tenant: op.Tenant, RunID: id, Node: op.Node, ExpiresAt: tx.Now.Add(tx.e.policy.WaiterTTL)})
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
// dropped. The work goes on, unless the run was started with on_disconnect=cancel and its last waiter has closed the
// connection: then the run is asked to stop.
type Defer struct {
	Tenant perdure.TenantID
	RunID  perdure.RunID
	Node   string // empty: whoever waits, the caller wants it deferred
	Reason string // timeout, disconnect, detached
	// Closed says of a disconnect that the waiter closed the connection, and that this node saw it. A connection that
	// the server ended (a shutdown, a revoked key, a slow reader) was not closed in this sense.
	Closed bool

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
	waiters, err := tx.DB.Waiters.Of(op.Tenant, op.RunID)
	if err != nil {
		return err
	}
	var own *store.WaiterRow
	others := false
	for i := range waiters {
		switch w := &waiters[i]; {
		case op.Node == "": // a waiter that was cut off, and may come back, does not keep others from deferring
			others = others || w.ExpiresAt > tx.Now.Add(tx.e.policy.DetachGrace)
		case w.Node == op.Node:
			own = w
		default:
			others = others || w.ExpiresAt > tx.Now
		}
	}
	cancels := op.Closed && r.Options.OnDisconnect == perdure.OnDisconnectCancel
	if own != nil && op.Reason == "disconnect" && (!cancels || !others) {
		own.ExpiresAt = min(own.ExpiresAt, tx.Now.Add(tx.e.policy.DetachGrace))
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

// leave drops the node's waiter at once and defers the run if it was the last. If others wait, the run's row is written
// all the same: of two nodes that leave at once, the second looks again and finds that it is the last.
func (op *Defer) leave(tx *Tx, r *perdure.Run, own *store.WaiterRow, others bool) error {
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

// deferRun marks a run as deferred; the first time, its thread is told.
func deferRun(tx *Tx, r *perdure.Run, reason string) error {
	if r.State.Terminal() || r.DeferredAt != 0 {
		return nil
	}
	attach := perdure.AttachURL(r.ID)
	first := !r.WasDefer
	if err := tx.Apply(r, perdure.WentDeferred{Reason: reason, Attach: attach}); err != nil || !first {
		return err
	}
	lines, err := addMessagesOf(tx, r, []perdure.Message{{Role: "assistant",
		Content:  json.RawMessage(`"Still working on this in the background. You will be told when it is done."`),
		Metadata: json.RawMessage(perdure.Object("status", perdure.StatusDeferred, "run_id", string(r.ID), "attach_url", attach))}})
	if err != nil || len(lines) == 0 {
		return err
	}
	return tx.Apply(r, perdure.MessagesAppended{Lines: lines})
}

// ExpireWaiter drops a waiter that its node no longer vouches for, and defers the run if it was the last.
func (tx *Tx) ExpireWaiter(w store.WaiterRow) (deferred bool, err error) {
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

package outbox

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// FanOut creates the notifications of events that were stored for it. One step creates a bounded
// number, for several tenants in turn, so that a tenant with a million events delays no other. An
// event's row is changed or removed in the same write, which prevents creating a notification
// twice.
type FanOut struct {
	// After is the last tenant of the previous step.
	After perdure.TenantID

	// Last is the last tenant of this step.
	Last perdure.TenantID
	// Made counts the notifications.
	Made int
	// More is set if there may be events left.
	More bool
}

func (*FanOut) Needs() []store.Ref { return nil }

// Lane is that of deliveries, so that no work on runs waits for it.
func (*FanOut) Lane() store.Lane { return store.LaneNotify }

// fanOutRows bounds the notifications and events of one step, which its tenants share.
// fanOutTenants bounds the tenants.
const (
	fanOutRows    = 200
	fanOutTenants = 8
)

// Do creates the notifications of one step.
func (op *FanOut) Do(tx *kernel.Tx) error {
	op.Last, op.Made, op.More = op.After, 0, false
	list, err := tx.DB.FanOuts.Tenants(op.After, fanOutTenants)
	if err != nil {
		return err
	}
	// Continue with the first tenants.
	if len(list) < fanOutTenants && op.After != "" {
		first, err := tx.DB.FanOuts.Tenants("", fanOutTenants-len(list))
		if err != nil {
			return err
		}
		for _, t := range first {
			if t <= op.After {
				list = append(list, t)
			}
		}
	}
	op.More = len(list) == fanOutTenants
	for _, t := range list {
		made, more, err := fanOutEvents(tx, t, fanOutRows/len(list))
		if err != nil {
			return err
		}
		op.Last, op.Made, op.More = t, op.Made+made, op.More || more
	}
	return nil
}

// fanOutEvents creates at most so many notifications of a tenant's oldest events, and tells whether
// there may be more.
func fanOutEvents(tx *kernel.Tx, t perdure.TenantID, limit int) (made int, more bool, err error) {
	events, more, err := tx.DB.FanOuts.List(t, limit)
	if err != nil || len(events) == 0 {
		return 0, false, err
	}
	list, err := tx.DB.Webhooks.List(t)
	if err != nil {
		return 0, false, err
	}
	hooks := newRoutes(list)
	for i := range events {
		if made == limit {
			return made, true, nil
		}
		f := &events[i]
		n, done, err := fanOutEvent(tx, f, hooks, limit-made)
		if err != nil {
			return made, more, err
		}
		if made += n; !done {
			tx.DB.FanOuts.Put(*f)
			return made, true, nil
		}
		tx.DB.FanOuts.Drop(f)
	}
	return made, more, nil
}

// fanOutEvent creates at most so many notifications of an event, records its progress in the
// event's row, and tells whether the event is done.
func fanOutEvent(tx *kernel.Tx, f *store.FanOut, hooks *routes, limit int) (made int, done bool, err error) {
	var have map[perdure.WebhookID]bool
	// An earlier try may have failed because a notification exists already.
	if tx.DB.Again {
		if have, err = tx.DB.FanOuts.Notified(f); err != nil {
			return 0, false, err
		}
	}
	add := func(w perdure.WebhookID) bool {
		if have[w] {
			return true
		}
		if made == limit {
			return false
		}
		made++
		tx.DB.Outbox.Put(perdure.Notification{Tenant: f.Tenant, RunID: f.RunID, Seq: f.Seq, Webhook: w,
			Type: f.Type, State: perdure.NotePending,
			CreatedAt: f.At, AlarmAt: tx.Now})
		postTo(tx, f.Tenant, w, false)
		return true
	}
	if f.Own != "" {
		if !add(f.Own) {
			return made, false, nil
		}
		f.Own = ""
	}
	// The endpoints come in the order of their ids.
	for _, k := range hooks.match(f.ThreadID, f.Type) {
		w := &hooks.list[k]
		if w.ID <= f.After || w.CreatedAt > f.At || (w.DisabledAt != 0 && w.DisabledAt < f.At) {
			continue
		}
		if !add(w.ID) {
			return made, false, nil
		}
		f.After = w.ID
	}
	return made, true, nil
}

package engine

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/store"
)

// FanOut makes notifications of events that wait for it: a bounded number, of several tenants in turn, so that one with a million
// events delays nobody else's. An event's row is changed or removed in the write that makes its notifications, which guards against
// making them twice.
type FanOut struct {
	After perdure.TenantID // the last tenant whose turn it was

	Last perdure.TenantID // the last one now
	Made int              // notifications
	More bool             // there may be events left
}

func (*FanOut) Needs() []store.Ref { return nil }

// Lane is that of deliveries, so that no work of runs waits for it.
func (*FanOut) Lane() store.Lane { return store.LaneNotify }

// How much one step does at most: notifications and events, which its tenants share, and tenants.
const (
	fanOutRows    = 200
	fanOutTenants = 8
)

// Do makes them.
func (op *FanOut) Do(tx *Tx) error {
	op.Last, op.Made, op.More = op.After, 0, false
	list, err := tx.DB.FanOuts.Tenants(op.After, fanOutTenants)
	if err != nil {
		return err
	}
	if len(list) < fanOutTenants && op.After != "" { // round to the first ones
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

// fanOutEvents makes at most so many notifications of a tenant's oldest events, and tells whether there may be more.
func fanOutEvents(tx *Tx, t perdure.TenantID, most int) (made int, more bool, err error) {
	events, more, err := tx.DB.FanOuts.List(t, most)
	if err != nil || len(events) == 0 {
		return 0, false, err
	}
	list, err := tx.DB.Webhooks.List(t)
	if err != nil {
		return 0, false, err
	}
	hooks := newRoutes(list)
	for i := range events {
		if made == most {
			return made, true, nil
		}
		f := &events[i]
		n, done, err := fanOutEvent(tx, f, hooks, most-made)
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

// fanOutEvent makes at most so many notifications of an event, notes in its row how far it came, and tells whether that was all.
func fanOutEvent(tx *Tx, f *store.FanOut, hooks *routes, most int) (made int, done bool, err error) {
	var have map[perdure.WebhookID]bool
	if tx.DB.Again { // it may have failed because of one that is there
		if have, err = tx.DB.FanOuts.Notified(f); err != nil {
			return 0, false, err
		}
	}
	add := func(w perdure.WebhookID) bool {
		if have[w] {
			return true
		}
		if made == most {
			return false
		}
		made++
		tx.DB.Outbox.Put(perdure.Notification{Tenant: f.Tenant, RunID: f.RunID, Seq: f.Seq, Webhook: w, Type: f.Type, State: perdure.NotePending,
			CreatedAt: f.At, AlarmAt: tx.Now})
		tx.post(f.Tenant, w, false)
		return true
	}
	if f.Own != "" {
		if !add(f.Own) {
			return made, false, nil
		}
		f.Own = ""
	}
	for _, k := range hooks.match(f.ThreadID, f.Type) { // in the order of their ids
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

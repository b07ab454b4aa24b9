package life

import (
	"cmp"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
)

// A run's inbox has the items that a worker gets with its next grant or answer: signals, results of
// children, messages, timers. A wait ends with an item: EndWait stages it and wakes the run.

// putItem adds an item to a live run's inbox.
func putItem(tx *kernel.Tx, r *perdure.Run, i perdure.Item) (perdure.Item, error) {
	i = putNextItem(tx, r, i)
	return i, tx.Apply(r, perdure.ItemArrived{})
}

// putNextItem stages an item as the next one of a run's inbox. The caller applies the event that
// counts it.
func putNextItem(tx *kernel.Tx, r *perdure.Run, i perdure.Item) perdure.Item {
	i.Tenant, i.RunID, i.Seq, i.Status = r.Tenant, r.ID, r.InboxSeq+1, perdure.ItemPending
	i.CreatedAt, i.AlarmAt = tx.Now, tx.Now.Add(tx.Engine.Policy().PendingWakeup)
	tx.DB.Inbox.Put(i)
	return i
}

// EndWait ends an open wait: satisfied, timed out, stalled or orphaned. Exactly one inbox item
// bears its wait_id: the item that satisfied it (by), or a new one that says how it ended. If the
// run is suspended on this wait, it is queued.
func EndWait(tx *kernel.Tx, r *perdure.Run, w perdure.Wait, state string, by *perdure.Item) error {
	wakes := w.Named && r.State == perdure.Suspended
	w.State, w.EndedAt, w.Named, w.Item = state, tx.Now, false, r.InboxSeq+1
	if by != nil {
		w.Item = by.Seq
	}
	tx.DB.Waits.Put(w)
	a, err := endApproval(tx, &w)
	if err != nil {
		return err
	}
	if err := tx.Apply(r, perdure.WaitEnded{Wait: w, Approval: a}); err != nil {
		return err
	}
	if err := noteQuestion(tx, r, &a); err != nil {
		return err
	}
	if by != nil {
		i := *by
		// The holder may have received this item before it had a wait_id. It is handed over again,
		// and may be acknowledged either time.
		i.WaitID, i.Status, i.AlarmAt = w.ID, perdure.ItemPending, tx.Now.Add(tx.Engine.Policy().PendingWakeup)
		tx.DB.Inbox.Put(i)
	} else {
		i := perdure.Item{Type: perdure.ItemWait, WaitID: w.ID, Name: w.Name, Outcome: state}
		switch {
		case w.Type == perdure.WaitLimit && state == perdure.WaitSatisfied:
			i.Type = perdure.ItemLimit
		case w.Type == perdure.WaitTimer && state == perdure.WaitSatisfied:
			i.Type = perdure.ItemTimer
		case state == perdure.WaitTimedOut:
			i.Type = perdure.ItemTimeout
			i.Data = perdure.Object("code", string(perdure.CodeToolTimeout),
				"message", "nothing came in time for wait "+w.ID,
				"approval_id", string(a.ID), "decision", a.Decision(), "action_hash", a.ActionHash)
		}
		if _, err := putItem(tx, r, i); err != nil {
			return err
		}
	}
	switch {
	case wakes:
		return tx.Apply(r, perdure.Woken{Reason: state, WaitID: w.ID})
	case r.State == perdure.Suspended:
		return ResetWaitClock(tx, r)
	}
	return nil
}

// returnItem gives back the signal or the message that satisfied a wait, unless the run has
// acknowledged it. The item may then satisfy another wait: one that is open, or else the next one.
// It keeps its number, and so its place before those that came later.
//
// Other ends of waits stay in the inbox as they are. A callback and a decision are answers to that
// one wait, and the end of a child has an item of its own.
func returnItem(tx *kernel.Tx, r *perdure.Run, w perdure.Wait) error {
	returns := w.Type == perdure.WaitSignal || w.Type == perdure.WaitMessage
	if !returns || w.State != perdure.WaitSatisfied || w.Item == 0 {
		return nil
	}
	items, err := tx.DB.Inbox.Get(r, []int64{w.Item})
	if err != nil {
		return err
	}
	i, ok := items[w.Item]
	unread := i.Status == perdure.ItemPending || i.Status == perdure.ItemProcessing
	if !ok || !unread || i.WaitID != w.ID {
		return nil
	}
	w.State, w.EndedAt, w.Item = perdure.WaitClosed, tx.Now, 0
	tx.DB.Waits.Put(w)
	i.WaitID, i.Status, i.AlarmAt = "", perdure.ItemPending, tx.Now.Add(tx.Engine.Policy().PendingWakeup)
	tx.DB.Inbox.Put(i)
	if err := tx.Apply(r, perdure.WaitWithdrawn{WaitID: w.ID, Returned: i.Seq}); err != nil {
		return err
	}
	open, err := tx.DB.Waits.Open(r.Tenant, r.ID)
	if err != nil {
		return err
	}
	if next, ok := oldestWait(open, w.Type, w.Name); ok {
		return EndWait(tx, r, next, perdure.WaitSatisfied, &i)
	}
	return nil
}

// closeWaits closes all open waits of a run that is ending.
func closeWaits(tx *kernel.Tx, r *perdure.Run) error {
	if r.WaitsOpen == 0 {
		return nil
	}
	open, err := tx.DB.Waits.Open(r.Tenant, r.ID)
	if err != nil {
		return err
	}
	return questionsTogether(tx, r, func() error {
		for _, w := range open {
			w.State, w.EndedAt = perdure.WaitClosed, tx.Now
			tx.DB.Waits.Put(w)
			a, err := endApproval(tx, &w)
			if err != nil {
				return err
			}
			if err := noteQuestion(tx, r, &a); err != nil {
				return err
			}
		}
		return tx.Apply(r, perdure.WaitsClosed{Count: len(open)})
	})
}

// firstTimeout gives the earliest timeout of some waits, or zero.
func firstTimeout(waits []perdure.Wait) (first perdure.Instant) {
	for _, w := range waits {
		if w.TimeoutAt != 0 && (first == 0 || w.TimeoutAt < first) {
			first = w.TimeoutAt
		}
	}
	return first
}

// oldestWait finds the wait of a type and name that was opened first.
func oldestWait(open []perdure.Wait, typ perdure.WaitType, name string) (w perdure.Wait, ok bool) {
	fits := slices.DeleteFunc(slices.Clone(open), func(w perdure.Wait) bool { return w.Type != typ || w.Name != name })
	if len(fits) == 0 {
		return w, false
	}
	return slices.MinFunc(fits, func(a, b perdure.Wait) int {
		return cmp.Or(cmp.Compare(a.OpenedAt, b.OpenedAt), cmp.Compare(a.ID, b.ID))
	}), true
}

// ResetWaitClock sets a suspended run's clock to the first timeout of its open waits.
func ResetWaitClock(tx *kernel.Tx, r *perdure.Run) error {
	open, err := tx.DB.Waits.Open(r.Tenant, r.ID)
	if err != nil {
		return err
	}
	at := nextLook(tx, open)
	if at == r.WaitAt {
		return nil
	}
	return tx.Apply(r, perdure.WaitClockReset{At: at})
}

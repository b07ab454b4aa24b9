package life

import (
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/engine/kernel"
	"github.com/perdure/perdure/internal/plant"
)

// openWait opens a wait and checks, in the same transaction, whether it is satisfied already. A
// wait that exists is left as it is, because a replay opens its waits again.
func openWait(tx *kernel.Tx, r *perdure.Run, spec *perdure.WaitSpec, ans *CommitAnswer) error {
	w := perdure.Wait{Tenant: r.Tenant, RunID: r.ID, ID: spec.ID, Type: spec.Type, Mode: spec.Mode,
		Name: spec.Name, OnStall: spec.OnStall,
		State: perdure.WaitOpen, OpenedAt: tx.Now}
	if spec.Type == perdure.WaitCallback {
		ans.Callbacks = append(ans.Callbacks, CallbackOf{spec.ID, makeToken(tx.Engine, r.Tenant, r.ID, spec.ID)})
	}
	if spec.Type == perdure.WaitMessage && r.ThreadID == "" {
		return perdure.Errorf(perdure.CodeNothingToWaitFor, "a run without a thread gets no messages")
	}
	children, err := childrenOf(tx, r, spec, &w)
	if err != nil {
		return err
	}
	before, ok, err := tx.DB.Waits.Get(r.Tenant, r.ID, spec.ID)
	if err != nil {
		return err
	}
	if ok {
		same := before.Type == w.Type && before.Mode == w.Mode && before.Name == w.Name
		if !same || !slices.Equal(before.Targets, w.Targets) {
			return perdure.Errorf(perdure.CodeNondeterminism, "wait %q was opened as something else", spec.ID)
		}
		if w.Type == perdure.WaitApproval {
			return checkSameAction(tx, &before, spec.Approval)
		}
		return nil
	}
	if err := mayOpenWait(tx, r, &w); err != nil {
		return err
	}
	switch {
	case spec.Timeout == perdure.Never:
	case spec.Timeout > 0:
		w.TimeoutAt = tx.Now.Add(time.Duration(spec.Timeout))
	default:
		w.TimeoutAt = tx.Now.Add(tx.Engine.Policy().WaitTimeout(spec))
	}
	for _, c := range children {
		if c.State.Terminal() && !plant.Is("wait-checked-outside") {
			w.Ended++
			if c.State == perdure.Completed {
				w.OK++
			}
		}
	}
	tx.DB.Waits.Put(w)
	var asked perdure.Approval
	if w.Type == perdure.WaitApproval {
		if asked, err = askForApproval(tx, r, &w, spec.Approval); err != nil {
			return err
		}
	}
	if err := tx.Apply(r, perdure.WaitOpened{Wait: w, Approval: asked}); err != nil {
		return err
	}
	switch {
	case w.Satisfied():
		return EndWait(tx, r, w, perdure.WaitSatisfied, nil)
	case w.Type == perdure.WaitSignal:
		return matchSignal(tx, r, w)
	case w.Type == perdure.WaitMessage:
		return matchMessage(tx, r, w)
	}
	return nil
}

// mayOpenWait limits the open waits of a run and the children that they name. A run's end closes
// all of its waits, and a child's end reads all that may name it.
func mayOpenWait(tx *kernel.Tx, r *perdure.Run, w *perdure.Wait) error {
	if r.WaitsOpen >= perdure.MaxOpenWaits {
		return perdure.OverBound("", "the run has %d open waits, and may have no more: close some", r.WaitsOpen)
	}
	if len(w.Targets) == 0 || r.WaitsOpen < perdure.MaxOpenTargets/perdure.MaxList {
		// This few waits can't name more than MaxOpenTargets.
		return nil
	}
	open, err := tx.DB.Waits.Open(r.Tenant, r.ID)
	if err != nil {
		return err
	}
	n := len(w.Targets)
	for i := range open {
		n += len(open[i].Targets)
	}
	if n > perdure.MaxOpenTargets {
		return perdure.OverBound("", "the open waits of the run would name %d children, and may name %d", n,
			perdure.MaxOpenTargets)
	}
	return nil
}

// childrenOf reads the children that a wait names, and sets the wait's targets.
func childrenOf(tx *kernel.Tx, r *perdure.Run, spec *perdure.WaitSpec, w *perdure.Wait) ([]perdure.Run, error) {
	if spec.Type != perdure.WaitChildren {
		return nil, nil
	}
	var out []perdure.Run
	added := make(map[perdure.RunID]bool, len(spec.Keys)+len(spec.RunIDs))
	add := func(c perdure.Run) {
		if !added[c.ID] {
			added[c.ID] = true
			w.Targets = append(w.Targets, c.ID)
			out = append(out, c)
		}
	}
	named, err := tx.DB.Runs.Children(r.Tenant, r.ID, spec.Keys)
	if err != nil {
		return nil, err
	}
	for _, key := range spec.Keys {
		c, ok := named[key]
		if !ok {
			return nil, perdure.Errorf(perdure.CodeInvalid, "the run has no child %q", key)
		}
		add(c)
	}
	if err := tx.DB.Runs.Load(r.Tenant, spec.RunIDs); err != nil {
		return nil, err
	}
	for _, id := range spec.RunIDs {
		c, ok, err := tx.DB.Runs.Get(r.Tenant, id)
		if err != nil {
			return nil, err
		}
		if !ok || c.ParentID != r.ID {
			return nil, perdure.Errorf(perdure.CodeInvalid, "%s is not a child of the run", id)
		}
		add(c)
	}
	return out, nil
}

// withdrawWaits closes waits that the run no longer needs. The open ones are closed first, so that none
// of them takes back what a satisfied one returns.
func withdrawWaits(tx *kernel.Tx, r *perdure.Run, ids []string) error {
	var ended []perdure.Wait
	for _, id := range ids {
		w, ok, err := tx.DB.Waits.Get(r.Tenant, r.ID, id)
		if err != nil {
			return err
		}
		if !ok {
			return perdure.Invalid("close", "the run has no wait %q", id)
		}
		if w.State != perdure.WaitOpen {
			ended = append(ended, w)
			continue
		}
		w.State, w.EndedAt = perdure.WaitClosed, tx.Now
		tx.DB.Waits.Put(w)
		if _, err := endApproval(tx, &w); err != nil {
			return err
		}
		if err := tx.Apply(r, perdure.WaitWithdrawn{WaitID: id}); err != nil {
			return err
		}
	}
	for _, w := range ended {
		if err := returnItem(tx, r, w); err != nil {
			return err
		}
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
	for _, w := range open {
		w.State, w.EndedAt = perdure.WaitClosed, tx.Now
		tx.DB.Waits.Put(w)
		if _, err := endApproval(tx, &w); err != nil {
			return err
		}
	}
	return tx.Apply(r, perdure.WaitsClosed{Count: len(open)})
}

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
	if by != nil {
		i := *by
		// The holder may have received this item before it had a wait_id. It is handed over again,
		// and may be acknowledged either time.
		i.WaitID, i.Status, i.AlarmAt = w.ID, perdure.ItemPending, tx.Now.Add(tx.Engine.Policy().PendingWakeup)
		tx.DB.Inbox.Put(i)
	} else {
		i := perdure.Item{Type: perdure.ItemWait, WaitID: w.ID, Name: w.Name, Outcome: state}
		switch {
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

// ResetWaitClock sets a suspended run's clock to the first timeout of its open waits.
func ResetWaitClock(tx *kernel.Tx, r *perdure.Run) error {
	open, err := tx.DB.Waits.Open(r.Tenant, r.ID)
	if err != nil {
		return err
	}
	at := firstTimeout(open)
	if at == r.WaitAt {
		return nil
	}
	return tx.Apply(r, perdure.WaitClockReset{At: at})
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

// TimeOutWaits ends the open waits of a run whose timeout has passed. A timer is satisfied by that.
// Children that a wait names go on, and items that arrive later stay in the inbox.
func TimeOutWaits(tx *kernel.Tx, r *perdure.Run) error {
	open, err := tx.DB.Waits.Open(r.Tenant, r.ID)
	if err != nil {
		return err
	}
	for _, w := range open {
		if w.TimeoutAt == 0 || w.TimeoutAt > tx.Now {
			continue
		}
		state := perdure.WaitTimedOut
		if w.Type == perdure.WaitTimer {
			state = perdure.WaitSatisfied
		}
		if err := EndWait(tx, r, w, state, nil); err != nil {
			return err
		}
	}
	if r.State == perdure.Suspended {
		return ResetWaitClock(tx, r)
	}
	return nil
}

// endChildWaits counts a child's end in the waits of its parent that name it, and ends those that
// are satisfied.
func endChildWaits(tx *kernel.Tx, parent, child *perdure.Run) error {
	if parent.WaitsOpen == 0 {
		return nil
	}
	open, err := tx.DB.Waits.Open(parent.Tenant, parent.ID)
	if err != nil {
		return err
	}
	for _, w := range open {
		if !w.Names(child.ID) {
			continue
		}
		w.Ended++
		if child.State == perdure.Completed {
			w.OK++
		}
		tx.DB.Waits.Put(w)
		if w.Satisfied() {
			if err := EndWait(tx, parent, w, perdure.WaitSatisfied, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// NotifyStall ends the waits of a parent that name a stalled child and were opened with on_stall.
func NotifyStall(tx *kernel.Tx, child *perdure.Run) error {
	if child.ParentID == "" {
		return nil
	}
	parent, ok, err := tx.DB.Runs.Get(child.Tenant, child.ParentID)
	if err != nil || !ok || !parent.State.Live() || parent.WaitsOpen == 0 {
		return err
	}
	open, err := tx.DB.Waits.Open(parent.Tenant, parent.ID)
	if err != nil {
		return err
	}
	for _, w := range open {
		if w.OnStall && w.Names(child.ID) {
			item, err := putItem(tx, &parent, perdure.Item{Type: perdure.ItemWait, Outcome: perdure.WaitStalled,
				Name: child.JournalKey, From: child.ID})
			if err != nil {
				return err
			}
			if err := EndWait(tx, &parent, w, perdure.WaitStalled, &item); err != nil {
				return err
			}
		}
	}
	return nil
}

// suspendRun suspends a run on its waits. It checks in the same transaction whether one of them has
// ended, so that no wake-up is lost.
func suspendRun(tx *kernel.Tx, r *perdure.Run, c *perdure.Commit) error {
	if r.Options.Process {
		return &perdure.Error{Code: perdure.CodeOutcome, Field: "outcome.type", Message: "a process can't suspend"}
	}
	if r.Cancel.RequestedAt != 0 {
		return perdure.Errorf(perdure.CodeCancelRequested, "the run is asked to stop: clean up and say cancelled")
	}
	// Some waits may have timed out while the run was running.
	if err := TimeOutWaits(tx, r); err != nil {
		return err
	}
	open, err := tx.DB.Waits.Open(r.Tenant, r.ID)
	if err != nil {
		return err
	}
	// over is a wait that the run would suspend on and that has ended.
	over := ""
	if len(c.Outcome.Waits) > 0 {
		for _, id := range c.Outcome.Waits {
			w, ok, err := tx.DB.Waits.Get(r.Tenant, r.ID, id)
			if err != nil {
				return err
			}
			if !ok || w.State == perdure.WaitClosed {
				return perdure.Invalid("outcome.waits", "the run has no open wait %q", id)
			}
			if w.State != perdure.WaitOpen {
				over = id
			}
		}
	} else {
		// A wait whose end was not handed over to the worker counts, too.
		if over, err = tx.DB.Inbox.UntoldWait(r); err != nil {
			return err
		}
	}
	named := []string{}
	for _, w := range open {
		w.Named = len(c.Outcome.Waits) == 0 || slices.Contains(c.Outcome.Waits, w.ID)
		if w.Named {
			named = append(named, w.ID)
		}
		tx.DB.Waits.Put(w)
	}
	if len(named) == 0 && over == "" {
		return perdure.Errorf(perdure.CodeNothingToWaitFor,
			"the run has no open wait: it would sleep until its deadline")
	}
	if err := tx.Apply(r, perdure.WentToSleep{Epoch: c.Epoch, Waits: named, WaitAt: firstTimeout(open)}); err != nil {
		return err
	}
	if over != "" {
		return tx.Apply(r, perdure.Woken{Reason: perdure.WaitSatisfied, WaitID: over})
	}
	return nil
}

package life

import (
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/plant"
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
	if w.Type == perdure.WaitLimit {
		if err := checkStepWait(tx, r, spec); err != nil {
			return err
		}
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
	if err := tx.Apply(r, perdure.WaitOpened{Wait: w, Approval: asked, Limits: spec.Limits}); err != nil {
		return err
	}
	if err := noteQuestion(tx, r, &asked); err != nil {
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
		a, err := endApproval(tx, &w)
		if err != nil {
			return err
		}
		if err := tx.Apply(r, perdure.WaitWithdrawn{WaitID: id}); err != nil {
			return err
		}
		if err := noteQuestion(tx, r, &a); err != nil {
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

// TimeOutWaits ends the open waits of a run whose timeout has passed. A timer is satisfied by that.
// Children that a wait names go on, and items that arrive later stay in the inbox.
func TimeOutWaits(tx *kernel.Tx, r *perdure.Run) error {
	return questionsTogether(tx, r, func() error { return timeOutWaits(tx, r) })
}

func timeOutWaits(tx *kernel.Tx, r *perdure.Run) error {
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
	if r.State == perdure.Suspended && len(r.Wants) > 1 {
		if err := awaitLimits(tx, r); err != nil {
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
	if err := tx.Apply(r, perdure.WentToSleep{Epoch: c.Epoch, Waits: named, WaitAt: nextLook(tx, open)}); err != nil {
		return err
	}
	if over != "" {
		return tx.Apply(r, perdure.Woken{Reason: perdure.WaitSatisfied, WaitID: over})
	}
	return awaitLimits(tx, r)
}

// matchSignal satisfies a new wait by the oldest signal of its name that has satisfied none.
func matchSignal(tx *kernel.Tx, r *perdure.Run, w perdure.Wait) error {
	i, ok, err := tx.DB.Inbox.NextSignal(r, w.Name)
	if err != nil || !ok {
		return err
	}
	return EndWait(tx, r, w, perdure.WaitSatisfied, &i)
}

package engine

import (
	"errors"
	"fmt"
	"time"

	"github.com/perdure/perdure"
)

// Repairs are the safety net of the watchdog's patrol. None of these faults can happen as long as
// every use case is correct. The simulator checks that no repair is needed.

// A Repair describes what was repaired: the watchdog's rule, the action and the reason. An empty
// Rule means that nothing was repaired.
type Repair struct{ Rule, What, Why string }

// maxAside is longer than any alarm is postponed.
const maxAside = time.Hour

// RepairRun checks a live run, and repairs it if something does not fit its state: its alarm,
// parent, tenant, queue, thread or waits.
func (tx *Tx) RepairRun(r *perdure.Run) (Repair, error) {
	if r.Damage != nil {
		return tx.EndDamaged(r)
	}
	if r.AlarmAt == 0 {
		return Repair{"damaged", "its alarm is set anew", "it was " + string(r.State) + " without an alarm"},
			tx.Apply(r, perdure.AlarmRepaired{})
	}
	if latest := max(r.DeadlineAt, tx.Now.Add(maxAside)); r.AlarmAt > latest {
		why := fmt.Sprintf("its alarm was set for %s, after its deadline", r.AlarmAt)
		return Repair{"damaged", "its alarm is set anew", why}, tx.Apply(r, perdure.AlarmRepaired{})
	}
	if missing, err := missingParts(tx, r); err != nil {
		return Repair{}, err
	} else if missing != "" {
		return Repair{"orphans", "failed/" + string(perdure.CodeOrphaned), "its " + missing +
			" no longer exists"}, tx.Finish(r, perdure.Orphaned{Missing: missing})
	}
	if r.ParentID != "" && !r.MayOutlive() && r.Cancel.RequestedAt == 0 {
		parent, _, err := tx.DB.Runs.Get(r.Tenant, r.ParentID)
		if err != nil {
			return Repair{}, err
		}
		if parent.State.Terminal() && !parent.Cascade {
			why := fmt.Sprintf("its parent %s, which it may not outlive, is %s", r.ParentID, parent.State)
			return Repair{"resume-replay", "asked to stop", why}, requestCancel(tx, r, "its parent ended")
		}
	}
	if r.State != perdure.Suspended {
		return Repair{}, nil
	}
	return repairWaits(tx, r)
}

// missingParts names the tenant, queue, thread or parent of a run that does not exist.
func missingParts(tx *Tx, r *perdure.Run) (string, error) {
	if _, ok, err := tx.DB.Tenants.Get(r.Tenant); err != nil || !ok {
		return "tenant", err
	}
	if ok, err := tx.DB.Queues.Has(r.Tenant, r.Queue); err != nil || !ok {
		return "queue", err
	}
	if r.ThreadID != "" {
		if _, ok, err := tx.DB.Threads.Get(r.Tenant, r.ThreadID); err != nil || !ok {
			return "thread", err
		}
	}
	if r.ParentID != "" {
		if _, ok, err := tx.DB.Runs.Get(r.Tenant, r.ParentID); err != nil || !ok {
			return "parent", err
		}
	}
	return "", nil
}

// repairWaits wakes a suspended run if one of its waits has ended, or should have.
func repairWaits(tx *Tx, r *perdure.Run) (Repair, error) {
	before := *r
	var did Repair
	err := tx.Try(func() (err error) {
		if did, err = findAndRepairWait(tx, r); err != nil || did.Rule == "" {
			return err
		}
		// The children were read after the run. If the run has changed meanwhile, there was nothing
		// to repair.
		moved, err := tx.DB.Runs.Moved(&before)
		if err == nil && moved {
			err = errRunChanged
		}
		return err
	})
	if errors.Is(err, errRunChanged) {
		*r = before
		return Repair{}, nil
	}
	return did, err
}

// errRunChanged discards a repair of a run that has changed since it was read.
var errRunChanged = errors.New("the run has moved on")

// findAndRepairWait repairs the first wait of a suspended run that does not fit.
func findAndRepairWait(tx *Tx, r *perdure.Run) (Repair, error) {
	open, err := tx.DB.Waits.Open(r.Tenant, r.ID)
	if err != nil {
		return Repair{}, err
	}
	sleepsOn := 0
	for _, w := range open {
		if w.Named {
			sleepsOn++
		}
		if w.Type != perdure.WaitChildren {
			continue
		}
		ended, ok, gone, err := tx.DB.Runs.CountEnds(r.Tenant, w.Targets)
		if err != nil {
			return Repair{}, err
		}
		if gone {
			return Repair{"orphans", "a wait ended as orphaned", "it waits for a run that does not exist"},
				endWait(tx, r, w, perdure.WaitOrphaned, nil)
		}
		counted := w.Ended
		if w.Ended, w.OK = ended, ok; w.Satisfied() {
			why := fmt.Sprintf("suspended although %d of the %d runs it waits for have ended; %d were counted",
				ended, len(w.Targets), counted)
			return Repair{"resume-replay", "queued", why}, endWait(tx, r, w, perdure.WaitSatisfied, nil)
		}
	}
	if missed, err := tx.DB.Waits.Missed(r.Tenant, r.ID); err != nil {
		return Repair{}, err
	} else if missed != "" {
		return Repair{"resume-replay", "queued", "suspended although one of its waits is over"},
			tx.Apply(r, perdure.Woken{Reason: perdure.WaitSatisfied, WaitID: missed})
	}
	if sleepsOn == 0 {
		// Only its deadline could wake it. Its worker finds out what to do.
		return Repair{"resume-replay", "queued", "suspended, and none of its waits is open"},
			tx.Apply(r, perdure.Woken{Reason: perdure.WaitOrphaned})
	}
	return Repair{}, nil
}

// RepairGathering closes an open chord or group whose condition holds.
func (tx *Tx) RepairGathering(g *perdure.Gathering) (Repair, error) {
	if g.Kind == perdure.GatheringChord && g.AlarmAt != 0 {
		// The chord is being processed in parts.
		return Repair{}, nil
	}
	members, err := tx.DB.Groups.Members(g)
	if err != nil {
		return Repair{}, err
	}
	ended, ok, _, err := tx.DB.Runs.CountEnds(g.Tenant, members)
	if err != nil {
		return Repair{}, err
	}
	if !perdure.Satisfied(g.Mode, g.Total, ended, ok) {
		return Repair{}, nil
	}
	did := Repair{"resume-replay", "the " + g.Kind + " " + string(g.ID) + " is closed",
		fmt.Sprintf("open although %d of its %d runs have ended; %d were counted", ended, g.Total, g.Ended)}
	g.Ended, g.OK = ended, ok
	return did, tx.closeGathering(g)
}

// HandleItemAlarm handles an inbox item whose alarm is due. An item of an epoch that is over
// becomes pending again (W1). An item that satisfies an open wait wakes the run (W9). An item of a
// run that has ended is skipped (W9). Any other item gets a later alarm; so does every item while
// held is set.
//
// If the run is not affected, only the item's row is written. Alarms of many items therefore do not
// conflict with work on their run.
func (tx *Tx) HandleItemAlarm(i perdure.Item, held bool) (did Repair, err error) {
	p := tx.Policy()
	r, ok, err := tx.DB.Runs.Get(i.Tenant, i.RunID)
	if err != nil {
		return Repair{}, err
	}
	was := i
	switch {
	case held:
		i.AlarmAt = tx.Now.Add(p.Lease)
	case !ok || r.State.Terminal():
		if tx.Now >= i.CreatedAt.Add(p.PendingWakeupSkip) {
			return skipItem(tx, &r, ok, i)
		}
		i.AlarmAt = i.CreatedAt.Add(p.PendingWakeupSkip)
	case i.Status != i.StatusOf(&r):
		// An item of an epoch that is over counts as pending already; its row is brought up to
		// date. An item of an epoch that the run has not had is a repair.
		if i.Epoch > r.Epoch {
			did = Repair{"inbox-reclaim", fmt.Sprintf("item %d back to pending", i.Seq),
				fmt.Sprintf("in the hands of epoch %d; the run is %s under epoch %d", i.Epoch, r.State, r.Epoch)}
			// Writing the run's row makes two nodes that repair it at once conflict.
			if err := tx.Apply(&r, perdure.ItemReclaimed{}); err != nil {
				return Repair{}, err
			}
		}
		i.Status, i.Epoch, i.AlarmAt = perdure.ItemPending, 0, tx.Now.Add(p.PendingWakeup)
	case i.Status == perdure.ItemProcessing:
		i.AlarmAt = tx.Now.Add(p.InboxProcessingTimeout)
	default:
		woke, err := reconsiderItem(tx, &r, i)
		if err != nil || woke {
			age := tx.Now.Sub(i.CreatedAt).Round(time.Millisecond)
			return Repair{"pending-wakeup", "a wait is over, the run is " + string(r.State),
				fmt.Sprintf("item %d, pending for %s, satisfies an open wait", i.Seq, age)}, err
		}
		i.AlarmAt = tx.Now.Add(p.PendingWakeupSkip)
	}
	tx.DB.Inbox.Move(was, i)
	return did, nil
}

// skipItem marks an item as skipped whose run has ended or was removed.
func skipItem(tx *Tx, r *perdure.Run, exists bool, i perdure.Item) (Repair, error) {
	was, age := i, tx.Now.Sub(i.CreatedAt).Round(time.Millisecond)
	i.Status, i.AlarmAt, i.WatchdogError, i.WatchdogAt = perdure.ItemSkipped, 0, "run_ended", tx.Now
	did := Repair{"pending-wakeup", fmt.Sprintf("item %d skipped", i.Seq),
		fmt.Sprintf("unread for %s, and its run has ended", age)}
	if !exists {
		i.WatchdogError, did.Why = "run_gone", fmt.Sprintf("unread for %s, and its run is gone", age)
		tx.DB.Inbox.Move(was, i)
		return did, nil
	}
	tx.DB.Inbox.Put(i)
	return did, tx.Apply(r, perdure.ItemExpired{})
}

// PostponeItemAlarm sets a later alarm for an inbox item whose handling fails.
func (tx *Tx) PostponeItemAlarm(i perdure.Item, until perdure.Instant) error {
	later := i
	later.AlarmAt = until
	tx.DB.Inbox.Move(i, later)
	return nil
}

// reconsiderItem compares a pending signal with the open waits of its run again.
func reconsiderItem(tx *Tx, r *perdure.Run, i perdure.Item) (woke bool, err error) {
	if i.Type != perdure.ItemSignal || i.WaitID != "" {
		return false, nil
	}
	open, err := tx.DB.Waits.Open(r.Tenant, r.ID)
	if err != nil {
		return false, err
	}
	for _, w := range open {
		if w.Type == perdure.WaitSignal && w.Name == i.Name {
			return true, endWait(tx, r, w, perdure.WaitSatisfied, &i)
		}
	}
	return false, nil
}

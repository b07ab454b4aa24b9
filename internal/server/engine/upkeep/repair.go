package upkeep

import (
	"errors"
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
)

// Repairs are the safety net of the watchdog's patrol. None of these faults can happen as long as
// every use case is correct. The simulator checks that no repair is needed.

// maxAside is longer than any alarm is postponed.
const maxAside = time.Hour

// RepairRun checks a live run, and repairs it if something does not fit its state: its alarm,
// parent, tenant, queue, thread or waits.
func RepairRun(tx *kernel.Tx, r *perdure.Run) (life.Repair, error) {
	if r.Damage != nil {
		return life.EndDamaged(tx, r)
	}
	if r.AlarmAt == 0 {
		return life.Repair{Rule: "damaged", What: "its alarm is set anew",
				Why: "it was " + string(r.State) + " without an alarm"},
			tx.Apply(r, perdure.AlarmRepaired{})
	}
	if latest := max(r.DeadlineAt, tx.Now.Add(maxAside)); r.AlarmAt > latest {
		why := fmt.Sprintf("its alarm was set for %s, after its deadline", r.AlarmAt)
		return life.Repair{Rule: "damaged", What: "its alarm is set anew", Why: why},
			tx.Apply(r, perdure.AlarmRepaired{})
	}
	if missing, err := missingParts(tx, r); err != nil {
		return life.Repair{}, err
	} else if missing != "" {
		return life.Repair{Rule: "orphans", What: "failed/" + string(perdure.CodeOrphaned), Why: "its " + missing +
			" no longer exists"}, life.Finish(tx, r, perdure.Orphaned{Missing: missing})
	}
	if r.ParentID != "" && !r.MayOutlive() && r.Cancel.RequestedAt == 0 {
		parent, _, err := tx.DB.Runs.Get(r.Tenant, r.ParentID)
		if err != nil {
			return life.Repair{}, err
		}
		if parent.State.Terminal() && !parent.Cascade {
			why := fmt.Sprintf("its parent %s, which it may not outlive, is %s", r.ParentID, parent.State)
			return life.Repair{Rule: "resume-replay", What: "asked to stop", Why: why},
				life.RequestCancel(tx, r, "its parent ended")
		}
	}
	if r.State != perdure.Suspended {
		return life.Repair{}, nil
	}
	return repairWaits(tx, r)
}

// missingParts names the tenant, queue, thread or parent of a run that does not exist.
func missingParts(tx *kernel.Tx, r *perdure.Run) (string, error) {
	if _, ok, err := tx.DB.Tenants.Get(r.Tenant); err != nil || !ok {
		return "tenant", err
	}
	if _, ok, err := tx.DB.Queues.Get(r.Tenant, r.Queue); err != nil || !ok {
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
func repairWaits(tx *kernel.Tx, r *perdure.Run) (life.Repair, error) {
	before := *r
	var did life.Repair
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
		return life.Repair{}, nil
	}
	return did, err
}

// errRunChanged discards a repair of a run that has changed since it was read.
var errRunChanged = errors.New("the run has moved on")

// findAndRepairWait repairs the first wait of a suspended run that does not fit.
func findAndRepairWait(tx *kernel.Tx, r *perdure.Run) (life.Repair, error) {
	open, err := tx.DB.Waits.Open(r.Tenant, r.ID)
	if err != nil {
		return life.Repair{}, err
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
			return life.Repair{}, err
		}
		if gone {
			return life.Repair{Rule: "orphans", What: "a wait ended as orphaned",
					Why: "it waits for a run that does not exist"},
				life.EndWait(tx, r, w, perdure.WaitOrphaned, nil)
		}
		counted := w.Ended
		if w.Ended, w.OK = ended, ok; w.Satisfied() {
			why := fmt.Sprintf("suspended although %d of the %d runs it waits for have ended; %d were counted",
				ended, len(w.Targets), counted)
			return life.Repair{Rule: "resume-replay", What: "queued", Why: why},
				life.EndWait(tx, r, w, perdure.WaitSatisfied, nil)
		}
	}
	if missed, err := tx.DB.Waits.Missed(r.Tenant, r.ID); err != nil {
		return life.Repair{}, err
	} else if missed != "" {
		return life.Repair{Rule: "resume-replay", What: "queued", Why: "suspended although one of its waits is over"},
			tx.Apply(r, perdure.Woken{Reason: perdure.WaitSatisfied, WaitID: missed})
	}
	if sleepsOn == 0 {
		// Only its deadline could wake it. Its worker finds out what to do.
		return life.Repair{Rule: "resume-replay", What: "queued", Why: "suspended, and none of its waits is open"},
			tx.Apply(r, perdure.Woken{Reason: perdure.WaitOrphaned})
	}
	return life.Repair{}, nil
}

// RepairGathering closes an open chord or group whose condition holds.
func RepairGathering(tx *kernel.Tx, g *perdure.Gathering) (life.Repair, error) {
	if g.Kind == perdure.GatheringChord && g.AlarmAt != 0 {
		// The chord is being processed in parts.
		return life.Repair{}, nil
	}
	members, err := tx.DB.Groups.Members(g)
	if err != nil {
		return life.Repair{}, err
	}
	ended, ok, _, err := tx.DB.Runs.CountEnds(g.Tenant, members)
	if err != nil {
		return life.Repair{}, err
	}
	if !perdure.Satisfied(g.Mode, g.Total, ended, ok) {
		return life.Repair{}, nil
	}
	did := life.Repair{Rule: "resume-replay", What: "the " + g.Kind + " " + string(g.ID) + " is closed",
		Why: fmt.Sprintf("open although %d of its %d runs have ended; %d were counted", ended, g.Total, g.Ended)}
	g.Ended, g.OK = ended, ok
	return did, life.CloseGathering(tx, g)
}

// HandleItemAlarm handles an inbox item whose alarm is due. An item of an epoch that is over
// becomes pending again (W1). An item that satisfies an open wait wakes the run (W9). An item of a
// run that has ended is skipped (W9). Any other item gets a later alarm; so does every item while
// held is set.
//
// If the run is not affected, only the item's row is written. Alarms of many items therefore do not
// conflict with work on their run.
func HandleItemAlarm(tx *kernel.Tx, i perdure.Item, held bool) (did life.Repair, err error) {
	p := tx.Policy()
	r, ok, err := tx.DB.Runs.Get(i.Tenant, i.RunID)
	if err != nil {
		return life.Repair{}, err
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
			did = life.Repair{Rule: "inbox-reclaim", What: fmt.Sprintf("item %d back to pending", i.Seq),
				Why: fmt.Sprintf("in the hands of epoch %d; the run is %s under epoch %d", i.Epoch, r.State, r.Epoch)}
			// Writing the run's row makes two nodes that repair it at once conflict.
			if err := tx.Apply(&r, perdure.ItemReclaimed{}); err != nil {
				return life.Repair{}, err
			}
		}
		i.Status, i.Epoch, i.AlarmAt = perdure.ItemPending, 0, tx.Now.Add(p.PendingWakeup)
	case i.Status == perdure.ItemProcessing:
		i.AlarmAt = tx.Now.Add(p.InboxProcessingTimeout)
	default:
		woke, err := reconsiderItem(tx, &r, i)
		if err != nil || woke {
			age := tx.Now.Sub(i.CreatedAt).Round(time.Millisecond)
			return life.Repair{Rule: "pending-wakeup", What: "a wait is over, the run is " + string(r.State),
				Why: fmt.Sprintf("item %d, pending for %s, satisfies an open wait", i.Seq, age)}, err
		}
		i.AlarmAt = tx.Now.Add(p.PendingWakeupSkip)
	}
	tx.DB.Inbox.Move(was, i)
	return did, nil
}

// skipItem marks an item as skipped whose run has ended or was removed.
func skipItem(tx *kernel.Tx, r *perdure.Run, exists bool, i perdure.Item) (life.Repair, error) {
	was, age := i, tx.Now.Sub(i.CreatedAt).Round(time.Millisecond)
	i.Status, i.AlarmAt, i.WatchdogError, i.WatchdogAt = perdure.ItemSkipped, 0, "run_ended", tx.Now
	did := life.Repair{Rule: "pending-wakeup", What: fmt.Sprintf("item %d skipped", i.Seq),
		Why: fmt.Sprintf("unread for %s, and its run has ended", age)}
	if !exists {
		i.WatchdogError, did.Why = "run_gone", fmt.Sprintf("unread for %s, and its run is gone", age)
		tx.DB.Inbox.Move(was, i)
		return did, nil
	}
	tx.DB.Inbox.Put(i)
	return did, tx.Apply(r, perdure.ItemExpired{})
}

// PostponeItemAlarm sets a later alarm for an inbox item whose handling fails.
func PostponeItemAlarm(tx *kernel.Tx, i perdure.Item, until perdure.Instant) error {
	later := i
	later.AlarmAt = until
	tx.DB.Inbox.Move(i, later)
	return nil
}

// reconsiderItem compares a pending signal with the open waits of its run again.
func reconsiderItem(tx *kernel.Tx, r *perdure.Run, i perdure.Item) (woke bool, err error) {
	if i.Type != perdure.ItemSignal || i.WaitID != "" {
		return false, nil
	}
	open, err := tx.DB.Waits.Open(r.Tenant, r.ID)
	if err != nil {
		return false, err
	}
	for _, w := range open {
		if w.Type == perdure.WaitSignal && w.Name == i.Name {
			return true, life.EndWait(tx, r, w, perdure.WaitSatisfied, &i)
		}
	}
	return false, nil
}

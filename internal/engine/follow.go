package engine

import (
	"errors"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/store"
)

// Follow-ups keep the cost of an end bounded. The end of a run can lead to the ends of others: its children
// are asked to stop, and so are the losers of a group that it satisfies; one that has not started ends at
// once, and leads to more. None of this is a call from an end to the next. Each end puts what follows from it
// on a list, and the list is worked off by Tx.runFollowUps when the first end is written.
//
// An operation that has spent its budget stops there. What is left is stored with the rows that the ends
// write anyway: a run has Cascade set, with the key of the last child that was asked, and a group has an
// alarm that rings at once, with the number of members that it has let go. The watchdog finds both.

// A followUp is what an end leaves to be done.
type followUp struct {
	tenant perdure.TenantID
	run    perdure.RunID   // the children of this run are asked to stop
	group  perdure.GroupID // or: this group lets go of its members
}

// How much of what follows is done in one operation, and how much of it at a time.
const (
	maxStops      = 256 // runs that are asked to stop
	maxGroupChunk = 64  // members of a gathering at a time

	maxStopsPerParent = 100 // of one parent, before the next one has its turn
)

// part is how many members are dealt with between two looks at the budget.
func (tx *Tx) chunk() int { return max(1, min(maxGroupChunk, tx.DB.OpRows()/16)) }

func (tx *Tx) addFollowUp(f followUp) { tx.followUps = append(tx.followUps, f) }

// OverBudget tells whether the operation has used up its budget.
func (tx *Tx) OverBudget() bool {
	c := tx.DB.Cost().Minus(tx.began)
	return tx.stopsLeft <= 0 || c.Written >= tx.DB.OpRows() || c.Bytes >= store.OpBytes || tx.DB.Late()
}

// runFollowUps does what follows from the ends that were written, one after the other. Inside of an end, and of a
// follow-up, it does nothing: the outermost one does. It tells whether there was anything.
func (tx *Tx) runFollowUps() (did bool, err error) {
	if tx.ending > 0 || tx.inFollowUps || len(tx.followUps) == 0 {
		return false, nil
	}
	tx.inFollowUps = true
	defer func() { tx.inFollowUps, tx.followUps = false, nil }()
	for i := 0; i < len(tx.followUps); i++ {
		if f := tx.followUps[i]; f.group != "" {
			err = releaseGroup(tx, f.tenant, f.group)
		} else {
			err = stopChildrenOf(tx, f.tenant, f.run)
		}
		if err != nil {
			return true, err
		}
	}
	return true, nil
}

func stopChildrenOf(tx *Tx, t perdure.TenantID, id perdure.RunID) error {
	r, err := tx.run(t, id)
	if err != nil {
		return err
	}
	_, err = tx.StopChildren(&r)
	return err
}

// StopChildren asks some of an ended run's live children to stop, and notes how far it came.
func (tx *Tx) StopChildren(r *perdure.Run) (stopped int, err error) {
	how := perdure.CascadeAdvanced{More: true, After: r.Stopped}
	if !tx.OverBudget() {
		limit := max(1, min(maxStopsPerParent, tx.stopsLeft, tx.DB.OpRows()/16))
		children, next, done, err := tx.DB.Runs.LiveChildren(r.Tenant, r.ID, r.Stopped, limit)
		if err != nil {
			return 0, err
		}
		for i := range children {
			ok, err := stopRun(tx, r.Tenant, children[i].ID, "its parent ended")
			if err != nil {
				return stopped, err
			}
			if ok {
				stopped++
			}
		}
		how = perdure.CascadeAdvanced{More: !done, After: next}
	}
	if how.More == r.Cascade && (!how.More || how.After == r.Stopped) {
		return stopped, nil
	}
	// Stopping a child may have written this run's row.
	if *r, err = tx.run(r.Tenant, r.ID); err != nil {
		return stopped, err
	}
	return stopped, tx.Apply(r, how)
}

// stopRun asks a run to stop, if it lives. One that can't be asked is logged and passed over: the others
// don't wait for it, and its deadline ends it.
func stopRun(tx *Tx, t perdure.TenantID, id perdure.RunID, reason string) (asked bool, err error) {
	err = tx.Try(func() error {
		r, ok, err := tx.DB.Runs.Get(t, id) // an earlier end may have changed it
		if err != nil || !ok || r.State.Terminal() || r.Cancel.RequestedAt != 0 {
			return err
		}
		tx.stopsLeft--
		asked = true
		return requestCancel(tx, &r, reason)
	})
	var refused *perdure.Error
	if store.Locked(err) { // what led to this is tried again later
		return false, err
	}
	if errors.As(err, &refused) {
		tx.e.log.Error("a run could not be asked to stop", "tenant", t, "run", id, "reason", reason, "error", err)
		return false, nil
	}
	return asked, err
}

// releaseGroup goes on with what is left of a gathering that waits for nobody any more: its runs are asked to stop, if
// that was wanted, and are its members no longer.
func releaseGroup(tx *Tx, t perdure.TenantID, id perdure.GroupID) error {
	g, ok, err := tx.DB.Groups.Get(t, id)
	if err != nil || !ok || g.State == perdure.GroupOpen || g.AlarmAt == 0 {
		return err
	}
	members, err := tx.DB.Groups.Members(&g)
	if err != nil {
		return err
	}
	reason := ""
	switch {
	case g.State == perdure.GroupDropped:
		reason = "the run that would have used its result was cancelled"
	case g.State == perdure.GroupSatisfied && g.OnLosers == "cancel":
		reason = "another run of its group was enough"
	}
	for g.Next < len(members) && !tx.OverBudget() {
		part := members[g.Next:min(g.Next+tx.chunk(), len(members))]
		if reason != "" {
			if err := tx.DB.Runs.Load(t, part); err != nil {
				return err
			}
			for _, run := range part {
				if _, err := stopRun(tx, t, run, reason); err != nil {
					return err
				}
			}
		}
		if err := tx.DB.Groups.DropMembers(&g, part); err != nil {
			return err
		}
		g.Next += len(part)
	}
	if g.Next >= len(members) {
		g.AlarmAt = 0
	}
	tx.DB.Groups.Put(g)
	return nil
}

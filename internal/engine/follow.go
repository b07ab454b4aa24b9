package engine

import (
	"errors"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/store"
)

// Follow-ups bound the cost of an end.
//
// The end of a run can cause other ends. Its children are asked to stop, and so are the losers of a
// group that it satisfies. A run that has not started ends at once, and causes more ends. An end
// does not call the next one. It adds its consequences to a list, and Tx.runFollowUps works off the
// list once the first end is staged.
//
// An operation that has spent its budget stops there. The rest is recorded in rows that the ends
// write anyway: a run has Cascade set, with the key of the last child that was asked. A group has
// an alarm that is due at once, with the number of members that it has released. The watchdog
// continues both.

// A followUp is a consequence of an end that is left to do.
type followUp struct {
	tenant perdure.TenantID
	// run: the children of this run are asked to stop.
	run perdure.RunID
	// group: this group releases its members.
	group perdure.GroupID
}

// These bound the follow-ups of one operation.
const (
	// maxStops bounds the runs that an operation asks to stop.
	maxStops = 256
	// maxGroupChunk bounds the members that are processed between two checks of the budget.
	maxGroupChunk = 64

	// maxStopsPerParent bounds the children of one parent before the next follow-up runs.
	maxStopsPerParent = 100
)

// chunk gives how many members are processed between two checks of the budget.
func (tx *Tx) chunk() int { return max(1, min(maxGroupChunk, tx.DB.OpRows()/16)) }

// addFollowUp adds a consequence to the list.
func (tx *Tx) addFollowUp(f followUp) { tx.followUps = append(tx.followUps, f) }

// OverBudget tells whether the operation has used up its budget of stops, rows, bytes or time. A
// sweep of the watchdog asks it, too; there, each part has a budget of its own.
func (tx *Tx) OverBudget() bool { return spent(tx) >= tx.spendable }

// spent gives how much of its budget the operation has used: one is all of it.
func spent(tx *Tx) float64 {
	c := tx.DB.Cost().Minus(tx.began)
	return max(
		float64(maxStops-tx.stopsLeft)/maxStops,
		float64(c.Written)/float64(tx.DB.OpRows()),
		float64(c.Bytes)/store.OpBytes,
		tx.DB.Lateness())
}

// BeginPart limits OverBudget to part n of an operation that has several, counted from zero. The
// part gets an equal share of the budget, and what the parts before it have left of theirs. If they
// used too much, it still has its own share.
func (tx *Tx) BeginPart(n, parts int) {
	share := 1 / float64(parts)
	tx.spendable = max(float64(n+1)*share, spent(tx)+share)
}

// runFollowUps does the follow-ups one after the other, including those that they add. Inside of an
// end or of a follow-up it does nothing: the outermost call does. It tells whether there were any.
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

// stopChildrenOf reads a run and asks its children to stop.
func stopChildrenOf(tx *Tx, t perdure.TenantID, id perdure.RunID) error {
	r, err := tx.run(t, id)
	if err != nil {
		return err
	}
	_, err = tx.StopChildren(&r)
	return err
}

// StopChildren asks some live children of an ended run to stop, and records the last one in the
// run's row. It gives how many it asked.
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

// stopRun asks a run to stop if it is live. A refusal is logged and skipped: the others do not wait
// for it, and its deadline ends it.
func stopRun(tx *Tx, t perdure.TenantID, id perdure.RunID, reason string) (asked bool, err error) {
	err = tx.Try(func() error {
		// An earlier end of this operation may have changed the run.
		r, ok, err := tx.DB.Runs.Get(t, id)
		if err != nil || !ok || r.State.Terminal() || r.Cancel.RequestedAt != 0 {
			return err
		}
		tx.stopsLeft--
		asked = true
		return requestCancel(tx, &r, reason)
	})
	var refused *perdure.Error
	// The operation is tried again later.
	if store.Locked(err) {
		return false, err
	}
	if errors.As(err, &refused) {
		tx.e.log.Error("a run could not be asked to stop", "tenant", t, "run", id, "reason", reason, "error", err)
		return false, nil
	}
	return asked, err
}

// releaseGroup continues to release the members of a gathering that has ended. It asks their runs
// to stop if the gathering was dropped, or if its losers are to be cancelled.
func releaseGroup(tx *Tx, t perdure.TenantID, id perdure.GroupID) error {
	g, ok, err := tx.DB.Groups.Get(t, id)
	if err != nil || !ok || g.State == perdure.GatheringOpen || g.AlarmAt == 0 {
		return err
	}
	members, err := tx.DB.Groups.Members(&g)
	if err != nil {
		return err
	}
	reason := ""
	switch {
	case g.State == perdure.GatheringDropped:
		reason = "the run that would have used its result was cancelled"
	case g.State == perdure.GatheringSatisfied && g.OnLosers == perdure.DispositionCancel:
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

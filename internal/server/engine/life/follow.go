package life

import (
	"errors"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
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

// ends has the follow-ups of an operation.
var ends = kernel.NewScratch[struct {
	// followUps are the consequences of ends that are left to do.
	followUps []followUp
	// ending counts nested calls of Finish.
	ending int
	// inFollowUps is true while runFollowUps is running.
	inFollowUps bool
}]()

// These bound the follow-ups of one operation.
const (
	// maxGroupChunk bounds the members that are processed between two checks of the budget.
	maxGroupChunk = 64

	// maxStopsPerParent bounds the children of one parent before the next follow-up runs.
	maxStopsPerParent = 100
)

// chunk gives how many members are processed between two checks of the budget.
func chunk(tx *kernel.Tx) int { return max(1, min(maxGroupChunk, tx.DB.OpRows()/16)) }

// addFollowUp adds a consequence to the list.
func addFollowUp(tx *kernel.Tx, f followUp) {
	s := ends.Of(tx)
	s.followUps = append(s.followUps, f)
}

// runFollowUps does the follow-ups one after the other, including those that they add. Inside of an
// end or of a follow-up it does nothing: the outermost call does. It tells whether there were any.
func runFollowUps(tx *kernel.Tx) (did bool, err error) {
	s := ends.Of(tx)
	if s.ending > 0 || s.inFollowUps || len(s.followUps) == 0 {
		return false, nil
	}
	s.inFollowUps = true
	defer func() { s.inFollowUps, s.followUps = false, nil }()
	for i := 0; i < len(s.followUps); i++ {
		if f := s.followUps[i]; f.group != "" {
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
func stopChildrenOf(tx *kernel.Tx, t perdure.TenantID, id perdure.RunID) error {
	r, err := tx.Run(t, id)
	if err != nil {
		return err
	}
	_, err = StopChildren(tx, &r)
	return err
}

// StopChildren asks some live children of an ended run to stop, and records the last one in the
// run's row. It gives how many it asked.
func StopChildren(tx *kernel.Tx, r *perdure.Run) (stopped int, err error) {
	how := perdure.CascadeAdvanced{More: true, After: r.Stopped}
	if !tx.OverBudget() {
		limit := max(1, min(maxStopsPerParent, tx.StopsLeft, tx.DB.OpRows()/16))
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
	if *r, err = tx.Run(r.Tenant, r.ID); err != nil {
		return stopped, err
	}
	return stopped, tx.Apply(r, how)
}

// stopRun asks a run to stop if it is live. A refusal is logged and skipped: the others do not wait
// for it, and its deadline ends it.
func stopRun(tx *kernel.Tx, t perdure.TenantID, id perdure.RunID, reason string) (asked bool, err error) {
	err = tx.Try(func() error {
		// An earlier end of this operation may have changed the run.
		r, ok, err := tx.DB.Runs.Get(t, id)
		if err != nil || !ok || r.State.Terminal() || r.Cancel.RequestedAt != 0 {
			return err
		}
		tx.StopsLeft--
		asked = true
		return RequestCancel(tx, &r, reason)
	})
	var refused *perdure.Error
	// The operation is tried again later.
	if store.HeldUp(err) {
		return false, err
	}
	if errors.As(err, &refused) {
		tx.Engine.Log.Error("a run could not be asked to stop", "tenant", t, "run", id, "reason", reason, "error", err)
		return false, nil
	}
	return asked, err
}

// releaseGroup continues to release the members of a gathering that has ended. It asks their runs
// to stop if the gathering was dropped, or if its losers are to be cancelled.
func releaseGroup(tx *kernel.Tx, t perdure.TenantID, id perdure.GroupID) error {
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
		part := members[g.Next:min(g.Next+chunk(tx), len(members))]
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

package life

import (
	"encoding/json"
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/doorbell"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// A gathering counts the ends of several runs. A chord belongs to a run that has completed while its
// children go on: when all have ended, one continuation composes the answer. A group has a waiter.

// openChord lets a run complete while its children go on. When all of the named children have
// ended, one continuation on the thread composes the answer. Children that have ended already
// count.
func openChord(tx *kernel.Tx, r *perdure.Run, names []string) error {
	if r.ThreadID == "" {
		return perdure.Invalid("outcome.continue_on", "a run without a thread can't be continued")
	}
	if err := checkContinuable(r); err != nil {
		return fieldOf(err, "outcome.continue_on")
	}
	g := perdure.Gathering{Tenant: r.Tenant, ID: perdure.GroupID(r.ID), Kind: perdure.GatheringChord,
		Mode: perdure.ModeAll}
	members, err := childrenNamed(tx, r, names, "outcome.continue_on")
	if err != nil {
		return err
	}
	return createGathering(tx, &g, members, perdure.Gathered{Outlives: true})
}

// createGathering creates a chord or a group over runs, and counts the members that have ended. It
// writes the row of each live member, so that it conflicts with an end of that member on another
// node.
func createGathering(tx *kernel.Tx, g *perdure.Gathering, members []perdure.Run, mark perdure.Gathered) error {
	g.State, g.CreatedAt = perdure.GatheringOpen, tx.Now
	if err := checkWatchable(tx, g.Tenant, members); err != nil {
		return err
	}
	seen := make(map[perdure.RunID]bool)
	for _, m := range members {
		if seen[m.ID] {
			continue
		}
		seen[m.ID] = true
		g.Members = append(g.Members, m.ID)
		g.Total++
		// Members that have ended are added too: while the gathering is open, they are not removed.
		tx.DB.Groups.AddMember(store.MemberRow{Tenant: g.Tenant, RunID: m.ID, ID: g.ID})
		if m.State.Terminal() {
			g.Ended++
			if m.State == perdure.Completed {
				g.OK++
			}
			continue
		}
		if err := tx.Apply(&m, mark); err != nil {
			return err
		}
	}
	tx.DB.Groups.Put(*g)
	if g.Satisfied() {
		return CloseGathering(tx, g)
	}
	return nil
}

// checkWatchable refuses live members that maxWatchers gatherings wait for already.
func checkWatchable(tx *kernel.Tx, t perdure.TenantID, members []perdure.Run) error {
	var watched []perdure.RunID
	for i := range members {
		if members[i].Counted && members[i].State.Live() {
			watched = append(watched, members[i].ID)
		}
	}
	have, err := tx.DB.Groups.CountOf(t, watched)
	if err != nil {
		return err
	}
	for _, id := range watched {
		if have[id] >= maxWatchers {
			return &perdure.Error{Code: perdure.CodeQuota, Field: "run_ids",
				Message: fmt.Sprintf("%d groups wait for run %s, as many as may", maxWatchers, id)}
		}
	}
	return nil
}

// countInGatherings counts a run's end in the chords and groups that wait for it, and closes those
// that it satisfies.
func countInGatherings(tx *kernel.Tx, r *perdure.Run) error {
	if !r.Counted {
		return nil
	}
	ids, err := tx.DB.Groups.Of(r.Tenant, r.ID)
	if err != nil {
		return err
	}
	if err := tx.DB.Groups.Load(r.Tenant, ids); err != nil {
		return err
	}
	for _, id := range ids {
		g, ok, err := tx.DB.Groups.Get(r.Tenant, id)
		if err != nil {
			return err
		}
		if !ok || g.State != perdure.GatheringOpen {
			continue
		}
		g.Ended++
		if r.State == perdure.Completed {
			g.OK++
		}
		tx.DB.Groups.Put(g)
		if g.Satisfied() {
			if err := CloseGathering(tx, &g); err != nil {
				return err
			}
		}
	}
	return nil
}

// CloseGathering closes an open gathering whose condition holds. A chord creates its continuation;
// a group ends, and its losers become a follow-up.
func CloseGathering(tx *kernel.Tx, g *perdure.Gathering) error {
	if g.Kind == perdure.GatheringChord {
		return fireChord(tx, g)
	}
	return endGroup(tx, g, perdure.GatheringSatisfied)
}

// endGroup ends a gathering. Releasing its members is a follow-up. The alarm is set to now, so that
// the watchdog continues what does not fit into this operation.
func endGroup(tx *kernel.Tx, g *perdure.Gathering, state perdure.GatheringState) error {
	g.State, g.EndedAt, g.AlarmAt, g.Next = state, tx.Now, tx.Now, 0
	tx.DB.Groups.Put(*g)
	tx.WakeAt(g.AlarmAt)
	ringGroup(tx, g)
	addFollowUp(tx, followUp{tenant: g.Tenant, group: g.ID})
	_, err := runFollowUps(tx)
	return err
}

// HandleGroupAlarm handles a gathering whose alarm is due. An open group has reached its deadline.
// A chord, or a group that has ended, has members left to process.
func HandleGroupAlarm(tx *kernel.Tx, g *perdure.Gathering) error {
	switch {
	case g.State != perdure.GatheringOpen:
		return releaseGroup(tx, g.Tenant, g.ID)
	case g.Kind == perdure.GatheringChord:
		return fireChord(tx, g)
	}
	return endGroup(tx, g, perdure.GatheringTimedOut)
}

// fireChord appends each result to the thread as a tool message, in the order of the children, and
// creates the continuation. A large chord is processed in parts: it stays open, with an alarm that
// is due at once, until the last result is appended.
func fireChord(tx *kernel.Tx, g *perdure.Gathering) error {
	orig, err := tx.Run(g.Tenant, perdure.RunID(g.ID))
	if err != nil {
		return err
	}
	members, err := tx.DB.Groups.Members(g)
	if err != nil {
		return err
	}
	for first := true; g.Next < len(members) && (first || !tx.OverBudget()); first = false {
		part := members[g.Next:min(g.Next+chunk(tx), len(members))]
		if err := appendResults(tx, &orig, part); err != nil {
			return err
		}
		if err := tx.DB.Groups.DropMembers(g, part); err != nil {
			return err
		}
		g.Next += len(part)
	}
	if g.Next < len(members) {
		g.AlarmAt = tx.Now
		tx.DB.Groups.Put(*g)
		tx.WakeAt(g.AlarmAt)
		return nil
	}
	g.State, g.EndedAt, g.AlarmAt = perdure.GatheringSatisfied, tx.Now, 0
	if g.Made, err = createContinuation(tx, &orig, "chord", nil); err != nil {
		return err
	}
	if g.Made == "" {
		g.State = perdure.GatheringDropped
	}
	tx.DB.Groups.Put(*g)
	ringGroup(tx, g)
	return nil
}

// appendResults appends the results of some runs of a chord to the thread. A large result is not
// copied: the message refers to the stored value, and readers of the thread get it resolved.
func appendResults(tx *kernel.Tx, orig *perdure.Run, ids []perdure.RunID) error {
	if err := tx.DB.Runs.Load(orig.Tenant, ids); err != nil {
		return err
	}
	var messages []perdure.Message
	for _, id := range ids {
		m, ok, err := tx.DB.Runs.Get(orig.Tenant, id)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		meta := []any{"run_id", string(m.ID), "status", string(m.State)}
		if _, _, ref := m.Result.Ref(); ref {
			meta = append(meta, ResultRef, tx.DB.Values.Share(m.Tenant, string(orig.ThreadID), m.Result))
		}
		messages = append(messages, perdure.Message{Role: perdure.RoleTool,
			Content: json.RawMessage(perdure.Object("run_id", string(m.ID), "key", m.JournalKey,
				"status", string(m.State), "result", m.Result, "error", m.Failure)),
			Metadata: json.RawMessage(perdure.Object(meta...))})
	}
	lines, err := addMessagesOf(tx, orig, messages)
	if err != nil || len(lines) == 0 {
		return err
	}
	if *orig, err = tx.Run(orig.Tenant, orig.ID); err != nil {
		return err
	}
	return tx.Apply(orig, perdure.MessagesAppended{Lines: lines})
}

// dropChord drops the chord of an ended run that is cancelled, and stops the members of the chord.
func dropChord(tx *kernel.Tx, r *perdure.Run) error {
	g, ok, err := tx.DB.Groups.Get(r.Tenant, perdure.GroupID(r.ID))
	if err != nil || !ok || g.State != perdure.GatheringOpen {
		return err
	}
	return endGroup(tx, &g, perdure.GatheringDropped)
}

// ringGroup rings the topic of a group, for callers that wait for it.
func ringGroup(tx *kernel.Tx, g *perdure.Gathering) { tx.Ring(doorbell.Run(g.Tenant, string(g.ID))) }

package engine

import (
	"errors"
	"fmt"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/doorbell"
)

// Finish ends a run and stages all consequences, in one transaction:
//
//   - its waits are closed, and its thread gets a message if there is no result;
//   - its fallback lists partial work and steps that were not compensated;
//   - a dead letter is written if a person has to look at the run;
//   - its parent, and the chords and groups that wait for it, are updated;
//   - its waiters are removed, and get their answer;
//   - its children are asked to stop;
//   - the next run of its thread becomes active.
//
// An end can cause other ends: of children, and of the losers of a group. These are follow-ups, see
// follow.go. They run one after the other once this end is staged, within the operation's budget.
func (tx *Tx) Finish(r *perdure.Run, ev perdure.Event) error {
	tx.ending++
	err := endRun(tx, r, ev)
	tx.ending--
	if err != nil {
		return err
	}
	did, err := tx.runFollowUps()
	// A follow-up may have written the run's row.
	if err == nil && did {
		*r, err = tx.run(r.Tenant, r.ID)
	}
	return err
}

// endRun stages the end of one run. The ends of other runs become follow-ups.
func endRun(tx *Tx, r *perdure.Run, ev perdure.Event) error {
	next, _, err := tx.e.policy.Apply(*r, ev, tx.Now)
	if err != nil {
		return err
	}
	if !next.State.Terminal() {
		return fmt.Errorf("%s does not end a run", perdure.EventName(ev))
	}
	turn := r.Turn
	if err := continueUnacknowledged(tx, r); err != nil {
		return err
	}
	if err := continueConversation(tx, r, &next); err != nil {
		return err
	}
	if err := closeWaits(tx, r); err != nil {
		return err
	}
	// The thread's message comes before the run's last log line, because a stream ends with that
	// line.
	if err := explainEnd(tx, r, &next); err != nil {
		return err
	}
	if err := tx.Apply(r, ev); err != nil {
		return err
	}
	if err := listFindings(tx, r); err != nil {
		return err
	}
	if err := writeDeadLetter(tx, r, ev); err != nil {
		return err
	}
	if err := notifyParentEnded(tx, r); err != nil {
		return err
	}
	if err := countInGatherings(tx, r); err != nil {
		return err
	}
	if err := keepResultForOriginal(tx, r); err != nil {
		return err
	}
	if r.Options.Foreground { // other runs have no waiters
		tx.DB.Waiters.DropAll(r.Tenant, r.ID)
	}
	if r.Children > 0 {
		tx.addFollowUp(followUp{tenant: r.Tenant, run: r.ID})
	}
	if turn == perdure.TurnActive {
		return leaveThread(tx, r)
	}
	return nil
}

// explainEnd adds a notice to the thread that says why a run ended without a result.
func explainEnd(tx *Tx, r, ended *perdure.Run) error {
	if r.ThreadID == "" || ended.State == perdure.Completed {
		return nil
	}
	return addNotice(tx, r, noticeOfEnd(ended.State, ended.Failure), "status", string(ended.State),
		"code", string(ended.Failure.Code), "deliverable_id", r.DeliverableID())
}

// listFindings adds to the fallback of a run that did not complete: its artifacts, the end of its
// streamed text, and the steps that were not compensated.
func listFindings(tx *Tx, r *perdure.Run) error {
	if r.State == perdure.Completed || r.StartedAt == 0 {
		return nil
	}
	left, err := tx.DB.Artifacts.List(r.Tenant, r.ID)
	if err != nil {
		return err
	}
	text, err := partialText(tx, r)
	if err != nil {
		return err
	}
	undo, err := notCompensated(tx, r)
	if err != nil || len(left)+len(text)+len(undo) == 0 {
		return err
	}
	return tx.Apply(r, perdure.FindingsListed{NotUndone: undo, Text: text, Artifacts: left})
}

// maxPartialText bounds the bytes of streamed text in a fallback.
const maxPartialText = 4 << 10

// partialText reads the end of the text that the last attempt streamed.
func partialText(tx *Tx, r *perdure.Run) (string, error) {
	text := textTail{attempt: r.Attempt, most: maxPartialText}
	err := tx.DB.Events.LastOf(r.Tenant, r.ID, perdure.LineDelta, r.Seq-textWithin, text.add)
	var damaged *perdure.Error
	if errors.As(err, &damaged) {
		// The end must not fail because of a line that can't be read.
		err = nil
	}
	return text.String(), err
}

// notCompensated names the steps of a run that have a compensation which was not recorded as done.
// A worker that fails a run has compensated what it can. After any other end, a person has to know
// what is left.
func notCompensated(tx *Tx, r *perdure.Run) (left []string, err error) {
	if r.JournalSeq == 0 {
		return nil, nil
	}
	// Both prefixes begin with this one.
	keys, err := tx.DB.Journal.Keys(r.Tenant, r.ID, strings.TrimSuffix(perdure.UndoPrefix, ":"))
	if err != nil {
		return nil, err
	}
	undone := make(map[string]bool)
	for _, key := range keys {
		if name, ok := strings.CutPrefix(key, perdure.UndonePrefix); ok {
			undone[name] = true
		}
	}
	for _, key := range keys {
		if name, ok := strings.CutPrefix(key, perdure.UndoPrefix); ok && !undone[name] {
			left = append(left, name)
		}
	}
	return left[max(0, len(left)-perdure.MaxNotUndone):], nil
}

// writeDeadLetter writes the dead letter of a run that needs a person.
func writeDeadLetter(tx *Tx, r *perdure.Run, ev perdure.Event) error {
	switch ev.(type) {
	case perdure.GaveUp, perdure.NeverStarted, perdure.NeverClaimed,
		perdure.Rejected, perdure.Corrupted, perdure.HoldExpired,
		perdure.HoldAbandoned:
		tx.DB.DeadLetters.Put(perdure.DeadLetter{Tenant: r.Tenant, RunID: r.ID, Kind: r.Kind, Queue: r.Queue,
			Cause:   string(r.Failure.Code),
			Message: r.Failure.Message, At: tx.Now, ExpiresAt: tx.Now.Add(tx.e.policy.DeadLetterTTL)})
	}
	return nil
}

// notifyParentEnded adds a child's end to its parent's inbox and log, and ends the parent's waits
// that it satisfies. The parent's row is written in any case. If two children end at once on two
// nodes, one of them conflicts, is decided again and finds that it was the last.
func notifyParentEnded(tx *Tx, r *perdure.Run) error {
	if r.ParentID == "" {
		return nil
	}
	parent, ok, err := tx.DB.Runs.Get(r.Tenant, r.ParentID)
	if err != nil || !ok || !parent.State.Live() {
		return err
	}
	item := perdure.Item{Type: perdure.ItemChild, Name: r.JournalKey, From: r.ID, Outcome: string(r.State)}
	if r.State == perdure.Completed {
		item.Data = tx.DB.Values.Share(r.Tenant, string(parent.ID), r.Result)
	} else {
		full, err := tx.DB.Values.Resolve(r.Tenant, r.Progress)
		if err != nil {
			// Progress that can't be read stays a reference: the end must not fail.
			full = r.Progress
		}
		item.Data = tx.DB.Values.Intern(r.Tenant, string(parent.ID),
			[]byte(expandFallback(r.Fallback, r.Progress, full)))
	}
	tx.putNextItem(&parent, item)
	ended := perdure.ChildEnded{Child: r.ID, State: r.State, Summary: r.Summary, Failure: r.Failure}
	if err := tx.Apply(&parent, ended); err != nil {
		return err
	}
	return endChildWaits(tx, &parent, r)
}

// ringGroup rings the topic of a group, for callers that wait for it.
func ringGroup(tx *Tx, g *perdure.Gathering) { tx.ring(doorbell.Run(g.Tenant, string(g.ID))) }

package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/doorbell"
)

// Finish ends a run, with all that follows from it, in one transaction: its waits are closed, a readable message
// goes to its thread, what was not undone is listed, a dead letter is written if
// it is one, its parent is told and perhaps woken, chords and groups count it, its children are asked to stop,
// its thread goes to the next run, and whoever waits is rung.
//
// An end can lead to other ends: of children, and of the losers of a group. These are follow-ups, see follow.go: they are
// done one after the other when the end itself is written, as far as the operation's budget goes.
func (tx *Tx) Finish(r *perdure.Run, ev perdure.Event) error {
	tx.ending++
	err := endRun(tx, r, ev)
	tx.ending--
	if err != nil {
		return err
	}
	did, err := tx.runFollowUps()
	if err == nil && did { // which may have written the run's row
		*r, err = tx.run(r.Tenant, r.ID)
	}
	return err
}

// endRun writes the end of one run, and leaves the ends of others as follow-ups.
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
	if err := closeWaits(tx, r); err != nil {
		return err
	}
	// What is said in the thread comes before the last line: a stream ends with that one.
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
	if r.Children > 0 {
		tx.addFollowUp(followUp{tenant: r.Tenant, run: r.ID})
	}
	if turn == perdure.TurnActive {
		return leaveThread(tx, r)
	}
	return nil
}

// explainEnd writes into the thread why a run ended without a result.
func explainEnd(tx *Tx, r, ended *perdure.Run) error {
	if r.ThreadID == "" || ended.State == perdure.Completed {
		return nil
	}
	text := map[perdure.State]string{
		perdure.Failed:    "This run failed",
		perdure.TimedOut:  "This run ran out of time",
		perdure.Cancelled: "This run was cancelled",
	}[ended.State]
	if ended.Failure != nil && ended.Failure.Message != "" {
		text += ": " + ended.Failure.Message
	}
	content, err := json.Marshal(text)
	if err != nil {
		return err
	}
	meta := perdure.Object("status", string(ended.State), "run_id", string(r.ID), "code", string(ended.Failure.Code),
		"deliverable_id", r.DeliverableID())
	lines, err := addMessagesOf(tx, r, []perdure.Message{{Role: "assistant", Content: content, Metadata: json.RawMessage(meta)}})
	if err != nil || len(lines) == 0 {
		return err
	}
	return tx.Apply(r, perdure.MessagesAppended{Lines: lines})
}

// listFindings adds to the fallback of a run what there is of its work: what it left, what it was saying, and what its journal
// says should be undone and is not.
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

// maxPartialText is how many bytes of the text that a run was streaming a fallback has.
const maxPartialText = 4 << 10

// partialText is the end of the text that the last attempt was streaming.
func partialText(tx *Tx, r *perdure.Run) (string, error) {
	said := textTail{attempt: r.Attempt, most: maxPartialText}
	err := tx.DB.Events.LastOf(r.Tenant, r.ID, perdure.LineDelta, r.Seq-textWithin, said.add)
	var damaged *perdure.Error
	if errors.As(err, &damaged) {
		err = nil // words that can't be read are no reason not to end
	}
	return said.String(), err
}

// notCompensated names the steps of a run that should be undone and are not. A worker that fails a run has undone what it can;
// where the end is not its word, somebody has to know what is left.
func notCompensated(tx *Tx, r *perdure.Run) (left []string, err error) {
	if r.JournalSeq == 0 {
		return nil, nil
	}
	keys, err := tx.DB.Journal.Keys(r.Tenant, r.ID, strings.TrimSuffix(perdure.UndoPrefix, ":")) // both prefixes begin with it
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

// writeDeadLetter writes the dead letter of a run that can't go on without a person.
func writeDeadLetter(tx *Tx, r *perdure.Run, ev perdure.Event) error {
	switch ev.(type) {
	case perdure.GaveUp, perdure.DeliveryGaveUp, perdure.Rejected, perdure.Spoiled:
		tx.DB.DeadLetters.Put(perdure.DeadLetter{Tenant: r.Tenant, RunID: r.ID, Kind: r.Kind, Queue: r.Queue, Cause: string(r.Failure.Code),
			Message: r.Failure.Message, At: tx.Now, ExpiresAt: tx.Now.Add(tx.e.policy.DeadLetterTTL)})
	}
	return nil
}

// notifyParentEnded puts a child's end into its parent's inbox and log, and wakes it if that was what it waited
// for. The parent's row is written in any case, so that two children that end at once on two nodes can't
// both miss that they were the last.
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
			full = r.Progress // findings that can't be read are no reason not to end
		}
		item.Data = tx.DB.Values.Intern(r.Tenant, string(parent.ID), []byte(expandFallback(r.Fallback, r.Progress, full)))
	}
	tx.putNextItem(&parent, item)
	if err := tx.Apply(&parent, perdure.ChildEnded{Child: r.ID, State: r.State, Summary: r.Summary, Failure: r.Failure}); err != nil {
		return err
	}
	return endChildWaits(tx, &parent, r)
}

// ringGroup wakes whoever joins a group.
func ringGroup(tx *Tx, g *perdure.Group) { tx.ring(doorbell.Run(g.Tenant, string(g.ID))) }

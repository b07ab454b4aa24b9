package life

import (
	"errors"
	"fmt"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
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
func Finish(tx *kernel.Tx, r *perdure.Run, ev perdure.Event) error {
	s := ends.Of(tx)
	s.ending++
	err := endRun(tx, r, ev)
	s.ending--
	if err != nil {
		return err
	}
	did, err := runFollowUps(tx)
	// A follow-up may have written the run's row.
	if err == nil && did {
		*r, err = tx.Run(r.Tenant, r.ID)
	}
	return err
}

// endRun stages the end of one run. The ends of other runs become follow-ups.
func endRun(tx *kernel.Tx, r *perdure.Run, ev perdure.Event) error {
	next, _, err := tx.Engine.Policy().Apply(*r, ev, tx.Now)
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
	if r.Options.Firing != nil {
		if err := fireWaiting(tx, r); err != nil {
			return err
		}
	}
	if r.Options.Foreground { // other runs have no waiters
		tx.DB.Waiters.DropAll(r.Tenant, r.ID)
	}
	if r.Children > 0 {
		addFollowUp(tx, followUp{tenant: r.Tenant, run: r.ID})
	}
	if turn == perdure.TurnActive {
		return leaveThread(tx, r)
	}
	return nil
}

// explainEnd adds a notice to the thread that says why a run ended without a result.
func explainEnd(tx *kernel.Tx, r, ended *perdure.Run) error {
	if r.ThreadID == "" || ended.State == perdure.Completed {
		return nil
	}
	return addNotice(tx, r, noticeOfEnd(ended.State, ended.Failure), "status", string(ended.State),
		"code", string(ended.Failure.Code), "deliverable_id", r.DeliverableID())
}

// listFindings adds to the fallback of a run that did not complete: its artifacts, the end of its
// streamed text, and the steps that were not compensated.
func listFindings(tx *kernel.Tx, r *perdure.Run) error {
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
func partialText(tx *kernel.Tx, r *perdure.Run) (string, error) {
	text := TextTail{Attempt: r.Attempt, Most: maxPartialText}
	err := tx.DB.Events.LastOf(r.Tenant, r.ID, perdure.LineDelta, r.Seq-TextWithin, text.Add)
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
func notCompensated(tx *kernel.Tx, r *perdure.Run) (left []string, err error) {
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
func writeDeadLetter(tx *kernel.Tx, r *perdure.Run, ev perdure.Event) error {
	switch ev.(type) {
	case perdure.GaveUp, perdure.NeverStarted, perdure.NeverClaimed,
		perdure.Rejected, perdure.Corrupted, perdure.HoldExpired,
		perdure.HoldAbandoned:
		tx.DB.DeadLetters.Put(perdure.DeadLetter{Tenant: r.Tenant, RunID: r.ID, Kind: r.Kind, Queue: r.Queue,
			Cause:   string(r.Failure.Code),
			Message: r.Failure.Message, At: tx.Now, ExpiresAt: tx.Now.Add(tx.Engine.Policy().DeadLetterTTL)})
	}
	return nil
}

// notifyParentEnded adds a child's end to its parent's inbox and log, and ends the parent's waits
// that it satisfies. The parent's row is written in any case. If two children end at once on two
// nodes, one of them conflicts, is decided again and finds that it was the last.
func notifyParentEnded(tx *kernel.Tx, r *perdure.Run) error {
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
			[]byte(ExpandFallback(r.Fallback, r.Progress, full)))
	}
	putNextItem(tx, &parent, item)
	ended := perdure.ChildEnded{Child: r.ID, State: r.State, Summary: r.Summary, Failure: r.Failure}
	if err := tx.Apply(&parent, ended); err != nil {
		return err
	}
	return endChildWaits(tx, &parent, r)
}

// ExpandFallback resolves the partial findings in a fallback, which are a reference if they are
// large. The parent may record a fallback as a value, so it must not exceed a value's limits.
// Findings that are too large or too deep are left out, and stay readable as the run's progress.
func ExpandFallback(fallback, progress, full perdure.Value) perdure.Value {
	if progress == "" {
		return fallback
	}
	short, _ := progress.MarshalJSON()
	long, _ := full.MarshalJSON()
	// The fields before it are texts, in which a quote is escaped, so the match is unambiguous.
	before, after, found := strings.Cut(string(fallback), `"partial":`+string(short))
	switch {
	case !found:
		return fallback
	case len(fallback)-len(short)+len(long) > perdure.MaxValue || nestedDeeper(long, maxDepth-1):
		return perdure.Value(before + `"partial_cut":true` + after)
	}
	return perdure.Value(before + `"partial":` + string(long) + after)
}

// maxDepth is the greatest nesting of a JSON value that the API accepts.
const maxDepth = 64

// nestedDeeper tells whether JSON is nested deeper than a limit.
func nestedDeeper(text []byte, than int) bool {
	depth, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			if depth++; depth > than {
				return true
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return false
}

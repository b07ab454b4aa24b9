package life

import (
	"cmp"
	"encoding/json"
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/engine/kernel"
	"github.com/perdure/perdure/internal/store"
)

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

// maxWatchers bounds how many gatherings may wait for one run, because the run's end writes a row
// for each.
const maxWatchers = 100

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

// createContinuation creates the run that continues an ended run of the thread: same thread, same
// root, no parent, a fresh timeout. It gives no id if the thread was deleted.
func createContinuation(
	tx *kernel.Tx, orig *perdure.Run, trigger string, messages []perdure.Message,
) (perdure.RunID, error) {
	if _, ok, err := tx.DB.Threads.Get(orig.Tenant, orig.ThreadID); err != nil || !ok {
		return "", err
	}
	lines, err := addMessagesOf(tx, orig, messages)
	if err != nil {
		return "", err
	}
	if checkContinuable(orig) != nil { // accepted by an older release: the thread has what has happened
		return "", tx.Apply(orig, perdure.MessagesAppended{Lines: lines})
	}
	r := continuationOf(tx, orig)
	input := json.RawMessage(perdure.Object("trigger", trigger, "continuation_of_run_id", string(orig.ID)))
	if err := acceptRun(tx, &r, input, nil, nil, perdure.MultitaskEnqueue); err != nil {
		return "", err
	}
	if *orig, err = tx.Run(orig.Tenant, orig.ID); err != nil {
		return "", err
	}
	return r.ID, tx.Apply(orig, perdure.Continued{By: r.ID, Trigger: trigger, Messages: lines})
}

// continuationOf returns the fields that a continuation takes from its original.
func continuationOf(tx *kernel.Tx, orig *perdure.Run) perdure.Run {
	r := perdure.Run{
		Tenant: orig.Tenant, Kind: orig.Kind, Class: orig.Class, Queue: orig.Queue, Priority: orig.Priority,
		ThreadID: orig.ThreadID,
		RootID:   orig.RootID, ContinuationOf: orig.ID, MaxAttempts: orig.MaxAttempts, Metadata: orig.Metadata,
		Options: perdure.Options{Timeout: orig.Options.Timeout, Process: orig.Options.Process, Chat: orig.Options.Chat,
			Webhook:      orig.Options.Webhook,
			WebhookLines: orig.Options.WebhookLines},
	}
	// The greatest timeout may have been lowered since, and an end must not fail because of it.
	r.Options.Timeout = min(r.Options.Timeout, perdure.Duration(tx.Engine.Policy().Timeouts.Of(r.Class).Max))
	return r
}

// checkContinuable refuses the continuation of a command. Its input would be what has happened, and not a
// command; starting the same command again is a retry, and nobody has asked for one. A run of perdure
// exec has nobody to take a new run, either.
func checkContinuable(orig *perdure.Run) error {
	if !orig.IsCommand() && !orig.Local() {
		return nil
	}
	return perdure.Errorf(perdure.CodeNotContinuable, "the run is a command, which can't be told that something has "+
		"finished: start a command that goes on with its session (perdure exec --continue %s), or submit one with "+
		"\"session\"", orig.ID)
}

// dropChord drops the chord of an ended run that is cancelled, and stops the members of the chord.
func dropChord(tx *kernel.Tx, r *perdure.Run) error {
	g, ok, err := tx.DB.Groups.Get(r.Tenant, perdure.GroupID(r.ID))
	if err != nil || !ok || g.State != perdure.GatheringOpen {
		return err
	}
	return endGroup(tx, &g, perdure.GatheringDropped)
}

// Continue reports that external work, which a run started, has finished. A live run gets an item
// in its inbox. If the run has ended, or ends without acknowledging the item, a continuation is
// created. Each JobID counts once for a run.
type Continue struct {
	Tenant   perdure.TenantID
	RunID    perdure.RunID
	Trigger  string
	JobID    string
	WorkerID string
	Status   string
	Summary  string

	// Made is the continuation, if there is one by now.
	Made perdure.RunID
	// Created is false if the job was reported before.
	Created bool
}

func (op *Continue) Needs() []store.Ref { return kernel.Refs(op.Tenant, op.RunID) }

// Do delivers the item, or creates the continuation.
func (op *Continue) Do(tx *kernel.Tx) error {
	op.Made, op.Created = "", false
	if err := perdure.CheckName("job_id", op.JobID); err != nil {
		return err
	}
	texts := [][2]string{{"trigger", op.Trigger}, {"worker_id", op.WorkerID}, {"status", op.Status},
		{"result_summary", op.Summary}}
	for _, f := range texts {
		if err := perdure.CheckText(f[0], f[1]); err != nil {
			return err
		}
	}
	r, err := tx.Run(op.Tenant, op.RunID)
	if err != nil {
		return err
	}
	if r.ThreadID == "" {
		return perdure.Errorf(perdure.CodeInvalid, "a run without a thread can't be continued")
	}
	if known, ok, err := tx.DB.Idempotency.Get(op.Tenant, continueKey(&r, op.JobID)); err != nil {
		return err
	} else if ok {
		if op.Made = perdure.RunID(known.Ref); op.Made != r.ID {
			return nil
		}
		// The run was live at the first report. There is a continuation if it ended without
		// acknowledging.
		made, _, err := tx.DB.Idempotency.Get(op.Tenant, unacknowledgedKey(&r, op.JobID))
		op.Made = perdure.RunID(made.Ref)
		return err
	}
	// After the look-up: a repeated call gets its first answer, also if an older release has accepted it.
	if err := checkContinuable(&r); err != nil {
		return err
	}
	if _, ok, err := tx.DB.Threads.Get(op.Tenant, r.ThreadID); err != nil {
		return err
	} else if !ok {
		return perdure.Errorf(perdure.CodeRunEnded,
			"the run has ended and its thread was deleted: there is nothing to go on with")
	}
	data := perdure.Object("trigger", op.Trigger, "job_id", op.JobID, "worker_id", op.WorkerID,
		"status", op.Status, "result_summary", op.Summary)
	if by, ok, err := anewBy(tx, &r); err != nil {
		return err
	} else if ok {
		return endedAndContinued(&r, by, "it is not told of work outside any more")
	}
	op.Created = true
	if r.State.Live() {
		if err := checkContinueLimit(tx, &r); err != nil {
			return err
		}
		_, err = putItem(tx, &r, perdure.Item{Type: perdure.ItemContinue, Name: op.JobID, Data: data})
	} else {
		op.Made, err = createContinuation(tx, &r, "external", []perdure.Message{outsideResult(data)})
	}
	if err != nil {
		return err
	}
	tx.DB.Idempotency.Put(store.IdempotencyRow{Tenant: op.Tenant, Key: continueKey(&r, op.JobID),
		Ref: string(cmp.Or(op.Made, r.ID)), ExpiresAt: tx.Now.Add(tx.Engine.Policy().IdempotencyTTL)})
	return nil
}

// continueKey maps a run and a job to the continuation, or to the run itself if it was live at the
// time of the report. unacknowledgedKey then maps them to the continuation that the run's end
// created.
func continueKey(r *perdure.Run, job string) string { return "continue:" + string(r.ID) + ":" + job }
func unacknowledgedKey(r *perdure.Run, job string) string {
	return "unheard:" + string(r.ID) + ":" + job
}

// outsideResult is the tool message that a continuation finds in the thread.
func outsideResult(data perdure.Value) perdure.Message {
	return perdure.Message{Role: perdure.RoleTool, Content: json.RawMessage(data),
		Metadata: json.RawMessage(`{"outside":true}`)}
}

// maxContinues bounds the unacknowledged Continue items of a live run, because its end puts all of
// them into one continuation, in one operation.
const maxContinues = 256

// checkContinueLimit refuses another Continue item when a run has maxContinues of them
// unacknowledged.
func checkContinueLimit(tx *kernel.Tx, r *perdure.Run) error {
	if r.InboxOpen < maxContinues {
		return nil
	}
	open, err := tx.DB.Inbox.Continues(r, maxContinues)
	if err == nil && len(open) == maxContinues {
		err = perdure.Errorf(perdure.CodeQuota,
			"the run has %d ends of work outside in its inbox and acknowledged none of them: "+
				"it takes no more until it does", maxContinues)
	}
	return err
}

// continueUnacknowledged creates the continuation of an ending run for the Continue items that it
// did not acknowledge.
func continueUnacknowledged(tx *kernel.Tx, r *perdure.Run) error {
	if r.ThreadID == "" {
		// Continue refuses a run without a thread.
		return nil
	}
	// A run of an older version may have more than maxContinues.
	items, err := tx.DB.Inbox.Continues(r, perdure.MaxList)
	if err != nil {
		return err
	}
	var messages []perdure.Message
	var jobs []string
	for _, i := range items {
		i.Status, i.AlarmAt = perdure.ItemDone, 0
		tx.DB.Inbox.Put(i)
		messages, jobs = append(messages, outsideResult(i.Data)), append(jobs, i.Name)
	}
	if len(messages) == 0 {
		return nil
	}
	if err := tx.Apply(r, perdure.ItemsContinued{Count: len(messages)}); err != nil {
		return err
	}
	made, err := createContinuation(tx, r, "external", messages)
	if err != nil || made == "" {
		return err
	}
	for _, job := range jobs {
		tx.DB.Idempotency.Put(store.IdempotencyRow{Tenant: r.Tenant, Key: unacknowledgedKey(r, job), Ref: string(made),
			ExpiresAt: tx.Now.Add(tx.Engine.Policy().IdempotencyTTL)})
	}
	return nil
}

// ResultRef is the name in a message's metadata that holds the reference of a result in the
// content.
const ResultRef = "result_ref"

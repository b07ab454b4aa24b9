package engine

import (
	"cmp"
	"encoding/json"
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/store"
)

// openChord is the other way to use children: the run ends its turn now, and when all of these have
// ended, one continuation composes the answer. Children that have ended already count.
func openChord(tx *Tx, r *perdure.Run, names []string) error {
	if r.ThreadID == "" {
		return perdure.Invalid("outcome.continue_on", "a run without a thread can't be continued")
	}
	g := perdure.Group{Tenant: r.Tenant, ID: perdure.GroupID(r.ID), Kind: perdure.GroupChord, Mode: perdure.ModeAll}
	byKey, err := tx.DB.Runs.Children(r.Tenant, r.ID, names)
	if err != nil {
		return err
	}
	var members []perdure.Run
	for _, name := range names {
		c, ok := byKey[name]
		if !ok {
			if c, ok, err = tx.DB.Runs.Get(r.Tenant, perdure.RunID(name)); err != nil {
				return err
			}
		}
		if !ok || c.ParentID != r.ID {
			return perdure.Invalid("outcome.continue_on", "%q is no child of the run", name)
		}
		members = append(members, c)
	}
	return createGathering(tx, &g, members, perdure.Gathered{Outlives: true})
}

// createGathering makes a chord or a group over runs, counting those that have ended. The row of each live member is
// written, so that one that ends at this moment on another node is not missed.
func createGathering(tx *Tx, g *perdure.Group, members []perdure.Run, mark perdure.Gathered) error {
	g.State, g.CreatedAt = perdure.GroupOpen, tx.Now
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
		tx.DB.Groups.AddMember(store.MemberRow{Tenant: g.Tenant, RunID: m.ID, ID: g.ID}) // of those that have ended too: as long as it is open, they stay
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
		return tx.closeGathering(g)
	}
	return nil
}

// maxWatchers bounds how many gatherings may wait for one run: its end writes a row of each.
const maxWatchers = 100

// checkWatchable refuses to gather live runs that too many gatherings wait for already.
func checkWatchable(tx *Tx, t perdure.TenantID, members []perdure.Run) error {
	var watched []perdure.RunID
	for i := range members {
		if members[i].Watched && members[i].State.Live() {
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

// countInGatherings counts a run's end in the chords and groups that wait for it.
func countInGatherings(tx *Tx, r *perdure.Run) error {
	if !r.Watched {
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
		if !ok || g.State != perdure.GroupOpen {
			continue
		}
		g.Ended++
		if r.State == perdure.Completed {
			g.OK++
		}
		tx.DB.Groups.Put(g)
		if g.Satisfied() {
			if err := tx.closeGathering(&g); err != nil {
				return err
			}
		}
	}
	return nil
}

// CloseGathering is called when an open gathering's condition holds: a chord makes its continuation, a group
// ends and deals with its losers.
func (tx *Tx) closeGathering(g *perdure.Group) error {
	if g.Kind == perdure.GroupChord {
		return fireChord(tx, g)
	}
	return endGroup(tx, g, perdure.GroupSatisfied)
}

// endGroup ends a gathering. What is left to do with its members follows.
func endGroup(tx *Tx, g *perdure.Group, state string) error {
	g.State, g.EndedAt, g.AlarmAt, g.Next = state, tx.Now, tx.Now, 0
	tx.DB.Groups.Put(*g)
	tx.wakeAt(g.AlarmAt)
	ringGroup(tx, g)
	tx.addFollowUp(followUp{tenant: g.Tenant, group: g.ID})
	_, err := tx.runFollowUps()
	return err
}

// HandleGroupAlarm does what a gathering's alarm rings for: a group's deadline has passed, or a chord or an ended group has
// something left to do.
func (tx *Tx) HandleGroupAlarm(g *perdure.Group) error {
	switch {
	case g.State != perdure.GroupOpen:
		return releaseGroup(tx, g.Tenant, g.ID)
	case g.Kind == perdure.GroupChord:
		return fireChord(tx, g)
	}
	return endGroup(tx, g, perdure.GroupTimedOut)
}

// fireChord writes each result into the thread as a tool's, in child order, and makes the continuation. A chord of many is
// told of in parts: it stays open, with an alarm that rings at once, until the last one is told.
func fireChord(tx *Tx, g *perdure.Group) error {
	orig, err := tx.run(g.Tenant, perdure.RunID(g.ID))
	if err != nil {
		return err
	}
	members, err := tx.DB.Groups.Members(g)
	if err != nil {
		return err
	}
	for first := true; g.Next < len(members) && (first || !tx.OverBudget()); first = false {
		part := members[g.Next:min(g.Next+tx.chunk(), len(members))]
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
		tx.wakeAt(g.AlarmAt)
		return nil
	}
	g.State, g.EndedAt, g.AlarmAt = perdure.GroupSatisfied, tx.Now, 0
	if g.Made, err = createContinuation(tx, &orig, "chord", nil); err != nil {
		return err
	}
	if g.Made == "" {
		g.State = perdure.GroupDropped
	}
	tx.DB.Groups.Put(*g)
	ringGroup(tx, g)
	return nil
}

// appendResults writes the results of some runs of a chord into the thread. A large one is not copied: the message refers to
// where it is stored, and whoever reads the thread gets it in its place.
func appendResults(tx *Tx, orig *perdure.Run, ids []perdure.RunID) error {
	if err := tx.DB.Runs.Load(orig.Tenant, ids); err != nil {
		return err
	}
	var told []perdure.Message
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
			meta = append(meta, resultRef, tx.DB.Values.Share(m.Tenant, string(orig.ThreadID), m.Result))
		}
		told = append(told, perdure.Message{Role: "tool",
			Content:  json.RawMessage(perdure.Object("run_id", string(m.ID), "key", m.JournalKey, "status", string(m.State), "result", m.Result, "error", m.Failure)),
			Metadata: json.RawMessage(perdure.Object(meta...))})
	}
	lines, err := addMessagesOf(tx, orig, told)
	if err != nil || len(lines) == 0 {
		return err
	}
	if *orig, err = tx.run(orig.Tenant, orig.ID); err != nil {
		return err
	}
	return tx.Apply(orig, perdure.MessagesAppended{Lines: lines})
}

// createContinuation makes the run that goes on where an earlier one on the thread ended: same thread, same root,
// no parent, a fresh timeout. It gives no id if the thread is gone.
func createContinuation(tx *Tx, orig *perdure.Run, trigger string, told []perdure.Message) (perdure.RunID, error) {
	if _, ok, err := tx.DB.Threads.Get(orig.Tenant, orig.ThreadID); err != nil || !ok {
		return "", err
	}
	lines, err := addMessagesOf(tx, orig, told)
	if err != nil {
		return "", err
	}
	r := perdure.Run{
		Tenant: orig.Tenant, Kind: orig.Kind, Class: orig.Class, Queue: orig.Queue, Priority: orig.Priority, ThreadID: orig.ThreadID,
		RootID: orig.RootID, ContinuationOf: orig.ID, MaxAttempts: orig.MaxAttempts, Metadata: orig.Metadata,
		Options: perdure.Options{Timeout: orig.Options.Timeout, Process: orig.Options.Process, Webhook: orig.Options.Webhook,
			WebhookLines: orig.Options.WebhookLines},
	}
	// An end must not fail because the greatest timeout has been lowered since.
	r.Options.Timeout = min(r.Options.Timeout, perdure.Duration(tx.e.policy.Timeouts.Of(r.Class).Max))
	input := json.RawMessage(perdure.Object("trigger", trigger, "continuation_of_run_id", string(orig.ID)))
	if err := acceptRun(tx, &r, input, nil, nil, perdure.MultitaskEnqueue); err != nil {
		return "", err
	}
	if *orig, err = tx.run(orig.Tenant, orig.ID); err != nil {
		return "", err
	}
	return r.ID, tx.Apply(orig, perdure.Continued{By: r.ID, Trigger: trigger, Messages: lines})
}

// dropChord forgets the chord of an ended run that is cancelled, and stops the runs of it.
func dropChord(tx *Tx, r *perdure.Run) error {
	g, ok, err := tx.DB.Groups.Get(r.Tenant, perdure.GroupID(r.ID))
	if err != nil || !ok || g.State != perdure.GroupOpen {
		return err
	}
	return endGroup(tx, &g, perdure.GroupDropped)
}

// Continue says that work outside, which a run started, has finished. While the run is live it becomes an
// item in its inbox; if the run has ended, or ends without acknowledging it, a continuation is made. Once
// per run and JobID.
type Continue struct {
	Tenant   perdure.TenantID
	RunID    perdure.RunID
	Trigger  string
	JobID    string
	WorkerID string
	Status   string
	Summary  string

	Made    perdure.RunID // the continuation, if there is one by now
	Created bool          // false: it was said before
}

func (op *Continue) Needs() []store.Ref { return refs(op.Tenant, op.RunID) }

// Do continues.
func (op *Continue) Do(tx *Tx) error {
	op.Made, op.Created = "", false
	if err := perdure.CheckName("job_id", op.JobID); err != nil {
		return err
	}
	for _, f := range [][2]string{{"trigger", op.Trigger}, {"worker_id", op.WorkerID}, {"status", op.Status}, {"result_summary", op.Summary}} {
		if err := perdure.CheckText(f[0], f[1]); err != nil {
			return err
		}
	}
	r, err := tx.run(op.Tenant, op.RunID)
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
		// It was live then: there is a continuation if it ended without having heard.
		made, _, err := tx.DB.Idempotency.Get(op.Tenant, unacknowledgedKey(&r, op.JobID))
		op.Made = perdure.RunID(made.Ref)
		return err
	}
	if _, ok, err := tx.DB.Threads.Get(op.Tenant, r.ThreadID); err != nil {
		return err
	} else if !ok {
		return perdure.Errorf(perdure.CodeRunEnded, "the run has ended and its thread was deleted: there is nothing to go on with")
	}
	op.Created = true
	data := perdure.Object("trigger", op.Trigger, "job_id", op.JobID, "worker_id", op.WorkerID, "status", op.Status, "result_summary", op.Summary)
	if r.State.Live() {
		if err := checkContinueLimit(tx, &r); err != nil {
			return err
		}
		_, err = deliverItem(tx, &r, perdure.Item{Type: perdure.ItemContinue, Name: op.JobID, Data: data})
	} else {
		op.Made, err = createContinuation(tx, &r, "external", []perdure.Message{outsideResult(data)})
	}
	if err != nil {
		return err
	}
	tx.DB.Idempotency.Put(store.KeyRow{Tenant: op.Tenant, Key: continueKey(&r, op.JobID), Ref: string(cmp.Or(op.Made, r.ID)), ExpiresAt: tx.Now.Add(tx.e.policy.IdempotencyTTL)})
	return nil
}

// continueKey leads to the continuation of a run for a job, or to the run itself if it was live when that was said;
// unacknowledgedKey then to the one that its end made.
func continueKey(r *perdure.Run, job string) string { return "continue:" + string(r.ID) + ":" + job }
func unacknowledgedKey(r *perdure.Run, job string) string {
	return "unheard:" + string(r.ID) + ":" + job
}

func outsideResult(data perdure.Value) perdure.Message {
	return perdure.Message{Role: "tool", Content: json.RawMessage(data), Metadata: json.RawMessage(`{"outside":true}`)}
}

// maxContinues is how many ends of work outside a live run keeps in its inbox. Its own end makes one continuation of all
// of them, in one operation.
const maxContinues = 256

// checkContinueLimit refuses one more end of work outside when a run has not acknowledged maxContinues of them.
func checkContinueLimit(tx *Tx, r *perdure.Run) error {
	if r.InboxOpen < maxContinues {
		return nil
	}
	open, err := tx.DB.Inbox.Continues(r, maxContinues)
	if err == nil && len(open) == maxContinues {
		err = perdure.Errorf(perdure.CodeQuota, "the run has %d ends of work outside in its inbox and acknowledged none of them: it takes no more until it does", maxContinues)
	}
	return err
}

// continueUnacknowledged makes the continuation for outside work whose end the ending run was told of and did not
// acknowledge.
func continueUnacknowledged(tx *Tx, r *perdure.Run) error {
	if r.ThreadID == "" {
		return nil // nothing outside can continue it
	}
	items, err := tx.DB.Inbox.Continues(r, perdure.MaxBatch) // a run of an older version may have more than maxContinues
	if err != nil {
		return err
	}
	var told []perdure.Message
	var jobs []string
	for _, i := range items {
		i.Status, i.AlarmAt = perdure.ItemDone, 0
		tx.DB.Inbox.Put(i)
		told, jobs = append(told, outsideResult(i.Data)), append(jobs, i.Name)
	}
	if len(told) == 0 {
		return nil
	}
	if err := tx.Apply(r, perdure.ItemsContinued{Count: len(told)}); err != nil {
		return err
	}
	made, err := createContinuation(tx, r, "external", told)
	if err != nil || made == "" {
		return err
	}
	for _, job := range jobs {
		tx.DB.Idempotency.Put(store.KeyRow{Tenant: r.Tenant, Key: unacknowledgedKey(r, job), Ref: string(made), ExpiresAt: tx.Now.Add(tx.e.policy.IdempotencyTTL)})
	}
	return nil
}

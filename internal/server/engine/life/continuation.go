package life

import (
	"cmp"
	"encoding/json"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// maxWatchers bounds how many gatherings may wait for one run, because the run's end writes a row
// for each.
const maxWatchers = 100

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
			WebhookLines: orig.Options.WebhookLines,
			Limits:       orig.Options.Limits},
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

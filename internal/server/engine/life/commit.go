package life

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// Commit applies what a worker reports about a run, all of it or nothing: journal entries,
// children, waits, messages, events, views, acknowledged inbox items and, last, an outcome.
//
// The commit_id is looked up before the epoch is checked, so a repeated commit gets its first
// answer. A complete that comes too late is refused, and its result is kept as a late result.
type Commit struct {
	Tenant perdure.TenantID
	Worker string
	Commit perdure.Commit
	// Quiet says that the server commits output of a process that it does not hear. It has events and
	// views alone, and is no sign of life. It is taken after the run's end, too.
	Quiet bool

	Answer CommitAnswer
	// Refused is set together with a late result. The refusal is the answer, and is stored, so it
	// is not an error of Do.
	Refused *perdure.Error

	// checked is the commit with its defaults filled in.
	checked perdure.Commit
	digest  string
	invalid error
}

// prepare validates the commit and computes its digest.
func (op *Commit) Prepare() {
	op.checked = op.Commit
	c := &op.checked
	if op.invalid = c.Validate(); op.invalid != nil {
		return
	}
	if op.invalid = perdure.CheckEpoch("epoch", c.Epoch); op.invalid != nil {
		return
	}
	var body []byte
	body, op.invalid = json.Marshal(c)
	op.digest = store.Digest(string(body))
	if op.invalid == nil {
		op.hashActions()
	}
}

// hashActions computes the hashes of the actions that the commit asks about, so that Do need not.
func (op *Commit) hashActions() {
	c := &op.checked
	if !slices.ContainsFunc(c.Waits, func(w perdure.WaitSpec) bool { return w.Approval != nil }) {
		return
	}
	c.Waits = slices.Clone(c.Waits) // the caller has the others
	for i := range c.Waits {
		if w := &c.Waits[i]; w.Approval != nil && op.invalid == nil {
			w.Approval, op.invalid = w.Approval.Hashed()
		}
	}
}

func (op *Commit) Needs() []store.Ref { return kernel.Refs(op.Tenant, op.Commit.RunID) }

// Lookups names the rows that every commit reads: an earlier commit with its id, and the steps that
// it records. The store reads those of a whole batch at once.
func (op *Commit) Lookups() []store.Lookup {
	c := &op.Commit
	look := store.Lookup{Ref: store.Ref{Tenant: op.Tenant, Run: c.RunID}, Commit: c.ID,
		Steps: make([]string, len(c.Journal))}
	// A text that the database can't hold would fail the look-up of the whole batch. Do refuses it.
	if perdure.CheckText("commit_id", c.ID) != nil {
		return nil
	}
	for i, e := range c.Journal {
		if perdure.CheckText("key", e.Key) != nil {
			return nil
		}
		look.Steps[i] = e.Key
	}
	return []store.Lookup{look}
}

// Do applies the commit, or repeats the first answer.
func (op *Commit) Do(tx *kernel.Tx) error {
	op.Answer, op.Refused = CommitAnswer{}, nil
	if op.invalid != nil {
		return op.invalid
	}
	c, digest := op.checked, op.digest
	r, err := tx.Run(op.Tenant, c.RunID)
	if err != nil {
		return err
	}
	if err := RecordWorkerSeen(tx, op.Tenant, op.Worker); err != nil {
		return err
	}
	before, ok, err := tx.DB.Commits.Answer(&r, c.ID)
	if err != nil {
		return err
	}
	if ok {
		if before.Digest != digest {
			return perdure.Errorf(perdure.CodeReused, "this commit_id was used with another body")
		}
		if err := json.Unmarshal([]byte(before.Answer), &op.Answer); err != nil {
			return perdure.Errorf(perdure.CodeInternal, "the answer of the first time can't be read")
		}
		op.Refused = op.Answer.Error
		return nil
	}
	if op.Quiet && r.State.Terminal() {
		return op.keepOutput(tx, &r)
	}
	if _, _, err := tx.Engine.Policy().Apply(r, perdure.Started{Epoch: c.Epoch}, tx.Now); err != nil {
		return op.refuse(tx, &r, err)
	}
	ans := CommitAnswer{RunID: r.ID, OK: true}
	if err := recordCommit(tx, &r, &c, &ans, op.Quiet); err != nil {
		return err
	}
	if c.Outcome != nil {
		if err := concludeCommit(tx, &r, &c); err != nil {
			return err
		}
	}
	ans.State, ans.Cancel = r.State, r.State.Live() && r.Cancel.Pending()
	op.Answer = ans
	return rememberCommit(tx, &r, c.ID, digest, &ans)
}

// refuse answers a commit of an epoch that does not hold the run. The result of a complete is kept
// as a late result, and the refusal is stored as the answer. A commit without a result gets an
// error.
func (op *Commit) refuse(tx *kernel.Tx, r *perdure.Run, err error) error {
	c := &op.checked
	completes := c.Outcome != nil && c.Outcome.Type == perdure.OutcomeComplete
	wasGranted := c.Epoch <= r.Epoch || wasRestored(r) || c.Epoch < tx.DB.EpochFloor()
	if perdure.CodeOf(err) != perdure.CodeStaleEpoch || !completes || !wasGranted {
		return err
	}
	op.Refused = err.(*perdure.Error)
	late := perdure.LateResult{CommitID: c.ID, Epoch: c.Epoch, Worker: op.Worker, Summary: c.Outcome.Summary}
	kept, err := keepLateResult(tx, r, late, c.Outcome.Result)
	if err != nil || !kept {
		return err
	}
	op.Answer = CommitAnswer{RunID: r.ID, Error: op.Refused}
	return rememberCommit(tx, r, c.ID, op.digest, &op.Answer)
}

// keepOutput adds output to the log of an ended process, whose runner did not send it.
func (op *Commit) keepOutput(tx *kernel.Tx, r *perdure.Run) error {
	c := &op.checked
	kept := perdure.OutputKept{Epoch: c.Epoch}
	for _, e := range c.Events {
		data := tx.DB.Values.InternShown(r.Tenant, string(r.ID), tx.Engine.Secrets.Values(e.Data))
		kept.Lines = append(kept.Lines, perdure.Line{Type: e.Type, Data: data})
	}
	if err := publishViews(tx, r, c.Views); err != nil {
		return err
	}
	if err := tx.Apply(r, kept); err != nil {
		return err
	}
	op.Answer = CommitAnswer{RunID: r.ID, OK: true, State: r.State}
	return rememberCommit(tx, r, c.ID, op.digest, &op.Answer)
}

// rememberCommit stores the answer, so that a repeated commit gets the same.
func rememberCommit(tx *kernel.Tx, r *perdure.Run, id, digest string, ans *CommitAnswer) error {
	text, err := json.Marshal(ans)
	if err != nil {
		return err
	}
	return tx.DB.Commits.Put(r.Tenant, r.ID, perdure.Taken{ID: id, Digest: digest, Answer: string(text)})
}

// recordCommit applies everything of a commit but its outcome. It starts a run that was only
// dispatched.
func recordCommit(tx *kernel.Tx, r *perdure.Run, c *perdure.Commit, ans *CommitAnswer, quiet bool) error {
	if r.State == perdure.Dispatched && (c.Outcome == nil || c.Outcome.Type != perdure.OutcomeReject) {
		first := r.StartedAt == 0
		if err := tx.Apply(r, perdure.Started{Epoch: c.Epoch}); err != nil {
			return err
		}
		if first {
			if err := NotifyParentStarted(tx, r); err != nil {
				return err
			}
		}
	}
	// A rejected run has not started, so its commit can hold nothing else.
	if r.State == perdure.Dispatched {
		if len(c.Journal)+len(c.Children)+len(c.Waits)+len(c.Messages)+len(c.Events)+len(c.Ack)+
			len(c.Views)+len(c.Cancel)+len(c.Limits) > 0 {
			return perdure.Invalid("outcome", "a reject before the start stands alone")
		}
		return nil
	}
	ev := perdure.Committed{Epoch: c.Epoch, CancelAck: c.CancelAck, Quiet: quiet,
		Defect: c.Outcome != nil && c.Outcome.Defect}
	var err error
	if ev.Journal, ev.Reports, err = recordSteps(tx, r, c.Journal); err != nil {
		return err
	}
	if ev.Acked, err = acknowledgeItems(tx, r, c.Ack); err != nil {
		return err
	}
	spawned, err := spawnChildren(tx, r, c.Children, ans)
	if err != nil {
		return err
	}
	ev.Children = len(spawned)
	ev.Lines = spawned
	messages, err := addMessagesOf(tx, r, c.Messages)
	if err != nil {
		return err
	}
	if len(c.Messages) > 0 && messages == nil {
		return perdure.Invalid("messages", "a run without a thread writes no messages")
	}
	ev.Lines = append(ev.Lines, messages...)
	var events []perdure.Emitted
	if events, ev.Withheld, err = kernel.RedactCommit(tx, r, c.Events, c.Outcome); err != nil {
		return err
	}
	for _, e := range events {
		data := tx.DB.Values.InternShown(r.Tenant, string(r.ID), e.Data)
		if e.Type == perdure.LineProgress {
			v := tx.DB.Values.Intern(r.Tenant, string(r.ID), e.Data)
			// The last commit repeats the progress of a heartbeat, in case that heartbeat was lost.
			if c.Outcome != nil && r.HasTold(v) {
				continue
			}
			ev.Progress = v
		}
		ev.Lines = append(ev.Lines, perdure.Line{Type: e.Type, Data: data})
	}
	if err := publishViews(tx, r, c.Views); err != nil {
		return err
	}
	if err := tx.Apply(r, ev); err != nil {
		return err
	}
	if err := returnSlots(tx, r, c.Journal); err != nil {
		return err
	}
	if err := closeLimits(tx, r.Tenant, c.Limits); err != nil {
		return err
	}
	return questionsTogether(tx, r, func() error { return changeWaits(tx, r, c, ans) })
}

// changeWaits closes and opens the waits of a commit, and cancels its children.
func changeWaits(tx *kernel.Tx, r *perdure.Run, c *perdure.Commit, ans *CommitAnswer) error {
	if err := withdrawWaits(tx, r, c.Close); err != nil {
		return err
	}
	if err := cancelChildren(tx, r, c.Cancel); err != nil {
		return err
	}
	for i := range c.Waits {
		if err := openWait(tx, r, &c.Waits[i], ans); err != nil {
			return fieldOf(err, fmt.Sprintf("waits[%d]", i))
		}
	}
	return nil
}

// recordSteps adds journal entries. An entry that exists with the same value is skipped; with
// another value it is refused as nondeterminism.
func recordSteps(tx *kernel.Tx, r *perdure.Run, entries []perdure.JournalEntry) (added, said int, err error) {
	if len(entries) == 0 {
		return 0, 0, nil
	}
	keys := make([]string, len(entries))
	for i, e := range entries {
		keys[i] = e.Key
	}
	have, err := tx.DB.Journal.Recorded(r.Tenant, r.ID, keys)
	if err != nil {
		return 0, 0, err
	}
	for _, e := range entries {
		digest := store.Digest(string(e.Value))
		if before, ok := have[e.Key]; ok {
			if before != digest {
				return 0, 0, perdure.Errorf(perdure.CodeNondeterminism, "step %q is recorded with another result",
					e.Key)
			}
			continue
		}
		added++
		if strings.HasPrefix(e.Key, perdure.ReportsPrefix) {
			said++
		}
		tx.DB.Journal.Put(store.JournalRow{Tenant: r.Tenant, RunID: r.ID, Seq: r.JournalSeq + int64(added), Key: e.Key,
			Value: tx.DB.Values.Intern(r.Tenant, string(r.ID), e.Value), Digest: digest, At: tx.Now})
	}
	return added, said, nil
}

// acknowledgeItems marks inbox items as done. They must have been handed over under the current
// epoch.
func acknowledgeItems(tx *kernel.Tx, r *perdure.Run, seqs []int64) (done int, err error) {
	if len(seqs) == 0 {
		return 0, nil
	}
	for _, seq := range seqs {
		if seq < 1 || seq > r.InboxSeq {
			return 0, perdure.Invalid("ack", "there is no inbox item %d", seq)
		}
	}
	items, err := tx.DB.Inbox.Get(r, seqs)
	if err != nil {
		return 0, err
	}
	for _, seq := range seqs {
		i, ok := items[seq]
		switch {
		case !ok || i.Status == perdure.ItemDone || i.Status == perdure.ItemSkipped:
			continue
		case i.Epoch != r.Epoch:
			return 0, perdure.Invalid("ack", "inbox item %d was not handed over under this epoch", seq)
		}
		i.Status, i.AlarmAt = perdure.ItemDone, 0
		tx.DB.Inbox.Put(i)
		items[seq] = i
		done++
	}
	return done, nil
}

// concludeCommit applies a commit's outcome.
func concludeCommit(tx *kernel.Tx, r *perdure.Run, c *perdure.Commit) error {
	o := c.Outcome
	switch o.Type {
	case perdure.OutcomeComplete:
		if err := noteRead(tx, r, o.ReadSeq); err != nil {
			return err
		}
		if len(o.ContinueOn) > 0 {
			if err := openChord(tx, r, o.ContinueOn); err != nil {
				return err
			}
			var err error
			// A chord that is satisfied already has continued the run.
			if *r, err = tx.Run(r.Tenant, r.ID); err != nil {
				return err
			}
		}
		if o.ContinueWith != nil {
			if err := continueAnew(tx, r, o.ContinueWith); err != nil {
				return fieldOf(err, "outcome.continue_with")
			}
		}
		return Finish(tx, r, perdure.Done{Epoch: c.Epoch, Result: tx.DB.Values.Intern(r.Tenant, string(r.ID), o.Result),
			Shown: tx.DB.Values.InternShown(r.Tenant, string(r.ID), o.Result), Summary: o.Summary})
	case perdure.OutcomeFail:
		switch {
		case o.Defect:
			return holdRun(tx, r, c.Epoch, *o.Error)
		case o.Error.Code == perdure.CodeWaitTimeout:
			return Finish(tx, r, perdure.WaitFailed{Epoch: c.Epoch, Failure: *o.Error})
		case o.Retryable != nil && !*o.Retryable:
			return Finish(tx, r, perdure.FailedForGood{Epoch: c.Epoch, Failure: *o.Error})
		}
		return RetryOrFail(tx, r, c.Epoch, *o.Error)
	case perdure.OutcomeCancelled:
		if r.Cancel.RequestedAt == 0 {
			return &perdure.Error{Code: perdure.CodeOutcome, Field: "outcome.type",
				Message: "nobody asked this run to stop: fail it or complete it"}
		}
		return Finish(tx, r, perdure.CancelConfirmed{Epoch: c.Epoch})
	case perdure.OutcomeSuspend:
		return suspendRun(tx, r, c)
	case perdure.OutcomeReject:
		why := perdure.Failure{Code: perdure.CodeRejected, Message: o.Reason}
		if o.Reason == string(perdure.CodeSignatureInvalid) {
			why = perdure.Failure{Code: perdure.CodeSignatureInvalid,
				Message: "the worker could not verify the run's signature"}
		}
		return Finish(tx, r, perdure.Rejected{Epoch: c.Epoch, Failure: why})
	}
	return perdure.Invalid("outcome.type", "%q is unknown", o.Type)
}

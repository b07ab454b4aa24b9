package perdure

import "slices"

// This file has the events that leave the state of a run as it is: facts about its waits, its inbox,
// its children, its thread, its late results and its waiters.
//
// Some of these events change no field. They are applied because every event raises the version of
// the run's row, and the row guards other rows: of two writers that read the same version, only one
// succeeds, and the other decides again.

// ---- waits

// WaitOpened records that a commit has opened a wait.
type WaitOpened struct {
	Wait Wait
	// Approval is the approval that the wait asks for. It is empty for waits of another type.
	Approval Approval
	// Limits are what the step of a limit wait takes.
	Limits []LimitTake
}

func (e WaitOpened) apply(_ *Policy, r *Run, _ Instant, log *history) {
	r.WaitsOpen++
	w, a := &e.Wait, &e.Approval
	if len(e.Limits) > 0 {
		r.Wants = append(slices.Clone(r.Wants), StepWant{Wait: w.ID, Step: w.Name, Limits: e.Limits})
	}
	log.add(LineWaitOpened, object("wait_id", w.ID, "type", w.Type, "mode", w.Mode, "name", w.Name,
		"timeout_at", w.TimeoutAt, "approval_id", string(a.ID), "title", a.Title, "action_hash", a.ActionHash,
		"approvers", a.Approvers))
}

// WaitEnded records that an open wait is satisfied, timed out, stalled or orphaned: see Wait.State.
type WaitEnded struct {
	Wait Wait
	// Approval is the approval that the wait asked for. It is empty for waits of another type.
	Approval Approval
}

func (e WaitEnded) apply(_ *Policy, r *Run, _ Instant, log *history) {
	r.WaitsOpen--
	w, a := &e.Wait, &e.Approval
	if w.Type == WaitLimit {
		r.Wants = wantEnded(r.Wants, w.ID, w.State == WaitSatisfied)
	}
	line := LineWaitSatisfied
	if w.State == WaitTimedOut {
		line = LineWaitTimedOut
	}
	log.add(line, object("wait_id", w.ID, "name", w.Name, "outcome", w.State, "approval_id", string(a.ID),
		"decision", a.Decision(), "by", a.DecidedBy, "comment", a.Comment))
}

// WaitWithdrawn records that a commit has closed a wait.
type WaitWithdrawn struct {
	WaitID string
	// Returned is set if the wait was satisfied, and not open any more: the number of the inbox item
	// that had satisfied it and may satisfy another wait.
	Returned int64
}

func (e WaitWithdrawn) apply(_ *Policy, r *Run, _ Instant, log *history) {
	if e.Returned != 0 {
		log.add(LineWaitClosed, object("wait_id", e.WaitID, "returned", e.Returned))
		return
	}
	r.WaitsOpen--
	r.Wants = wantEnded(r.Wants, e.WaitID, false)
	log.add(LineWaitClosed, object("wait_id", e.WaitID))
}

// WaitsClosed records that the open waits of a run are closed because it is about to end.
type WaitsClosed struct{ Count int }

func (e WaitsClosed) apply(_ *Policy, r *Run, _ Instant, _ *history) {
	r.WaitsOpen -= e.Count
	r.Wants = nil
}

// WaitClockReset sets the clock of a suspended run to the first timeout of its open waits.
type WaitClockReset struct{ At Instant } // zero if none of them has a timeout

func (e WaitClockReset) apply(_ *Policy, r *Run, _ Instant, _ *history) { r.WaitAt = e.At }

// CallbackRefused keeps a callback in the log that came after its wait was over.
type CallbackRefused struct {
	WaitID string
	Shown  Value // the callback's body as the log shows it
}

func (e CallbackRefused) apply(_ *Policy, _ *Run, _ Instant, log *history) {
	log.add(LineWaitClosed, object("wait_id", e.WaitID, "too_late", e.Shown))
}

// ---- inbox

// ItemArrived records that the inbox has one more item. The end of a child is ChildEnded.
type ItemArrived struct{}

func (ItemArrived) apply(_ *Policy, r *Run, _ Instant, _ *history) { addItem(r) }

// addItem counts a new item of the inbox.
func addItem(r *Run) {
	r.InboxSeq++
	r.InboxOpen++
}

// ItemsHandedOver records that the holder reads more of the inbox. It changes no field: the row
// guards the items, so that nobody takes the run away at the same moment.
type ItemsHandedOver struct{}

func (ItemsHandedOver) apply(*Policy, *Run, Instant, *history) {}

// ItemReclaimed records that an item of an epoch that the run never had is pending again. It
// changes no field: of two nodes that find the item, one repairs it.
type ItemReclaimed struct{}

func (ItemReclaimed) apply(*Policy, *Run, Instant, *history) {}

// ItemsContinued records that items are done because the run is about to end without having
// acknowledged them. They tell of outside work, and a continuation takes them over.
type ItemsContinued struct{ Count int }

func (e ItemsContinued) apply(_ *Policy, r *Run, _ Instant, _ *history) { r.InboxOpen -= e.Count }

// ItemExpired records that an item of an ended run, unread for long, is skipped.
type ItemExpired struct{}

func (ItemExpired) apply(_ *Policy, r *Run, _ Instant, _ *history) { r.InboxOpen-- }

// ---- children and gatherings

// ChildStarted records on the parent that a child has started.
type ChildStarted struct {
	Child  RunID
	Worker string
}

func (e ChildStarted) apply(_ *Policy, _ *Run, _ Instant, log *history) {
	log.add(LineWorkerStarted, object("job_id", string(e.Child), "worker_id", e.Worker))
}

// ChildEnded records on the parent that a child has ended. The inbox has one more item.
type ChildEnded struct {
	Child   RunID
	State   State
	Summary string
	Failure *Failure // nil if it has completed
}

func (e ChildEnded) apply(_ *Policy, r *Run, _ Instant, log *history) {
	addItem(r)
	log.add(LineWorkerCompleted, object("job_id", string(e.Child), "status", string(e.State),
		"result_summary", e.Summary, "error", e.Failure))
}

// QuestionsBelow records on the root that runs below it ask people, or that such questions are over.
type QuestionsBelow struct {
	Asked, Answered []Question
}

// A Question is an approval of a run below.
type Question struct {
	RunID      RunID
	Kind       string // the run's kind
	WaitID     string
	ApprovalID ApprovalID
	Title      string
	Approvers  ApprovalApprovers
	// State is that of an approval that is over.
	State ApprovalState
}

// MaxQuestionLines bounds the lines that one event writes for questions. The rest of them stands in one
// line, as a count.
const MaxQuestionLines = 100

func (e QuestionsBelow) apply(_ *Policy, _ *Run, _ Instant, log *history) {
	left := MaxQuestionLines
	for _, q := range e.Answered[:min(left, len(e.Answered))] {
		log.add(LineWorkerAnswered, object("run_id", string(q.RunID), "kind", q.Kind, "wait_id", q.WaitID,
			"approval_id", string(q.ApprovalID), "outcome", string(q.State)))
	}
	if n := len(e.Answered) - left; n > 0 {
		log.add(LineWorkerAnswered, object("count", n))
	}
	left -= min(left, len(e.Answered))
	for _, q := range e.Asked[:min(left, len(e.Asked))] {
		approvers := q.Approvers
		if approvers == "" {
			approvers = ApproversTenant
		}
		log.add(LineWorkerAsks, object("run_id", string(q.RunID), "kind", q.Kind, "wait_id", q.WaitID,
			"approval_id", string(q.ApprovalID), "title", q.Title, "approvers", string(approvers)))
	}
	if n := len(e.Asked) - left; n > 0 {
		log.add(LineWorkerAsks, object("count", n))
	}
}

// CascadeAdvanced records how far the live children of an ended run have been asked to stop.
type CascadeAdvanced struct {
	More  bool   // some children remain
	After string // with More: the children up to this journal key are done
}

func (e CascadeAdvanced) apply(_ *Policy, r *Run, _ Instant, _ *history) {
	r.Cascade, r.Stopped = e.More, ""
	if e.More {
		r.Stopped = e.After
	}
}

// Gathered records that a chord or a group counts the end of the run.
type Gathered struct{ Outlives bool } // from now on the run may outlive its parent

func (e Gathered) apply(_ *Policy, r *Run, _ Instant, _ *history) {
	r.Counted = true
	if e.Outlives {
		r.Options.OnParentEnd = DispositionContinue
	}
}

// ---- thread

// MessagesAppended records that messages of the run were appended to its thread.
type MessagesAppended struct{ Lines []Line } // one line for each message

func (e MessagesAppended) apply(_ *Policy, _ *Run, _ Instant, log *history) { log.addAll(e.Lines) }

// Continued records that a continuation of the run was made.
type Continued struct {
	By       RunID
	Trigger  string
	Messages []Line // the messages that the thread was told for it
	Items    int    // signals and messages of the inbox that it takes over
}

func (e Continued) apply(_ *Policy, r *Run, _ Instant, log *history) {
	r.ContinuedBy = e.By
	log.addAll(e.Messages)
	var items any // left out if there are none
	if e.Items > 0 {
		items = e.Items
	}
	log.add(LineContinued, object("continued_by_run_id", string(e.By), "trigger", e.Trigger, "items", items))
}

// ---- late results and fallbacks

// LateResultKept records that a result that came too late is kept beside the run.
type LateResultKept struct{ Late LateResult }

func (e LateResultKept) apply(_ *Policy, r *Run, _ Instant, log *history) {
	r.Late++
	l := &e.Late
	log.add(LineLateResult, object("n", l.N, "epoch", l.Epoch, "of_attempt", l.Attempt, "worker_id", l.Worker,
		"from_run_id", string(l.FromRun), "result_summary", l.Summary))
}

// LateResultDiscarded records that a late result is discarded.
type LateResultDiscarded struct{ N int }

func (e LateResultDiscarded) apply(_ *Policy, _ *Run, _ Instant, log *history) {
	log.add(LineLateResult, object("n", e.N, "discarded", true))
}

// LateResultAdopted replaces the deliverable of an ended run by a late result. A live run is
// completed with it instead: see Adopted.
type LateResultAdopted struct {
	N        int
	Result   Value
	Summary  string
	Messages []Line // the messages that the thread was told for it
}

func (e LateResultAdopted) apply(_ *Policy, r *Run, _ Instant, log *history) {
	r.Result, r.Summary = e.Result, e.Summary
	log.addAll(e.Messages)
	log.add(LineLateResult, object("n", e.N, "adopted", true))
}

// OutputKept adds output of a process to the log of its run that ended while its runner held it: the
// runner hangs, or was told too late. The server has read it from the files of the process.
type OutputKept struct {
	Epoch int64 // of the execution that wrote it
	Lines []Line
}

func (e OutputKept) allowed(_ *Policy, r *Run, _ Instant) bool {
	return r.Options.Process && (e.Epoch == r.Epoch || e.Epoch == r.Epoch-1)
}

func (e OutputKept) apply(_ *Policy, _ *Run, _ Instant, log *history) { log.addAll(e.Lines) }

// FindingsListed adds the traces of its work to the fallback of a run that ended without a result.
type FindingsListed struct {
	NotUndone []string   // saga steps that were not undone
	Text      string     // the end of its streamed text
	Artifacts []Artifact // the artifacts that it left
}

func (e FindingsListed) apply(_ *Policy, r *Run, _ Instant, _ *history) {
	if len(e.NotUndone) > 0 {
		r.Fallback = r.Fallback.with("not_undone", e.NotUndone)
	}
	if e.Text != "" {
		r.Fallback = r.Fallback.with("partial_text", e.Text)
	}
	if len(e.Artifacts) > 0 {
		r.Fallback = r.Fallback.with("artifacts", leftOf(e.Artifacts))
	}
}

// ---- waiters, repetitions, repairs

// WaiterAttached records that callers on one more node wait for the run. It changes no field: a node
// that finds at the same moment that nobody waits looks again.
type WaiterAttached struct{}

func (WaiterAttached) apply(*Policy, *Run, Instant, *history) {}

// WaiterLeft records that callers on a node wait no longer, while others do. It changes no field: of
// two nodes that leave at the same moment, the second looks again and finds that it is the last.
type WaiterLeft struct{}

func (WaiterLeft) apply(*Policy, *Run, Instant, *history) {}

// Repeated records that a new run with the input of this one was made: a retry, or a dead letter that
// was redriven. It changes no field: two calls at the same moment make one run of a dead letter, and
// a removal finds that the run is needed. It is allowed in every state, because a redrive looks at
// the dead letter alone. A cached row that does not show the end yet fails by its version.
type Repeated struct{}

func (Repeated) apply(*Policy, *Run, Instant, *history) {}

// AlarmRepaired records that the alarm of a live run was missing or too late. Apply sets it, as it
// does after every event.
type AlarmRepaired struct{}

func (AlarmRepaired) apply(*Policy, *Run, Instant, *history) {}

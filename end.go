package perdure

import (
	"cmp"
	"fmt"
)

// This file has the events that end a run, and their effects. event.go has the others.

// Done completes a run with its worker's result.
type Done struct {
	Epoch   int64
	Result  Value
	Shown   Value // the result as the log shows it: shortened if it is large
	Summary string
}

func (e Done) presents() int64 { return e.Epoch }

func (e Done) apply(_ *Policy, r *Run, now Instant, log *history) {
	r.Result, r.Summary = e.Result, e.Summary
	log.add(LineCompleted, object("result", e.Shown, "result_summary", e.Summary,
		"duration_ms", now.Sub(r.CreatedAt).Milliseconds(), "deliverable_id", r.DeliverableID()))
}

// Adopted completes a live run with a late result.
type Adopted struct {
	N       int
	Result  Value
	Shown   Value
	Summary string
}

func (e Adopted) apply(p *Policy, r *Run, now Instant, log *history) {
	p.raiseEpoch(r)
	r.Result, r.Summary = e.Result, e.Summary
	log.add(LineCompleted, object("result", e.Shown, "result_summary", e.Summary, "adopted", e.N,
		"duration_ms", now.Sub(r.CreatedAt).Milliseconds(), "deliverable_id", r.DeliverableID()))
}

// endWithout ends a run that has no result, and writes a fallback from its last known progress.
// revoke raises the epoch, so that a worker that still holds the run is fenced out.
func (p *Policy) endWithout(r *Run, why Failure, revoke bool, line LineType, log *history) {
	if revoke {
		p.raiseEpoch(r)
	}
	r.Failure = &why
	r.Fallback = object("reason", string(why.Code), "message", why.Message, "activity", r.Activity,
		"partial", r.Progress, "attempts", r.Attempt, "journal_entries", r.JournalSeq, "seen_at", r.SeenAt)
	data := []any{"error", why, "deliverable_id", r.DeliverableID()}
	if line == LineTimedOut {
		r.Fallback = r.Fallback.with("deadline_at", r.DeadlineAt) // for the parent, which reads the fallback
		data = append(data, "deadline_at", r.DeadlineAt, "started_at", r.StartedAt, "parent_run_id", string(r.ParentID))
	}
	log.add(line, object(data...))
}

// FailedForGood ends a run whose failure is not retried.
type FailedForGood struct {
	Epoch   int64
	Failure Failure
}

func (e FailedForGood) presents() int64 { return e.Epoch }

func (e FailedForGood) apply(p *Policy, r *Run, _ Instant, log *history) {
	p.endWithout(r, e.Failure, false, LineFailed, log)
}

// WaitFailed ends a run whose agent did not handle the timeout of a wait.
type WaitFailed struct {
	Epoch   int64
	Failure Failure
}

func (e WaitFailed) presents() int64 { return e.Epoch }

func (e WaitFailed) apply(p *Policy, r *Run, _ Instant, log *history) {
	p.endWithout(r, e.Failure, false, LineTimedOut, log)
}

// Corrupted ends a run whose stored row is corrupted.
type Corrupted struct{ Failure Failure }

func (e Corrupted) apply(p *Policy, r *Run, _ Instant, log *history) {
	log.add(LineDeadLettered, object("cause", e.Failure.Code))
	p.endWithout(r, e.Failure, true, LineFailed, log)
}

// Rejected ends a run that a worker refuses to execute, for example because its signature is
// invalid.
type Rejected struct {
	Epoch   int64
	Failure Failure
}

func (e Rejected) presents() int64 { return e.Epoch }

func (e Rejected) apply(p *Policy, r *Run, _ Instant, log *history) {
	log.add(LineDeadLettered, object("cause", e.Failure.Code))
	p.endWithout(r, e.Failure, false, LineFailed, log)
}

// CancelConfirmed ends a run whose holder reports that it has stopped.
type CancelConfirmed struct{ Epoch int64 }

func (e CancelConfirmed) presents() int64 { return e.Epoch }

func (e CancelConfirmed) allowed(_ *Policy, r *Run, _ Instant) bool {
	return r.Cancel.RequestedAt != 0
}

func (e CancelConfirmed) apply(p *Policy, r *Run, now Instant, log *history) {
	ackCancel(r, true, now)
	p.endWithout(r, Failure{Code: CodeCancelled, Message: r.Cancel.Reason}, false, LineCancelled, log)
}

// CancelEnforced ends a run after a cancel request without a confirmation from its holder.
type CancelEnforced struct {
	Why string
	// Code is that of the failure. Default: CodeCancelled.
	Code Code
}

func (e CancelEnforced) allowed(_ *Policy, r *Run, _ Instant) bool {
	return r.Cancel.RequestedAt != 0
}

func (e CancelEnforced) apply(p *Policy, r *Run, _ Instant, log *history) {
	why := e.Why
	if why == "" {
		why = r.Cancel.Reason
	}
	p.endWithout(r, Failure{Code: cmp.Or(e.Code, CodeCancelled), Message: why}, true, LineCancelled, log)
}

// DeadlineMessage begins the message of a run that ended at its deadline. A thread shows it alone.
const DeadlineMessage = "the run was not done by its deadline"

// DeadlinePassed ends a run at its deadline.
type DeadlinePassed struct {
	// Waited says why it was not executed, if its queue is paused or it was never granted because no worker
	// polls for its kind.
	Waited string
}

func (DeadlinePassed) allowed(_ *Policy, r *Run, now Instant) bool { return now >= r.DeadlineAt }

func (e DeadlinePassed) apply(p *Policy, r *Run, _ Instant, log *history) {
	why := Failure{Code: CodeDeadline, Message: DeadlineMessage}
	if e.Waited != "" {
		why.Message += ": " + e.Waited
	}
	p.endWithout(r, why, true, LineTimedOut, log)
}

// Reaped ends a running run without a sign of life for active_reap, whatever its lease says.
type Reaped struct{}

func (Reaped) allowed(p *Policy, r *Run, now Instant) bool {
	return now >= r.SeenAt.Add(p.reapAfter(r))
}

func (Reaped) apply(p *Policy, r *Run, _ Instant, log *history) {
	p.endWithout(r, Failure{Code: CodeReaped, Message: "no sign of life for " + p.reapAfter(r).String()}, true,
		LineFailed, log)
}

// Orphaned ends a run whose queue, thread, tenant or parent no longer exists.
type Orphaned struct{ Missing string }

func (e Orphaned) apply(p *Policy, r *Run, _ Instant, log *history) {
	why := Failure{Code: CodeOrphaned, Message: "its " + e.Missing + " no longer exists"}
	p.endWithout(r, why, true, LineFailed, log)
}

// NeverClaimed ends a process that only its own runner may take, and that has none: whoever submitted
// it is gone.
type NeverClaimed struct{}

func (NeverClaimed) allowed(p *Policy, r *Run, now Instant) bool {
	return r.Local() && r.Ready && now >= r.ReadyAt.Add(p.LocalClaim)
}

func (NeverClaimed) apply(p *Policy, r *Run, _ Instant, log *history) {
	log.add(LineDeadLettered, object("cause", CodeDispatchTimeout))
	p.endWithout(r, Failure{Code: CodeDispatchTimeout,
		Message: "its runner did not take it; start it again with: perdure exec --again " + string(r.ID)},
		true, LineTimedOut, log)
}

// NeverStarted ends a run that was granted MaxGrants times without a sign of life from a
// worker.
type NeverStarted struct{}

func (NeverStarted) allowed(p *Policy, r *Run, _ Instant) bool {
	return !r.HolderSeen && r.Grants >= p.MaxGrants
}

func (NeverStarted) apply(p *Policy, r *Run, _ Instant, log *history) {
	log.add(LineDeadLettered, object("cause", CodeDispatchTimeout))
	message := fmt.Sprintf("%d workers in a row took it and were not heard from", r.Grants)
	p.endWithout(r, Failure{Code: CodeDispatchTimeout, Message: message}, true, LineTimedOut, log)
}

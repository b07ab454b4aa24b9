package perdure

import "fmt"

// The events that end a run; see event.go for the others.

// Done completes a run.
type Done struct {
	Epoch   int64
	Result  Value
	Shown   Value // the result as the log shows it
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

func (e Adopted) apply(_ *Policy, r *Run, now Instant, log *history) {
	r.Epoch++
	r.Result, r.Summary = e.Result, e.Summary
	log.add(LineCompleted, object("result", e.Shown, "result_summary", e.Summary, "adopted", e.N,
		"duration_ms", now.Sub(r.CreatedAt).Milliseconds(), "deliverable_id", r.DeliverableID()))
}

// endWithout ends a run that has no result: it hands over what is known instead.
func endWithout(r *Run, why Failure, taken bool, line string, log *history) {
	if taken {
		r.Epoch++
	}
	r.Failure = &why
	r.Fallback = object("reason", string(why.Code), "message", why.Message, "activity", r.Activity,
		"partial", r.Progress, "attempts", r.Attempt, "journal_entries", r.JournalSeq, "seen_at", r.SeenAt)
	data := []any{"error", why, "deliverable_id", r.DeliverableID()}
	if line == LineTimedOut {
		r.Fallback = r.Fallback.with("deadline_at", r.DeadlineAt) // a parent is told by when it should have been done
		data = append(data, "deadline_at", r.DeadlineAt, "started_at", r.StartedAt, "parent_run_id", string(r.ParentID))
	}
	log.add(line, object(data...))
}

// FailedForGood is a failure that is not retried.
type FailedForGood struct {
	Epoch   int64
	Failure Failure
}

func (e FailedForGood) presents() int64 { return e.Epoch }

func (e FailedForGood) apply(_ *Policy, r *Run, _ Instant, log *history) {
	endWithout(r, e.Failure, false, LineFailed, log)
}

// WaitFailed ends a run whose agent did not handle that a wait timed out.
type WaitFailed struct {
	Epoch   int64
	Failure Failure
}

func (e WaitFailed) presents() int64 { return e.Epoch }

func (e WaitFailed) apply(_ *Policy, r *Run, _ Instant, log *history) {
	endWithout(r, e.Failure, false, LineTimedOut, log)
}

// Spoiled ends a run whose row can't be read.
type Spoiled struct{ Failure Failure }

func (e Spoiled) apply(_ *Policy, r *Run, _ Instant, log *history) {
	log.add(LineDeadLettered, object("cause", e.Failure.Code))
	endWithout(r, e.Failure, true, LineFailed, log)
}

// Rejected ends a run that a worker will not execute, such as one whose signature is wrong.
type Rejected struct {
	Epoch   int64
	Failure Failure
}

func (e Rejected) presents() int64 { return e.Epoch }

func (e Rejected) apply(_ *Policy, r *Run, _ Instant, log *history) {
	log.add(LineDeadLettered, object("cause", e.Failure.Code))
	endWithout(r, e.Failure, false, LineFailed, log)
}

// CancelConfirmed is the holder's word that it has stopped.
type CancelConfirmed struct{ Epoch int64 }

func (e CancelConfirmed) presents() int64 { return e.Epoch }

func (e CancelConfirmed) allowed(_ *Policy, r *Run, _ Instant) bool {
	return r.Cancel.RequestedAt != 0
}

func (e CancelConfirmed) apply(_ *Policy, r *Run, now Instant, log *history) {
	ackCancel(r, true, now)
	endWithout(r, Failure{CodeCancelled, r.Cancel.Reason}, false, LineCancelled, log)
}

// CancelEnforced ends a run that was asked to stop, without the holder's word.
type CancelEnforced struct{ Why string }

func (e CancelEnforced) allowed(_ *Policy, r *Run, _ Instant) bool {
	return r.Cancel.RequestedAt != 0
}

func (e CancelEnforced) apply(_ *Policy, r *Run, _ Instant, log *history) {
	why := e.Why
	if why == "" {
		why = r.Cancel.Reason
	}
	endWithout(r, Failure{CodeCancelled, why}, true, LineCancelled, log)
}

// DeadlinePassed ends a run at its deadline.
type DeadlinePassed struct{}

func (DeadlinePassed) allowed(_ *Policy, r *Run, now Instant) bool { return now >= r.DeadlineAt }

func (DeadlinePassed) apply(_ *Policy, r *Run, _ Instant, log *history) {
	endWithout(r, Failure{CodeDeadline, "the run was not done by its deadline"}, true, LineTimedOut, log)
}

// Reaped ends a run that gave no sign of life for very long.
type Reaped struct{}

func (Reaped) allowed(p *Policy, r *Run, now Instant) bool {
	return now >= r.SeenAt.Add(p.reapAfter(r))
}

func (Reaped) apply(p *Policy, r *Run, _ Instant, log *history) {
	endWithout(r, Failure{CodeReaped, "no sign of life for " + p.reapAfter(r).String()}, true, LineFailed, log)
}

// Orphaned ends a run whose surroundings are gone.
type Orphaned struct{ Missing string }

func (e Orphaned) apply(_ *Policy, r *Run, _ Instant, log *history) {
	endWithout(r, Failure{CodeOrphaned, "its " + e.Missing + " no longer exists"}, true, LineFailed, log)
}

// DeliveryGaveUp ends a run that was granted many times and that no worker ever spoke of.
type DeliveryGaveUp struct{}

func (DeliveryGaveUp) allowed(p *Policy, r *Run, _ Instant) bool {
	return !r.Heard && r.Deliveries >= p.MaxDeliveries
}

func (DeliveryGaveUp) apply(_ *Policy, r *Run, _ Instant, log *history) {
	log.add(LineDeadLettered, object("cause", CodeDispatchTimeout))
	endWithout(r, Failure{CodeDispatchTimeout, fmt.Sprintf("%d workers in a row took it and were not heard from", r.Deliveries)},
		true, LineTimedOut, log)
}

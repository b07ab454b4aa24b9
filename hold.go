package perdure

import (
	"slices"
	"time"
)

// This file has the holds of runs.
//
// A worker reports a defect if the fault is the code's and not the run's: a panic of an agent, a
// replay that the journal contradicts, a misuse of the SDK. Such an execution costs no attempt. The
// run is queued again with a backoff, and is on hold until the code gets past the defect.
//
//   - Begin: HoldBegun. The backoff doubles with each defect and is never reset.
//   - Another build: a poll of a build that has not held the run may claim it during the backoff.
//     The run remembers the last MaxHoldBuilds builds. If that many are remembered, a further build
//     waits for holdPause after the last defect, so that no set of builds can take turns quickly.
//   - Alert: after the no_progress threshold a run that is still on hold is reported with run:slow, once.
//     A parent that waits with on_stall is resumed.
//   - End by progress: a journal entry in a commit that does not end with a defect, or a suspend. An
//     entry of ReportsPrefix is no progress.
//     The count of defects and the builds are kept.
//   - End by a person: HoldReleased. The builds are forgotten too. HoldAbandoned ends the run.
//   - End by time: HoldExpired, at Until. It ends the run with the code of its last defect.

// MaxHoldBuilds limits the builds that a run remembers as having held it.
const MaxHoldBuilds = 8

// holdPause is the least time between a defect and a grant to a further build, once MaxHoldBuilds
// are remembered.
const holdPause = time.Minute

// A Hold records the defects that workers have reported of a run. A stored Hold is never changed:
// events replace it.
type Hold struct {
	// Since is when the hold began. Zero: the run is not on hold now, but was.
	Since Instant `json:"since,omitempty"`
	// Until is when the run ends if it is still on hold. It is never after the deadline.
	Until Instant `json:"until,omitempty"`
	// At is when the last defect was reported.
	At Instant `json:"at,omitempty"`
	// NextAt is the end of the backoff after the last defect.
	NextAt Instant `json:"next_at,omitempty"`
	// Count is the number of defects so far. It is never reset.
	Count int `json:"count,omitempty"`
	// Builds are the last builds that reported a defect, the latest at the end.
	Builds []string `json:"builds,omitempty"`
	// Failure is the last defect.
	Failure Failure `json:"failure"`
}

// OnHold tells whether a defect holds the run: one was reported, and there was no progress since.
func (r *Run) OnHold() bool { return r.Hold != nil && r.Hold.Since != 0 && r.State.Live() }

// HeldBack tells whether the run waits for the end of a hold's backoff. Only a build that has not
// held it may claim it before.
func (r *Run) HeldBack() bool {
	return r.OnHold() && r.State == Queued && !r.Ready && !r.AtLimit() && r.ReadyAt == r.Hold.NextAt &&
		r.Turn <= TurnActive && r.Cancel.RequestedAt == 0
}

// MayTry tells whether a build may claim a run that is held back. A worker without a build waits
// for the backoff.
func (r *Run) MayTry(build string, now Instant) bool {
	if build == "" || !r.HeldBack() || slices.Contains(r.Hold.Builds, build) {
		return false
	}
	return len(r.Hold.Builds) < MaxHoldBuilds || now >= r.Hold.At.Add(holdPause)
}

// progressed ends a hold because the code got past the defect.
func progressed(r *Run) {
	if r.OnHold() {
		r.Hold = &Hold{Count: r.Hold.Count, Builds: r.Hold.Builds}
	}
}

// HoldBegun queues a run whose worker reports a defect of the code. No attempt is spent.
type HoldBegun struct {
	Epoch   int64
	Failure Failure
	Build   string        // of the worker; empty if it did not say
	Delay   time.Duration // the backoff
	Timeout time.Duration // after this the run ends, if it is on hold until then
}

func (e HoldBegun) presents() int64 { return e.Epoch }

func (e HoldBegun) allowed(_ *Policy, r *Run, _ Instant) bool { return r.Cancel.RequestedAt == 0 }

func (e HoldBegun) apply(_ *Policy, r *Run, now Instant, log *history) {
	var h Hold
	if r.Hold != nil {
		h = *r.Hold
	}
	if h.Since == 0 {
		h.Since, h.Until = now, min(now.Add(e.Timeout), r.DeadlineAt)
		r.AlertsSent &^= AlertHold
	}
	known := slices.Contains(h.Builds, e.Build)
	builds := slices.DeleteFunc(slices.Clone(h.Builds), func(b string) bool { return b == e.Build })
	builds = append(builds, e.Build)
	h.Builds = builds[max(0, len(builds)-MaxHoldBuilds):]
	h.At, h.NextAt, h.Failure = now, now.Add(e.Delay), e.Failure
	h.Count++
	r.Hold = &h
	if known {
		// The build's first defect was the alert. The log needs a line for the change of state.
		log.add(LineReclaimed, object("reason", "held", "worker_id", r.Worker))
	} else {
		log.add(LineHeld, object("code", string(e.Failure.Code), "message", e.Failure.Message, "build", e.Build,
			"worker_id", r.Worker, "until", h.Until))
	}
	enqueue(r, now, h.NextAt)
}

// HoldReleased ends a hold on a person's request: any build may claim the run now.
type HoldReleased struct {
	// By is the name of the key that asked for it, if there is one.
	By string
}

func (HoldReleased) allowed(_ *Policy, r *Run, _ Instant) bool {
	return r.OnHold() && r.Cancel.RequestedAt == 0
}

func (e HoldReleased) apply(_ *Policy, r *Run, now Instant, log *history) {
	r.Hold = &Hold{Count: r.Hold.Count}
	r.ReadyAt = min(r.ReadyAt, now)
	r.Ready = r.Turn <= TurnActive
	log.add(LineHoldReleased, object("by", e.By))
}

// HoldExpired ends a run that is on hold for too long, with the code of its last defect.
type HoldExpired struct{}

func (HoldExpired) allowed(_ *Policy, r *Run, now Instant) bool {
	return r.OnHold() && now >= r.Hold.Until
}

func (HoldExpired) apply(p *Policy, r *Run, _ Instant, log *history) {
	p.endHeld(r, "hold_timeout", log)
}

// HoldAbandoned ends a run that is on hold, on a person's request.
type HoldAbandoned struct{}

func (HoldAbandoned) allowed(_ *Policy, r *Run, _ Instant) bool { return r.OnHold() }

func (HoldAbandoned) apply(p *Policy, r *Run, _ Instant, log *history) {
	p.endHeld(r, "abandoned", log)
}

// endHeld ends a run with its last defect.
func (p *Policy) endHeld(r *Run, reason string, log *history) {
	why := r.Hold.Failure
	log.add(LineDeadLettered, object("cause", why.Code, "reason", reason))
	p.endWithout(r, why, true, LineFailed, log)
}

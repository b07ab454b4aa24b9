package perdure

import "time"

// This file has the events that keep a run live, and their effects on its fields and its log.
// restored.go has those after a restore, end.go the events that end a run, fact.go those that leave
// the state as it is. Whether an
// event may happen in a state, and which state follows, is decided by Transitions, not here.
//
// An event may have up to three methods:
//
//   - apply changes the run and adds lines to its log. It does not set the state.
//   - presents returns the epoch of the worker that sends the event (see fenced).
//   - allowed is a condition on the run beyond its state (see guarded).

// ---- events of the grant and of the holder

// Accepted writes the first line of a new run's log.
type Accepted struct{}

func (Accepted) allowed(_ *Policy, r *Run, _ Instant) bool { return r.Version == 0 }

func (Accepted) apply(_ *Policy, r *Run, _ Instant, log *history) {
	log.add(LineCreated, object("thread_id", string(r.ThreadID), "task", r.Kind, "queue", r.Queue,
		"deadline_at", r.DeadlineAt, "parent_run_id", string(r.ParentID),
		"continuation_of_run_id", string(r.ContinuationOf), "retry_of_run_id", string(r.RetryOf),
		"origin_run_id", string(r.OriginID)))
}

// Granted hands the run to a worker, under a new epoch.
type Granted struct {
	Worker string
	Build  string // of the worker; see Run.MayTry
	Start  bool   // the run starts in the same write
	// Confirms is the worker's promise to begin a run with a single attempt only after an answered start
	// or heartbeat. Without it the grant itself spends the attempt.
	Confirms bool
	// Limits are those that count the run from now on, if it was queued. Steps are the slots of steps that
	// it was suspended for.
	Limits []LimitRef
	Steps  []StepSlot
	// Settles is set with the first grant of a run whose class is open.
	Settles *Settlement
}

// Spends tells whether a grant spends the only attempt of a run: the worker may begin, and the server
// would not know.
func (e Granted) Spends(r *Run) bool { return r.MaxAttempts == 1 && !e.Confirms }

func (e Granted) allowed(_ *Policy, r *Run, now Instant) bool {
	return (r.Ready || r.MayTry(e.Build, now)) && !r.HolderSeen && r.Turn <= TurnActive
}

func (e Granted) apply(p *Policy, r *Run, now Instant, log *history) {
	was := r.State
	p.raiseEpoch(r)
	r.Grants++
	r.GrantedAt = now
	if r.FirstGrantAt == 0 {
		r.FirstGrantAt = now
	}
	r.LeaseUntil = now.Add(p.Lease)
	r.SeenAt, r.MovedAt = now, now
	if was == Queued {
		r.Limited = held(e.Limits, e.Steps)
		r.Wants = dueTaken(r.Wants)
	}
	r.Ready = false
	r.Spent = e.Spends(r)
	r.HolderSeen = r.Spent
	r.Counter, r.WatchUntil, r.Former = 0, 0, 0
	r.Worker = e.Worker
	r.AlertsSent &^= AlertQueued
	if r.Cancel.RequestedAt != 0 && r.Cancel.ToldAt == 0 {
		r.Cancel.ToldAt = now
	}
	var class string
	var deadline Instant
	if e.Settles != nil && r.Options.Open {
		e.Settles.apply(r)
		class, deadline = string(r.Class), r.DeadlineAt
	}
	log.add(LineDispatched, object("worker_id", e.Worker, "epoch", r.Epoch, "delivery", r.Grants, "build", e.Build,
		"class", class, "deadline_at", deadline))
	if e.Start && was != Running {
		start(r, now, log)
	}
}

// start records that the execution begins.
func start(r *Run, now Instant, log *history) {
	if r.StartedAt == 0 {
		r.StartedAt = now
	}
	r.MovedAt = now
	log.add(LineStarted, object("worker_id", r.Worker, "epoch", r.Epoch))
}

// hear records a sign of life of the current holder, and renews the lease.
func hear(p *Policy, r *Run, now Instant, log *history) {
	if r.State == Dispatched {
		start(r, now, log)
	}
	r.HolderSeen, r.Ready, r.Spent = true, false, false
	r.Grants = 0
	r.SeenAt = now
	r.LeaseUntil = now.Add(p.Lease)
	r.AlertsSent &^= AlertSilent | AlertStale
	if r.Cancel.RequestedAt != 0 && r.Cancel.ToldAt == 0 {
		r.Cancel.ToldAt = now
	}
	if r.WatchUntil != 0 {
		r.WatchUntil = 0
		log.add(LineProcessReattached, object("epoch", r.Epoch, "worker_id", r.Worker))
	}
}

// drop clears the fields of the holder.
func drop(r *Run) {
	r.LeaseUntil, r.GrantedAt = 0, 0
	r.Counter, r.WatchUntil, r.Former = 0, 0, 0
	r.HolderSeen, r.Ready, r.Spent = false, false, false
	r.Worker = ""
	r.AlertsSent &^= AlertSilent | AlertNoProgress | AlertStale
}

// enqueue puts the run back into the queue. It becomes claimable at the instant from, if its turn
// on the thread allows it.
func enqueue(r *Run, now, from Instant) {
	drop(r)
	r.FirstGrantAt = 0
	r.ReadyAt = from
	r.Ready = from <= now && r.Turn <= TurnActive
}

// Started records that the holder has begun the execution.
type Started struct{ Epoch int64 }

func (e Started) presents() int64 { return e.Epoch }

func (e Started) apply(p *Policy, r *Run, now Instant, log *history) { hear(p, r, now, log) }

// Heartbeat is a heartbeat of the holder.
type Heartbeat struct {
	Epoch     int64
	Activity  string
	Progress  Value
	CancelAck bool
}

func (e Heartbeat) presents() int64 { return e.Epoch }

func (e Heartbeat) apply(p *Policy, r *Run, now Instant, log *history) {
	hear(p, r, now, log)
	ackCancel(r, e.CancelAck, now)
	// A new holder's first activity counts as a change, even if the holder before reported the
	// same.
	changed := e.Activity != "" && (e.Activity != r.Activity || r.ActivityAt < r.GrantedAt)
	if changed {
		r.Activity, r.ActivityAt = e.Activity, now
		moved(r, now)
	}
	if changed || now.Sub(r.HeartbeatAt) >= p.HeartbeatEvery {
		r.HeartbeatAt = now
		log.add(LineHeartbeat, object("activity", r.Activity))
	}
	if e.Progress != "" && !r.HasTold(e.Progress) {
		r.Progress, r.ProgressOf = e.Progress, r.Attempt
		moved(r, now)
		log.add(LineProgress, e.Progress)
	}
}

// SentinelMoved is a sign of life that the server has read from the sentinel of a process: the
// runner has written it again. A count that is not higher is an old file.
type SentinelMoved struct {
	Epoch   int64
	Counter int64
}

func (e SentinelMoved) presents() int64 { return e.Epoch }

func (e SentinelMoved) allowed(_ *Policy, r *Run, _ Instant) bool {
	return r.Options.Process && r.HolderSeen && e.Counter > r.Counter
}

func (e SentinelMoved) apply(p *Policy, r *Run, now Instant, log *history) {
	hear(p, r, now, log)
	r.Counter = e.Counter
	if now.Sub(r.HeartbeatAt) >= p.HeartbeatEvery {
		r.HeartbeatAt = now
		log.add(LineHeartbeat, object("activity", r.Activity))
	}
}

// ProcessWatched postpones the judgement of a process that may have lived on while the server was
// away. The next sign of life ends it. An Until of zero ends it, too. It changes nothing else.
type ProcessWatched struct {
	Epoch int64
	Until Instant
}

func (e ProcessWatched) presents() int64 { return e.Epoch }

func (e ProcessWatched) allowed(_ *Policy, r *Run, now Instant) bool {
	return r.Options.Process && r.HolderSeen && (e.Until > now || e.Until == 0)
}

func (e ProcessWatched) apply(_ *Policy, r *Run, _ Instant, _ *history) { r.WatchUntil = e.Until }

// moved records progress: the no-progress clock starts again.
func moved(r *Run, now Instant) {
	r.MovedAt = now
	r.AlertsSent &^= AlertNoProgress
}

// ackCancel records the holder's first acknowledgement of a cancel request.
func ackCancel(r *Run, ack bool, now Instant) {
	if ack && r.Cancel.RequestedAt != 0 && r.Cancel.AckedAt == 0 {
		r.Cancel.AckedAt = now
	}
}

// Committed records a commit. The outcome, if there is one, is a second event.
type Committed struct {
	Epoch     int64
	Journal   int // entries added
	Reports   int // of these, entries that only list messages and lines: they are no progress
	Children  int // children spawned
	Acked     int // inbox items acknowledged
	Lines     []Line
	Progress  Value
	Withheld  string // text of deltas that is held back; see Run.Withheld
	CancelAck bool
	Defect    bool // the outcome is a defect: the entries do not end a hold
	// Quiet says that the server itself commits, for a process that it does not hear: no sign of life.
	Quiet bool
}

func (e Committed) presents() int64 { return e.Epoch }

func (e Committed) apply(p *Policy, r *Run, now Instant, log *history) {
	if e.Quiet {
		log.addAll(e.Lines)
		return
	}
	hear(p, r, now, log)
	ackCancel(r, e.CancelAck, now)
	if e.Journal > 0 {
		r.JournalSeq += int64(e.Journal)
	}
	if e.Journal > e.Reports {
		r.Strikes = 0
		if !e.Defect {
			progressed(r)
		}
	}
	r.Withheld = e.Withheld
	r.Children += e.Children
	r.InboxOpen -= e.Acked
	if e.Progress != "" {
		r.Progress, r.ProgressOf = e.Progress, r.Attempt
	}
	if e.Journal > 0 || len(e.Lines) > 0 || e.Children > 0 {
		moved(r, now)
	}
	log.addAll(e.Lines)
}

// WentToSleep suspends the run until one of its waits ends.
type WentToSleep struct {
	Epoch  int64
	Waits  []string
	WaitAt Instant // the first timeout of these waits
}

func (e WentToSleep) presents() int64 { return e.Epoch }

func (e WentToSleep) allowed(_ *Policy, r *Run, _ Instant) bool { return r.Cancel.RequestedAt == 0 }

func (e WentToSleep) apply(_ *Policy, r *Run, _ Instant, log *history) {
	drop(r)
	r.Strikes = 0
	progressed(r)
	r.WaitAt = e.WaitAt
	log.add(LineSuspended, object("waits", e.Waits))
}

// Woken queues a suspended run because a wait has ended or because a cancel request is to be
// delivered. Its attempt stays the same.
type Woken struct {
	Reason string // satisfied, timeout, stalled, orphaned, cancel
	WaitID string
}

func (e Woken) apply(_ *Policy, r *Run, now Instant, log *history) {
	enqueue(r, now, now)
	r.WaitAt = 0
	r.Resumed = true
	log.add(LineResumed, object("reason", e.Reason, "wait_id", e.WaitID))
}

// Retried queues a run whose execution was lost or failed and that has attempts left.
type Retried struct {
	Epoch   int64 // zero if the holder was lost; Failure then says how
	Failure Failure
	Delay   time.Duration
}

func (e Retried) presents() int64 { return e.Epoch }

func (e Retried) allowed(_ *Policy, r *Run, _ Instant) bool {
	return r.Cancel.RequestedAt == 0 && r.Strikes+1 < r.MaxAttempts
}

func (e Retried) apply(p *Policy, r *Run, now Instant, log *history) {
	if e.Epoch == 0 {
		p.raiseEpoch(r)
		log.add(LineReclaimed, object("reason", string(e.Failure.Code), "worker_id", r.Worker))
	}
	r.Attempt++
	r.Strikes++
	enqueue(r, now, now.Add(e.Delay))
	log.add(LineRetrying, object("attempt", r.Attempt, "delay_ms", e.Delay.Milliseconds(), "error", e.Failure))
}

// GaveUp ends a run whose execution was lost or failed and that has no attempts left.
type GaveUp struct {
	Epoch   int64
	Failure Failure
}

func (e GaveUp) presents() int64 { return e.Epoch }

func (e GaveUp) apply(p *Policy, r *Run, _ Instant, log *history) {
	r.Strikes++
	log.add(LineDeadLettered, object("cause", e.Failure.Code))
	p.endWithout(r, e.Failure, e.Epoch == 0, LineFailed, log)
}

// MaxReleased bounds how far ahead a worker may put off a run that it hands back.
const MaxReleased = 24 * time.Hour

// Released queues a run that its holder hands back unfinished. Unsent says that the holder never got
// it. With NotBefore the holder could do nothing, and the run is not granted before that.
type Released struct {
	Epoch     int64
	Unsent    bool
	NotBefore Instant
}

func (e Released) presents() int64 { return e.Epoch }

func (e Released) allowed(_ *Policy, r *Run, _ Instant) bool {
	return r.Cancel.RequestedAt == 0 && (!r.BegunOnce() || e.NotBefore != 0 || e.Unsent && r.Spent)
}

func (e Released) apply(p *Policy, r *Run, now Instant, log *history) {
	p.raiseEpoch(r)
	told := []any{"reason", "released", "worker_id", r.Worker}
	if e.NotBefore != 0 {
		told = append(told, "not_before", e.NotBefore)
	}
	log.add(LineReclaimed, object(told...))
	enqueue(r, now, max(now, e.NotBefore))
	r.Grants = 0
}

// CleanupAgain queues a run whose holder is lost, or hands it back, while it is being cancelled and steps
// of a saga are still to be undone. It is granted again to undo them.
type CleanupAgain struct {
	Epoch  int64 // of the holder that hands it back; zero if the holder was lost
	Reason string
}

func (e CleanupAgain) presents() int64 { return e.Epoch }

func (e CleanupAgain) allowed(_ *Policy, r *Run, _ Instant) bool { return r.Cancel.RequestedAt != 0 }

func (e CleanupAgain) apply(p *Policy, r *Run, now Instant, log *history) {
	p.raiseEpoch(r)
	log.add(LineReclaimed, object("reason", e.Reason, "worker_id", r.Worker, "cleanup", true))
	if r.Cancel.CleanupAt == 0 {
		if r.Cancel.CleanupAt = r.Cancel.AckedAt; r.Cancel.AckedAt == 0 {
			r.Cancel.CleanupAt = now
		}
	}
	enqueue(r, now, now)
}

// ---- events of clocks, threads and people

// Due makes a delayed run claimable. With Now the rest of its delay is skipped.
type Due struct{ Now bool }

func (e Due) allowed(_ *Policy, r *Run, now Instant) bool {
	return r.Turn <= TurnActive && !r.Copying() && (e.Now || now >= r.ReadyAt)
}

func (e Due) apply(_ *Policy, r *Run, now Instant, _ *history) {
	r.ReadyAt = min(r.ReadyAt, now)
	r.Ready = true
}

// JournalCopied records that entries of the original's journal were copied to a retry. With the last
// of them the run becomes claimable, if its turn on the thread allows it.
type JournalCopied struct{ Entries int }

func (e JournalCopied) allowed(_ *Policy, r *Run, _ Instant) bool {
	return r.JournalSeq+int64(e.Entries) <= r.CopyTo
}

func (e JournalCopied) apply(_ *Policy, r *Run, now Instant, _ *history) {
	r.JournalSeq += int64(e.Entries)
	r.MovedAt = now
	if !r.Copying() {
		r.ReadyAt = max(r.ReadyAt, now)
		r.Ready = r.ReadyAt <= now && r.Turn <= TurnActive
	}
}

// TurnCame gives a run its place on its thread: active, or waiting behind another run.
type TurnCame struct{ Turn Turn }

func (e TurnCame) apply(_ *Policy, r *Run, now Instant, _ *history) {
	r.Turn = e.Turn
	r.ReadyAt = max(r.ReadyAt, now)
	r.Ready = r.Turn == TurnActive && r.ReadyAt <= now && !r.Copying()
}

// Regrantable lets any poll claim a run whose holder has not been heard from.
type Regrantable struct{}

func (Regrantable) allowed(p *Policy, r *Run, now Instant) bool {
	return !r.HolderSeen && now >= r.GrantedAt.Add(p.RegrantAfter(r.Grants)) && r.Grants < p.MaxGrants
}

func (Regrantable) apply(_ *Policy, r *Run, _ Instant, _ *history) { r.Ready = true }

// GrantLost puts a run back into the queue whose holder has not been heard from.
type GrantLost struct{}

func (GrantLost) allowed(p *Policy, r *Run, now Instant) bool {
	return !r.HolderSeen && now >= r.FirstGrantAt.Add(p.DispatchedTimeout) && r.Cancel.RequestedAt == 0
}

func (GrantLost) apply(p *Policy, r *Run, now Instant, log *history) {
	from := r.GrantedAt.Add(p.RegrantAfter(r.Grants))
	p.raiseEpoch(r)
	log.add(LineReclaimed, object("reason", "not_started", "worker_id", r.Worker, "deliveries", r.Grants))
	enqueue(r, now, from)
}

// Slow alerts about a run that may be stuck. It changes nothing else.
type Slow struct {
	Reason string
	Bit    Alerts
}

func (e Slow) apply(_ *Policy, r *Run, _ Instant, log *history) {
	r.AlertsSent |= e.Bit
	var at LimitRef
	if r.State == Queued && r.AtLimit() {
		at = r.Limited.At
	}
	log.add(LineSlow, object("reason", e.Reason, "activity", r.Activity, "seen_at", r.SeenAt, "limit", at.Limit,
		"key", at.Key))
}

// WentStale alerts about a run whose silence is so long that its worker may be gone. It changes
// nothing else.
type WentStale struct{}

func (WentStale) allowed(p *Policy, r *Run, now Instant) bool {
	return now >= r.SeenAt.Add(p.Thresholds(r).Stale)
}

func (WentStale) apply(_ *Policy, r *Run, _ Instant, log *history) {
	r.AlertsSent |= AlertStale
	log.add(LineStale, object("tier", TierStale, "activity", r.Activity, "seen_at", r.SeenAt))
}

// CancelAsked records a cancel request. A second request changes nothing.
type CancelAsked struct{ Reason string }

func (e CancelAsked) apply(_ *Policy, r *Run, now Instant, log *history) {
	if r.Cancel.RequestedAt != 0 {
		return
	}
	r.Cancel = Cancel{RequestedAt: now, Reason: e.Reason}
	r.Resumed = true // if it is queued, it is granted before new runs, so that a worker can clean up
	log.add(LineCancelRequested, object("reason", e.Reason))
}

// WentDeferred records that no caller waits for the run any more.
type WentDeferred struct {
	Reason string // timeout, disconnect, detached
	Attach string
}

func (e WentDeferred) apply(_ *Policy, r *Run, now Instant, log *history) {
	if r.DeferredAt != 0 {
		return
	}
	r.DeferredAt = now
	r.WasDefer = true
	log.add(LineDeferred, object("reason", e.Reason, "attach_url", e.Attach))
}

// Reattached records that a caller waits for the run again.
type Reattached struct{}

func (Reattached) apply(_ *Policy, r *Run, _ Instant, log *history) {
	if r.DeferredAt == 0 {
		return
	}
	r.DeferredAt = 0
	log.add(LineReattached, object())
}

// Rearmed sets the alarm to an instant later than its clocks give.
type Rearmed struct{ Until Instant }

func (e Rearmed) allowed(_ *Policy, r *Run, now Instant) bool {
	return e.Until > now && e.Until > r.AlarmAt
}

func (Rearmed) apply(*Policy, *Run, Instant, *history) {}

// ClockSetBack repairs a run after the store's clock was found to be ahead by some time and was set
// back to now. Instants that the wrong clock gave lie in the future and are moved back by that
// time. Otherwise a lease would last too long and silence would not be noticed. The deadline stays:
// it is signed.
type ClockSetBack struct{ By time.Duration }

func (e ClockSetBack) apply(_ *Policy, r *Run, now Instant, _ *history) { e.move(r, now) }

// Concerns tells whether the event would move an instant of the run.
func (e ClockSetBack) Concerns(r Run, now Instant) bool { return e.move(&r, now) }

func (e ClockSetBack) move(r *Run, now Instant) (moved bool) {
	back := func(list ...*Instant) (any bool) {
		for _, at := range list {
			if *at > now {
				*at, any, moved = at.Add(-e.By), true, true
			}
		}
		return any
	}
	if back(&r.GrantedAt, &r.FirstGrantAt, &r.SeenAt) {
		back(&r.LeaseUntil)
	}
	back(&r.StartedAt, &r.MovedAt, &r.HeartbeatAt, &r.ActivityAt, &r.DeferredAt)
	if r.WatchUntil > now.Add(e.By) {
		back(&r.WatchUntil)
	}
	back(&r.Cancel.RequestedAt, &r.Cancel.ToldAt, &r.Cancel.AckedAt)
	// The delay of a first attempt may be the caller's run_at, which must not be moved: late is
	// better than early.
	if r.Ready || r.Attempt > 1 || r.HeldBack() {
		back(&r.ReadyAt)
	}
	if l := r.Limited; l != nil && max(l.Since, l.OfferedAt) > now {
		c := *l
		back(&c.Since, &c.OfferedAt)
		r.Limited = &c
	}
	if r.Hold != nil && r.Hold.At > now {
		h := *r.Hold
		back(&h.Since, &h.Until, &h.At, &h.NextAt)
		r.Hold = &h
	}
	return moved
}

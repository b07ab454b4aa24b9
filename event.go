package perdure

import "time"

// The events that a run can meet, and what each does to its fields and its log; those that end it stand in end.go. Whether an event may happen in
// a state, and where it leads, is not said here but in Transitions.

// ---- what the server grants and the holder says

// Granted hands the run to a worker, under a new epoch.
type Granted struct {
	Worker string
	Start  bool // start it in the same write
}

func (e Granted) allowed(_ *Policy, r *Run, _ Instant) bool {
	return r.Ready && !r.Heard && r.Turn <= TurnActive
}

func (e Granted) apply(p *Policy, r *Run, now Instant, log *history) {
	was := r.State
	r.Epoch++
	r.Deliveries++
	r.GrantedAt = now
	if r.FirstGrantAt == 0 {
		r.FirstGrantAt = now
	}
	r.LeaseUntil = now.Add(p.Lease)
	r.SeenAt, r.MovedAt = now, now
	r.Ready, r.Heard = false, false
	r.Worker = e.Worker
	r.Said &^= SaidQueued
	if r.Cancel.RequestedAt != 0 && r.Cancel.DeliveredAt == 0 {
		r.Cancel.DeliveredAt = now
	}
	log.add(LineDispatched, object("worker_id", e.Worker, "epoch", r.Epoch, "delivery", r.Deliveries))
	if e.Start && was != Running {
		start(r, now, log)
	}
}

func start(r *Run, now Instant, log *history) {
	if r.StartedAt == 0 {
		r.StartedAt = now
	}
	r.MovedAt = now
	log.add(LineStarted, object("worker_id", r.Worker, "epoch", r.Epoch))
}

// hear notes a sign of life of the current holder: the lease runs anew.
func hear(p *Policy, r *Run, now Instant, log *history) {
	if r.State == Dispatched {
		start(r, now, log)
	}
	r.Heard, r.Ready = true, false
	r.Deliveries = 0
	r.SeenAt = now
	r.LeaseUntil = now.Add(p.Lease)
	r.Said &^= SaidSilent | SaidStale
	if r.Cancel.RequestedAt != 0 && r.Cancel.DeliveredAt == 0 {
		r.Cancel.DeliveredAt = now
	}
}

// drop takes the run off its holder.
func drop(r *Run) {
	r.LeaseUntil, r.GrantedAt = 0, 0
	r.Heard, r.Ready = false, false
	r.Worker = ""
	r.Said &^= SaidSilent | SaidNoProgress | SaidStale
}

// enqueue makes the run wait for a poll, from an instant on.
func enqueue(r *Run, now, from Instant) {
	drop(r)
	r.FirstGrantAt = 0
	r.ReadyAt = from
	r.Ready = from <= now && r.Turn <= TurnActive
}

// Started says that the holder begins.
type Started struct{ Epoch int64 }

func (e Started) presents() int64 { return e.Epoch }

func (e Started) apply(p *Policy, r *Run, now Instant, log *history) { hear(p, r, now, log) }

// Beat is a heartbeat.
type Beat struct {
	Epoch     int64
	Activity  string
	Progress  Value
	CancelAck bool
}

func (e Beat) presents() int64 { return e.Epoch }

func (e Beat) apply(p *Policy, r *Run, now Instant, log *history) {
	hear(p, r, now, log)
	ackCancel(r, e.CancelAck, now)
	// What a holder says for the first time is news, also if the one before said the same.
	changed := e.Activity != "" && (e.Activity != r.Activity || r.ActivityAt < r.GrantedAt)
	if changed {
		r.Activity, r.ActivityAt = e.Activity, now
		moved(r, now)
	}
	if changed || now.Sub(r.BeatAt) >= p.BeatEvery {
		r.BeatAt = now
		log.add(LineHeartbeat, object("activity", r.Activity))
	}
	if e.Progress != "" && !r.HasTold(e.Progress) {
		r.Progress, r.ProgressOf = e.Progress, r.Attempt
		moved(r, now)
		log.add(LineProgress, e.Progress)
	}
}

func moved(r *Run, now Instant) {
	r.MovedAt = now
	r.Said &^= SaidNoProgress
}

func ackCancel(r *Run, ack bool, now Instant) {
	if ack && r.Cancel.RequestedAt != 0 && r.Cancel.AckedAt == 0 {
		r.Cancel.AckedAt = now
	}
}

// Committed is a commit without, or before, its outcome.
type Committed struct {
	Epoch     int64
	Journal   int // entries added
	Children  int // children spawned
	Acked     int // inbox items done
	Waits     int // waits opened, less those closed
	Lines     []Line
	Progress  Value
	Held      string // what is held back of the lines
	CancelAck bool
}

func (e Committed) presents() int64 { return e.Epoch }

func (e Committed) apply(p *Policy, r *Run, now Instant, log *history) {
	hear(p, r, now, log)
	ackCancel(r, e.CancelAck, now)
	if e.Journal > 0 {
		r.JournalSeq += int64(e.Journal)
		r.Strikes = 0
	}
	r.Held = e.Held
	r.Children += e.Children
	r.InboxOpen -= e.Acked
	r.WaitsOpen += e.Waits
	if e.Progress != "" {
		r.Progress, r.ProgressOf = e.Progress, r.Attempt
	}
	if e.Journal > 0 || len(e.Lines) > 0 || e.Children > 0 {
		moved(r, now)
	}
	for _, l := range e.Lines {
		log.add(l.Type, l.Data)
	}
}

// WentToSleep is a suspend.
type WentToSleep struct {
	Epoch  int64
	Waits  []string
	WaitAt Instant
}

func (e WentToSleep) presents() int64 { return e.Epoch }

func (e WentToSleep) allowed(_ *Policy, r *Run, _ Instant) bool { return r.Cancel.RequestedAt == 0 }

func (e WentToSleep) apply(_ *Policy, r *Run, _ Instant, log *history) {
	drop(r)
	r.Strikes = 0
	r.WaitAt = e.WaitAt
	log.add(LineSuspended, object("waits", e.Waits))
}

// Woken queues a suspended run because a wait is over or a cancel is to be told. Its attempt is unchanged.
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

// Retried is a lost or failed execution with attempts left.
type Retried struct {
	Epoch   int64 // zero: the holder is lost, and the failure says how
	Failure Failure
	Delay   time.Duration
}

func (e Retried) presents() int64 { return e.Epoch }

func (e Retried) allowed(_ *Policy, r *Run, _ Instant) bool {
	return r.Cancel.RequestedAt == 0 && r.Strikes+1 < r.MaxAttempts
}

func (e Retried) apply(_ *Policy, r *Run, now Instant, log *history) {
	if e.Epoch == 0 {
		r.Epoch++
		log.add(LineReclaimed, object("reason", string(e.Failure.Code), "worker_id", r.Worker))
	}
	r.Attempt++
	r.Strikes++
	enqueue(r, now, now.Add(e.Delay))
	log.add(LineRetrying, object("attempt", r.Attempt, "delay_ms", e.Delay.Milliseconds(), "error", e.Failure))
}

// GaveUp ends a run that has no attempts left.
type GaveUp struct {
	Epoch   int64
	Failure Failure
}

func (e GaveUp) presents() int64 { return e.Epoch }

func (e GaveUp) apply(_ *Policy, r *Run, _ Instant, log *history) {
	r.Strikes++
	log.add(LineDeadLettered, object("cause", e.Failure.Code))
	endWithout(r, e.Failure, e.Epoch == 0, LineFailed, log)
}

// Released hands a run back without having finished it.
type Released struct{ Epoch int64 }

func (e Released) presents() int64 { return e.Epoch }

func (e Released) allowed(_ *Policy, r *Run, _ Instant) bool { return r.Cancel.RequestedAt == 0 }

func (e Released) apply(_ *Policy, r *Run, now Instant, log *history) {
	r.Epoch++
	log.add(LineReclaimed, object("reason", "released", "worker_id", r.Worker))
	enqueue(r, now, now)
	r.Deliveries = 0
}

// Restored takes a run off whoever held it when the store was backed up, or since, without costing an attempt: the store
// is another one now.
type Restored struct{ Epoch int64 } // of the new time line: greater than any that was ever granted

func (e Restored) allowed(_ *Policy, r *Run, _ Instant) bool {
	return r.Epoch < e.Epoch && r.Cancel.RequestedAt == 0
}

func (e Restored) apply(_ *Policy, r *Run, now Instant, log *history) {
	r.Epoch = e.Epoch
	log.add(LineReclaimed, object("reason", "restored", "worker_id", r.Worker))
	enqueue(r, now, now)
	r.Deliveries = 0
}

// Renumbered raises the epoch of a restored run that stays where it is: one that nobody holds, or whose holder was asked to
// stop and is lost now.
type Renumbered struct{ Epoch int64 }

func (e Renumbered) allowed(_ *Policy, r *Run, _ Instant) bool { return r.Epoch < e.Epoch }

func (e Renumbered) apply(_ *Policy, r *Run, _ Instant, _ *history) { r.Epoch = e.Epoch }

// ---- what clocks, threads and people do

// Due makes a delayed run claimable.
type Due struct{ Now bool } // Now: whatever its delay was

func (e Due) allowed(_ *Policy, r *Run, now Instant) bool {
	return r.Turn <= TurnActive && (e.Now || now >= r.ReadyAt)
}

func (e Due) apply(_ *Policy, r *Run, now Instant, _ *history) {
	r.ReadyAt = min(r.ReadyAt, now)
	r.Ready = true
}

// TurnCame gives a run its place on its thread: active, or waiting behind another run.
type TurnCame struct{ Turn Turn }

func (e TurnCame) apply(_ *Policy, r *Run, now Instant, _ *history) {
	r.Turn = e.Turn
	r.ReadyAt = max(r.ReadyAt, now)
	r.Ready = r.Turn == TurnActive && r.ReadyAt <= now
}

// Redeliverable lets any poll take a run whose holder was not heard from.
type Redeliverable struct{}

func (Redeliverable) allowed(p *Policy, r *Run, now Instant) bool {
	return !r.Heard && now >= r.GrantedAt.Add(p.RedeliverAfter(r.Deliveries)) && r.Deliveries < p.MaxDeliveries
}

func (Redeliverable) apply(_ *Policy, r *Run, _ Instant, _ *history) { r.Ready = true }

// Undelivered puts a run whose holder was not heard from back into the queue.
type Undelivered struct{}

func (Undelivered) allowed(p *Policy, r *Run, now Instant) bool {
	return !r.Heard && now >= r.FirstGrantAt.Add(p.DispatchedTimeout) && r.Cancel.RequestedAt == 0
}

func (Undelivered) apply(p *Policy, r *Run, now Instant, log *history) {
	from := r.GrantedAt.Add(p.RedeliverAfter(r.Deliveries))
	r.Epoch++
	log.add(LineReclaimed, object("reason", "not_started", "worker_id", r.Worker, "deliveries", r.Deliveries))
	enqueue(r, now, from)
}

// Slow alerts about a run that may be stuck. It never ends one.
type Slow struct {
	Reason string
	Bit    Said
}

func (e Slow) apply(_ *Policy, r *Run, _ Instant, log *history) {
	r.Said |= e.Bit
	log.add(LineSlow, object("reason", e.Reason, "activity", r.Activity, "seen_at", r.SeenAt))
}

// WentStale alerts about a run that was not heard from for so long that it may be gone. It never ends one.
type WentStale struct{}

func (WentStale) allowed(p *Policy, r *Run, now Instant) bool {
	return now >= r.SeenAt.Add(p.Thresholds(r).Stale)
}

func (WentStale) apply(_ *Policy, r *Run, _ Instant, log *history) {
	r.Said |= SaidStale
	log.add(LineStale, object("tier", TierStale, "activity", r.Activity, "seen_at", r.SeenAt))
}

// CancelAsked records a request to stop.
type CancelAsked struct{ Reason string }

func (e CancelAsked) apply(_ *Policy, r *Run, now Instant, log *history) {
	if r.Cancel.RequestedAt != 0 {
		return
	}
	r.Cancel = Cancel{RequestedAt: now, Reason: e.Reason}
	r.Resumed = true // a started run that waits in the queue is told before new ones are begun
	log.add(LineCancelRequested, object("reason", e.Reason))
}

// CancelTold records that the holder has been handed the request.
type CancelTold struct{}

func (CancelTold) apply(_ *Policy, r *Run, now Instant, _ *history) {
	if r.Cancel.RequestedAt != 0 && r.Cancel.DeliveredAt == 0 {
		r.Cancel.DeliveredAt = now
	}
}

// WentDeferred says that nobody waits for the run any more.
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

// Reattached says that somebody waits again.
type Reattached struct{}

func (Reattached) apply(_ *Policy, r *Run, _ Instant, log *history) {
	if r.DeferredAt == 0 {
		return
	}
	r.DeferredAt = 0
	log.add(LineReattached, object())
}

// Rearmed sets the alarm later than it would ring by itself.
type Rearmed struct{ Until Instant }

func (e Rearmed) allowed(_ *Policy, r *Run, now Instant) bool {
	return e.Until > now && e.Until > r.AlarmAt
}

func (Rearmed) apply(*Policy, *Run, Instant, *history) {}

// ClockSetBack says that the store's clock was ahead by some time and was set back to now. Instants of the run that the
// wrong clock gave lie in the future, and are moved back by as much: nobody is heard from in the future, and a lease that
// ends there holds the run for nobody. The deadline stays: it is signed, and nothing extends it.
type ClockSetBack struct{ By time.Duration }

func (e ClockSetBack) apply(_ *Policy, r *Run, now Instant, _ *history) { e.move(r, now) }

// Concerns tells whether an instant of the run has to be moved.
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
	back(&r.StartedAt, &r.MovedAt, &r.BeatAt, &r.ActivityAt, &r.DeferredAt)
	back(&r.Cancel.RequestedAt, &r.Cancel.DeliveredAt, &r.Cancel.AckedAt)
	// The delay of a first attempt may be an instant that the caller has named: better late than early.
	if r.Ready || r.Attempt > 1 {
		back(&r.ReadyAt)
	}
	return moved
}

// Noted is bookkeeping that rides on the row: it changes no state, but it raises the version, so that two
// writers who both looked at the run can't both be right.
type Noted struct {
	Lines       []Line
	Items       int      // inbox items that arrived
	Closed      int      // inbox items done or skipped
	WaitsEnded  int      // waits that are over
	Children    int      // children that were added
	Late        int      // late results kept
	Watched     bool     // a chord or group waits for it
	Outlives    bool     // it may outlive its parent from now on
	Cascade     *Cascade // ended: how far its live children have been cancelled
	WaitAt      *Instant
	ContinuedBy RunID
	Deliver     *Delivery  // ended: another deliverable
	NotUndone   []string   // ended: steps that nobody has undone
	Left        []Artifact // ended: what it left
	Text        string     // ended: the end of what it was saying
}

// A Cascade says how far the live children of an ended run have been asked to stop.
type Cascade struct {
	More  bool   // some are left
	After string // those up to this journal key are done
}

// A Delivery replaces the deliverable of an ended run by a late result that was adopted.
type Delivery struct {
	Result  Value
	Summary string
}

func (e Noted) apply(_ *Policy, r *Run, _ Instant, log *history) {
	r.InboxSeq += int64(e.Items)
	r.InboxOpen += e.Items - e.Closed
	r.WaitsOpen -= e.WaitsEnded
	r.Children += e.Children
	r.Late += e.Late
	r.Watched = r.Watched || e.Watched
	if e.Outlives {
		r.Options.OnParentEnd = OutliveParent
	}
	if e.Cascade != nil {
		if r.Cascade, r.Stopped = e.Cascade.More, e.Cascade.After; !r.Cascade {
			r.Stopped = ""
		}
	}
	if e.WaitAt != nil {
		r.WaitAt = *e.WaitAt
	}
	if e.ContinuedBy != "" {
		r.ContinuedBy = e.ContinuedBy
	}
	if e.Deliver != nil {
		r.Result, r.Summary = e.Deliver.Result, e.Deliver.Summary
	}
	if len(e.NotUndone) > 0 {
		r.Fallback = r.Fallback.with("not_undone", e.NotUndone)
	}
	if e.Text != "" {
		r.Fallback = r.Fallback.with("partial_text", e.Text)
	}
	if len(e.Left) > 0 {
		r.Fallback = r.Fallback.with("artifacts", leftOf(e.Left))
	}
	for _, l := range e.Lines {
		log.add(l.Type, l.Data)
	}
}

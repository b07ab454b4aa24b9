package perdure

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Policy holds every duration and limit that a decision about a run depends on. Its zero value is
// not usable: start from DefaultPolicy. W1 to W15 are the watchdog's rules, see docs/watchdog.md.
type Policy struct {
	Lease        time.Duration // how long a worker holds a run after each sign of life
	CancelGrace  time.Duration // a cancel request that is not acknowledged is enforced after this
	CleanupGrace time.Duration // an acknowledged one is enforced after this

	DispatchedRetry    time.Duration // a run whose holder is not heard from can be granted again after this, doubling
	DispatchedRetryMax time.Duration
	DispatchedTimeout  time.Duration // and goes back to the queue after this
	LocalClaim         time.Duration // a process of LocalQueue that its runner does not take ends after this
	MaxGrants          int           // grants in a row without a sign of life before the run is a dead letter

	InboxProcessingTimeout time.Duration // W1: an inbox item whose holder is gone is pending again after this
	SuspendTimeout         time.Duration // the timeout of a wait that has none, by itself or by its name
	PendingWakeup          time.Duration // W9: check again an item that may satisfy a wait
	PendingWakeupSkip      time.Duration // W9: skip an item of a run that has ended
	ActiveReap             time.Duration // W7: a running run without a sign of life ends after this
	QueuedAlert            time.Duration // W11: alert about a run that is claimable for this long
	Silent                 time.Duration // W13: see Thresholds
	NoProgress             time.Duration // W13: see Thresholds
	StaleAfter             time.Duration // W12: see Thresholds
	DeadAfter              time.Duration // W12: see Thresholds
	Liveness               Liveness      // overrides the last four for kinds and activities
	WorkerOffline          time.Duration // W14: a worker that is not seen for this long is offline

	BackoffBase   time.Duration // a retry waits base × 2ⁿ
	BackoffMax    time.Duration
	BackoffJitter float64 // the delay varies by ± this fraction

	// HoldDefects has a defect of the code hold a run instead of costing an attempt.
	HoldDefects       bool
	HoldTimeout       time.Duration // a run that is on hold for this long ends
	HoldTimeoutThread time.Duration // the same for a run on a thread

	MaxAttempts int      // default for runs that set none
	Timeouts    Timeouts // default and maximum of a run's timeout

	HeartbeatEvery time.Duration // an unchanged heartbeat is written to the log at most this often
	WaiterTTL      time.Duration // a node's record that a caller waits for a run expires after this
	DetachGrace    time.Duration // a run whose caller disconnected is deferred after this
	DeadLetterTTL  time.Duration
	IdempotencyTTL time.Duration
	Retention      time.Duration // an ended run is kept this long
	AuditRetention time.Duration // an entry of the audit log is kept this long

	WorkerRetention  time.Duration // a worker is listed this long after its last sign of life; at least a lease
	WebhookRetention time.Duration // a webhook is kept this long after it was deleted, or last needed
	KeyRetention     time.Duration // a key is listed this long after it was revoked, or expired
	KindRetention    time.Duration // a kind is registered this long after a worker last announced or served it

	ArtifactMaxBytes   int64 // of one artifact
	ArtifactTotalBytes int64 // of all artifacts of a run

	WatchdogInterval time.Duration // the longest sleep between two sweeps
	GapAfter         time.Duration // a time without a sweep on any node counts as a gap after this
	GapSpare         time.Duration // after a gap, the deadline of a leased run is enforced this much later
	PatrolEvery      time.Duration // how often the patrol checks a part of the live runs and repairs them

	// EpochFloor is the lowest value that an epoch has after its next rise. It is no setting: a server
	// sets it from its store, after a failover that may have lost grants of lower epochs.
	EpochFloor int64
}

// WaitTimeouts has the default timeouts of waits for a signal or an approval, by its name.
var WaitTimeouts = map[string]time.Duration{
	"start_task":   5 * time.Minute,
	"approve_push": 10 * time.Minute,
}

// WaitTimeout returns how long a wait lasts that has no timeout of its own: the default of its name,
// or else suspend_timeout, or more if the tool that it is for says so.
func (p *Policy) WaitTimeout(w *WaitSpec) time.Duration {
	d, ok := WaitTimeouts[w.Name]
	if !ok {
		d = p.SuspendTimeout
	}
	if w.Tool != nil {
		d = max(d, time.Duration(cmp.Or(w.Tool.SuspendTimeout, w.Tool.Timeout)))
	}
	return d
}

// Timeouts has the limits of each class.
type Timeouts struct{ Task, Agent, Process TimeoutLimits }

// TimeoutLimits are a class's default and greatest timeout.
type TimeoutLimits struct{ Default, Max time.Duration }

// Of is the limits of a class, or none for a class that does not exist.
func (t *Timeouts) Of(c Class) TimeoutLimits {
	switch c {
	case Task:
		return t.Task
	case Agent:
		return t.Agent
	case Process:
		return t.Process
	}
	return TimeoutLimits{}
}

// DefaultPolicy returns the policy of a server without configuration: the defaults of Settings.
func DefaultPolicy() (p Policy) {
	for _, s := range p.Settings() {
		s.Reset()
	}
	return p
}

// Shorter durations are taken for mistakes: no worker could renew such a lease in time.
const (
	minDuration = time.Millisecond
	minLease    = 100 * time.Millisecond
)

// maxArtifactBytes bounds what can be asked for artifacts of a run.
const maxArtifactBytes int64 = 1 << 40

// Settings has a row for each item of the policy that has a fixed name. Liveness has names of the operator's own.
func (p *Policy) Settings() []Setting {
	duration := func(name string, at *time.Duration, standard time.Duration, help string) Setting {
		return Setting{Name: name, Value: at, Default: standard, Min: minDuration, Help: help}
	}
	return []Setting{
		{"lease", &p.Lease, time.Minute, minLease, nil, "a worker's right to execute, from each sign of life"},
		duration("cancel_grace", &p.CancelGrace, 30*time.Second,
			"a cancel request that nobody acknowledges is enforced after this"),
		duration("cleanup_grace", &p.CleanupGrace, 10*time.Minute,
			"an acknowledged cancel request leaves this long to clean up"),
		duration("dispatched_retry", &p.DispatchedRetry, 5*time.Second,
			"a grant that is not heard from may be granted again after this, doubling"),
		duration("dispatched_retry_max", &p.DispatchedRetryMax, 5*time.Minute,
			"the longest that `dispatched_retry` doubles to"),
		duration("dispatched_timeout", &p.DispatchedTimeout, 30*time.Second,
			"a grant that is not heard from goes back to the queue after this"),
		duration("local_claim", &p.LocalClaim, time.Minute,
			"a run of `perdure exec` that its runner does not take ends after this"),
		{"max_deliveries", &p.MaxGrants, 10, 1, MaxAttempts,
			"grants in a row that nobody was heard from, before the run ends as a dead letter"},
		duration("inbox_processing_timeout", &p.InboxProcessingTimeout, time.Minute,
			"an inbox item in the hands of a holder that is gone is looked at after this"),
		duration("suspend_timeout", &p.SuspendTimeout, 10*time.Minute,
			"the timeout of a wait that has none of its own"),
		duration("pending_wakeup", &p.PendingWakeup, 10*time.Second,
			"an inbox item that may satisfy a wait is looked at again after this"),
		duration("pending_wakeup_skip", &p.PendingWakeupSkip, 10*time.Minute,
			"an item of a run that has ended is given up after this"),
		duration("active_reap", &p.ActiveReap, 30*time.Minute,
			"a running run without any sign of life ends after this; the net under the lease, and not shorter"),
		duration("queued_alert", &p.QueuedAlert, 5*time.Minute,
			"a claimable run that nobody takes is reported after this"),
		duration("silent", &p.Silent, 30*time.Second,
			"a running run without a sign of life is reported after this"),
		duration("no_progress", &p.NoProgress, 10*time.Minute,
			"a running run that beats and does not move is reported after this"),
		duration("stale_after", &p.StaleAfter, 2*time.Minute,
			"a running run without a sign of life is `stale`, and reported, after this; shorter than `dead_after`"),
		duration("dead_after", &p.DeadAfter, 10*time.Minute,
			"a running run without a sign of life is `dead` after this; a process is given up then"),
		duration("worker_offline", &p.WorkerOffline, 2*time.Minute,
			"a worker without a sign of life is shown as offline after this"),
		duration("backoff_base", &p.BackoffBase, time.Second,
			"the first retry waits this long, each further one twice as long"),
		duration("backoff_max", &p.BackoffMax, 5*time.Minute, "the longest that a backoff doubles to"),
		{"backoff_jitter", &p.BackoffJitter, 0.2, 0.0, 1.0, "the share by which a backoff varies, up or down"},
		{"hold_defects", &p.HoldDefects, true, nil, nil,
			"a defect of an agent's code holds its run; false: it costs an attempt, as other failures do"},
		duration("hold_timeout", &p.HoldTimeout, 24*time.Hour,
			"a run that a defect holds for this long ends as a dead letter; its deadline may be earlier"),
		duration("hold_timeout_thread", &p.HoldTimeoutThread, 15*time.Minute, "the same for a run on a thread"),
		{"max_attempts", &p.MaxAttempts, 3, 1, MaxAttempts,
			"attempts that may be lost in a row, without committed progress; a run may ask for another number"},
		duration("timeouts.task.default", &p.Timeouts.Task.Default, 10*time.Minute,
			"the timeout of a task that asks for none; not above its `max`"),
		duration("timeouts.task.max", &p.Timeouts.Task.Max, time.Hour, "the greatest that a task may ask for"),
		duration("timeouts.agent.default", &p.Timeouts.Agent.Default, 24*time.Hour,
			"the timeout of an agent that asks for none"),
		duration("timeouts.agent.max", &p.Timeouts.Agent.Max, 30*24*time.Hour,
			"the greatest that an agent may ask for"),
		duration("timeouts.process.default", &p.Timeouts.Process.Default, 24*time.Hour,
			"the timeout of a process that asks for none"),
		duration("timeouts.process.max", &p.Timeouts.Process.Max, 30*24*time.Hour,
			"the greatest that a process may ask for"),
		duration("beat_every", &p.HeartbeatEvery, time.Minute,
			"a heartbeat that says nothing new makes a line in the log at most this often"),
		duration("waiter_ttl", &p.WaiterTTL, 30*time.Second,
			"a node's word that somebody waits for a run holds this long"),
		duration("detach_grace", &p.DetachGrace, 10*time.Second, "a dropped connection defers the run after this"),
		duration("dead_letter_ttl", &p.DeadLetterTTL, 24*time.Hour, "how long a dead letter is kept"),
		duration("idempotency_ttl", &p.IdempotencyTTL, 24*time.Hour,
			"how long an idempotency key is kept, and at least as long as its run lives"),
		duration("retention", &p.Retention, 7*24*time.Hour,
			"how long a run is kept after its end; not shorter than `idempotency_ttl` and `dead_letter_ttl`"),
		duration("audit_retention", &p.AuditRetention, 90*24*time.Hour,
			"how long an entry of the audit log is kept"),
		duration("worker_retention", &p.WorkerRetention, 24*time.Hour,
			"how long a worker is listed after its last sign of life; counts for `lease` at least"),
		duration("webhook_retention", &p.WebhookRetention, 30*24*time.Hour,
			"how long a webhook is kept that was deleted, or came with runs that are over; for `retention` at least"),
		duration("key_retention", &p.KeyRetention, 90*24*time.Hour,
			"how long a key is listed that was revoked or has expired; for `idempotency_ttl` at least"),
		duration("kind_retention", &p.KindRetention, 30*24*time.Hour,
			"how long a kind is registered that no worker announces or serves; for `worker_retention` at least"),
		{"artifact_max_bytes", &p.ArtifactMaxBytes, int64(64 << 20), int64(1), maxArtifactBytes,
			"how large an artifact may be; not above `artifact_total_bytes`"},
		{"artifact_total_bytes", &p.ArtifactTotalBytes, int64(256 << 20), int64(1), maxArtifactBytes,
			"how large all that a run leaves may be together"},
		duration("watchdog_interval", &p.WatchdogInterval, 500*time.Millisecond,
			"the longest that the watchdog sleeps"),
		duration("gap_after", &p.GapAfter, 5*time.Second,
			"nobody has swept for this long: it was a gap; at least twice `watchdog_interval`"),
		duration("gap_spare", &p.GapSpare, 15*time.Second,
			"after a gap, the deadline of a run that was leased waits this long"),
		duration("patrol_every", &p.PatrolEvery, 5*time.Second,
			"how often a stretch of the live runs is walked through, to mend what should not be"),
	}
}

// kindSettings are the settings of a policy that the definition of a kind replaces for its runs.
var kindSettings = []string{"hold_timeout", "hold_timeout_thread", "backoff_base", "backoff_max", "max_attempts",
	"timeouts.task.default", "timeouts.agent.default", "timeouts.process.default"}

// PerKind tells whether the definition of a kind may have a value of its own for a setting of the
// policy.
func PerKind(setting string) bool { return slices.Contains(kindSettings, setting) }

// Validate refuses a policy under which a run might not end, or might be taken from a healthy
// worker.
func (p *Policy) Validate() error {
	for _, s := range p.Settings() {
		if err := s.Check(); err != nil {
			return err
		}
	}
	if p.ActiveReap < p.Lease {
		return Invalid("active_reap", "must not be shorter than the lease: it is the net under it")
	}
	if p.StaleAfter >= p.DeadAfter {
		return Invalid("stale_after", "must be shorter than dead_after")
	}
	if err := p.Liveness.validate(p); err != nil {
		return err
	}
	if p.GapAfter < 2*p.WatchdogInterval {
		return Invalid("gap_after", "must be at least twice watchdog_interval, or every pause is a gap")
	}
	if p.Retention < p.IdempotencyTTL || p.Retention < p.DeadLetterTTL {
		return Invalid("retention", "must not be shorter than idempotency_ttl and dead_letter_ttl: these lead to runs")
	}
	if p.ArtifactMaxBytes > p.ArtifactTotalBytes {
		return Invalid("artifact_max_bytes", "must not be above artifact_total_bytes, %d", p.ArtifactTotalBytes)
	}
	for _, c := range []Class{Task, Agent, Process} {
		if l := p.Timeouts.Of(c); l.Default > l.Max {
			return Invalid("timeouts."+string(c)+".default", "%s is above timeouts.%s.max, %s", l.Default, c, l.Max)
		}
	}
	return nil
}

// Deadline returns the deadline of a run that begins at from. A timeout of zero means the default
// of the class.
func (p *Policy) Deadline(class Class, timeout Duration, from Instant) (Instant, error) {
	l := p.Timeouts.Of(class)
	d := time.Duration(timeout)
	switch {
	case timeout == 0:
		d = l.Default
	case d < time.Millisecond:
		return 0, Invalid("timeout", "%s is too short", d)
	case d > l.Max:
		return 0, Invalid("timeout", "%s is above the greatest timeout of class %s, %s%s", d, class, l.Max,
			p.classFor(class, d))
	}
	return from.Add(d), nil
}

// classFor says which class takes a timeout that a task can't have, if one does.
func (p *Policy) classFor(class Class, d time.Duration) string {
	if class != Task || d > p.Timeouts.Of(Agent).Max {
		return ""
	}
	return "; class agent takes it: give the class with the request, or let the kind announce it"
}

// Backoff returns the delay of the n-th retry. roll is the random number of the jitter, from 0 to
// 1.
func (p *Policy) Backoff(n int, roll float64) time.Duration {
	d := doubled(p.BackoffBase, n-1, p.BackoffMax)
	return time.Duration(float64(d) * (1 + p.BackoffJitter*(2*roll-1)))
}

// RegrantAfter returns how long after the n-th grant without a sign of life a run can be
// granted again.
func (p *Policy) RegrantAfter(n int) time.Duration {
	return doubled(p.DispatchedRetry, n-1, p.DispatchedRetryMax)
}

// doubled returns base doubled some times, up to a limit but never less than base.
func doubled(base time.Duration, times int, limit time.Duration) time.Duration {
	d := base
	for range times {
		if d >= limit/2 {
			return max(base, limit)
		}
		d *= 2
	}
	return d
}

// afterLoss chooses the event for an execution that was lost or failed retryably: a retry while
// attempts remain, otherwise the end. This happens before the table is asked; without it, a run
// that kills its workers would be retried for ever. epoch is the one that the worker presented, or
// zero if the watchdog found the lease expired.
func (p *Policy) afterLoss(r *Run, epoch int64, why Failure, roll float64) Event {
	switch {
	case r.Cancel.RequestedAt != 0 && epoch == 0:
		return CancelEnforced{Why: "the worker was lost while the run was being cancelled"}
	case r.Cancel.RequestedAt != 0:
		return FailedForGood{Epoch: epoch, Failure: why}
	case r.Spent && epoch == 0 && why.Code != CodeHeartbeatLost:
		return GaveUp{Failure: Failure{Code: CodeOutcomeUnknown, Message: "its only attempt was given to worker " +
			r.Worker + ", which was not heard from: nobody knows whether it was executed"}}
	case r.Strikes+1 < r.MaxAttempts:
		return Retried{Epoch: epoch, Failure: why, Delay: p.Backoff(r.Strikes+1, roll)}
	case epoch == 0 && why.Code != CodeHeartbeatLost:
		return GaveUp{Failure: Failure{Code: CodeAttemptsExhausted,
			Message: fmt.Sprintf("%d attempts in a row were lost; the last one: %s", r.Strikes+1, why.Message)}}
	default:
		return GaveUp{Epoch: epoch, Failure: why}
	}
}

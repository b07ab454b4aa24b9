package perdure

import (
	"cmp"
	"fmt"
	"time"
)

// Policy is every duration and bound that decides something about a run. The zero value is not usable:
// start from DefaultPolicy.
type Policy struct {
	Lease        time.Duration // a worker's right to execute, from each sign of life
	CancelGrace  time.Duration // a cancel request that nobody acknowledges is enforced after this
	CleanupGrace time.Duration // an acknowledged one has this long to clean up

	DispatchedRetry    time.Duration // a grant not heard from may be granted again after this, doubling
	DispatchedRetryMax time.Duration
	DispatchedTimeout  time.Duration // and goes back to the queue after this
	MaxDeliveries      int           // grants in a row that nobody was heard from, before it is a dead letter

	InboxProcessingTimeout time.Duration // W1
	SuspendTimeout         time.Duration // a wait without a timeout of its own, or of its name
	PendingWakeup          time.Duration // W9: look again at an item that may satisfy a wait
	PendingWakeupSkip      time.Duration // W9: give up an item of a run that has ended
	ActiveReap             time.Duration // W7
	QueuedAlert            time.Duration // W11
	Silent                 time.Duration // W13
	NoProgress             time.Duration // W13
	StaleAfter             time.Duration // W12: the tier of a run without a sign of life
	DeadAfter              time.Duration // W12
	Liveness               Liveness      // the last four, for kinds and activities
	WorkerOffline          time.Duration // W14

	BackoffBase   time.Duration // a retry waits base × 2ⁿ
	BackoffMax    time.Duration
	BackoffJitter float64 // ± this share

	MaxAttempts int                     // default of a run
	Timeouts    map[Class]TimeoutLimits // default and ceiling of a run's timeout

	BeatEvery      time.Duration // a line for an unchanged heartbeat at most this often
	WaiterTTL      time.Duration // a node's word that somebody waits for a run holds this long
	DetachGrace    time.Duration // a dropped connection defers the run after this
	DeadLetterTTL  time.Duration
	IdempotencyTTL time.Duration
	Retention      time.Duration // an ended run is kept this long
	AuditRetention time.Duration // an entry of the audit log is kept this long

	ArtifactMaxBytes   int64 // of one
	ArtifactTotalBytes int64 // of all that a run leaves

	WatchdogInterval time.Duration // the longest the watchdog sleeps
	GapAfter         time.Duration // nobody swept for this long: it was a gap
	GapSpare         time.Duration // after a gap, deadlines of runs that were leased wait this long
	PatrolEvery      time.Duration // how often the net under the transactions is drawn through the live runs
}

// WaitTimeouts are those of waits for a signal or an approval of these names that give none of their own.
var WaitTimeouts = map[string]time.Duration{
	"start_task":   5 * time.Minute,
	"approve_push": 10 * time.Minute,
}

// WaitTimeout is how long a wait lasts that has no timeout of its own: what its name has, or suspend_timeout, or more if the tool
// that it is for says so.
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

// TimeoutLimits are a class's default and greatest timeout.
type TimeoutLimits struct{ Default, Max time.Duration }

// DefaultPolicy is what a server has when nothing is configured.
func DefaultPolicy() Policy {
	return Policy{
		Lease:                  time.Minute,
		CancelGrace:            30 * time.Second,
		CleanupGrace:           10 * time.Minute,
		DispatchedRetry:        5 * time.Second,
		DispatchedRetryMax:     5 * time.Minute,
		DispatchedTimeout:      30 * time.Second,
		MaxDeliveries:          10,
		InboxProcessingTimeout: time.Minute,
		SuspendTimeout:         10 * time.Minute,
		PendingWakeup:          10 * time.Second,
		PendingWakeupSkip:      10 * time.Minute,
		ActiveReap:             30 * time.Minute,
		QueuedAlert:            5 * time.Minute,
		Silent:                 30 * time.Second,
		NoProgress:             10 * time.Minute,
		StaleAfter:             2 * time.Minute,
		DeadAfter:              10 * time.Minute,
		WorkerOffline:          2 * time.Minute,
		BackoffBase:            time.Second,
		BackoffMax:             5 * time.Minute,
		BackoffJitter:          0.2,
		MaxAttempts:            3,
		Timeouts: map[Class]TimeoutLimits{
			Task:    {10 * time.Minute, time.Hour},
			Agent:   {24 * time.Hour, 30 * 24 * time.Hour},
			Process: {24 * time.Hour, 30 * 24 * time.Hour},
		},
		BeatEvery:        time.Minute,
		WaiterTTL:        30 * time.Second,
		DetachGrace:      10 * time.Second,
		DeadLetterTTL:    24 * time.Hour,
		IdempotencyTTL:   24 * time.Hour,
		Retention:        7 * 24 * time.Hour,
		AuditRetention:   90 * 24 * time.Hour,
		ArtifactMaxBytes: 64 << 20, ArtifactTotalBytes: 256 << 20,
		WatchdogInterval: 500 * time.Millisecond,
		GapAfter:         5 * time.Second,
		GapSpare:         15 * time.Second,
		PatrolEvery:      5 * time.Second,
	}
}

// A Setting is a duration of a policy by its name, as configuration and documentation know it.
type Setting struct {
	Name  string
	Value *time.Duration
}

// Settings are all durations of the policy, to be read and changed by name.
func (p *Policy) Settings() []Setting {
	return []Setting{
		{"lease", &p.Lease}, {"cancel_grace", &p.CancelGrace}, {"cleanup_grace", &p.CleanupGrace},
		{"dispatched_retry", &p.DispatchedRetry}, {"dispatched_retry_max", &p.DispatchedRetryMax},
		{"dispatched_timeout", &p.DispatchedTimeout}, {"inbox_processing_timeout", &p.InboxProcessingTimeout},
		{"suspend_timeout", &p.SuspendTimeout}, {"pending_wakeup", &p.PendingWakeup},
		{"pending_wakeup_skip", &p.PendingWakeupSkip}, {"active_reap", &p.ActiveReap}, {"queued_alert", &p.QueuedAlert},
		{"silent", &p.Silent}, {"no_progress", &p.NoProgress}, {"stale_after", &p.StaleAfter}, {"dead_after", &p.DeadAfter}, {"worker_offline", &p.WorkerOffline},
		{"backoff_base", &p.BackoffBase}, {"backoff_max", &p.BackoffMax}, {"beat_every", &p.BeatEvery},
		{"waiter_ttl", &p.WaiterTTL}, {"detach_grace", &p.DetachGrace}, {"dead_letter_ttl", &p.DeadLetterTTL},
		{"idempotency_ttl", &p.IdempotencyTTL}, {"retention", &p.Retention}, {"audit_retention", &p.AuditRetention}, {"watchdog_interval", &p.WatchdogInterval},
		{"gap_after", &p.GapAfter}, {"gap_spare", &p.GapSpare}, {"patrol_every", &p.PatrolEvery},
	}
}

// A Size is a number of bytes of a policy by its name.
type Size struct {
	Name  string
	Value *int64
}

// Sizes are those that can be set.
func (p *Policy) Sizes() []Size {
	return []Size{{"artifact_max_bytes", &p.ArtifactMaxBytes}, {"artifact_total_bytes", &p.ArtifactTotalBytes}}
}

// What is shorter than these can't be meant: no worker could keep such a lease.
const (
	minDuration = time.Millisecond
	minLease    = 100 * time.Millisecond
)

// Validate refuses a policy under which a run might not end or could be taken from a healthy worker.
func (p *Policy) Validate() error {
	for _, s := range p.Settings() {
		if *s.Value < minDuration {
			return Invalid(s.Name, "must be at least %s, not %s", minDuration, *s.Value)
		}
	}
	if p.Lease < minLease {
		return Invalid("lease", "must be at least %s, not %s", minLease, p.Lease)
	}
	if p.MaxAttempts < 1 {
		return Invalid("max_attempts", "must be at least 1, not %d", p.MaxAttempts)
	}
	if p.MaxDeliveries < 1 {
		return Invalid("max_deliveries", "must be at least 1, not %d", p.MaxDeliveries)
	}
	if p.BackoffJitter < 0 || p.BackoffJitter > 1 {
		return Invalid("backoff_jitter", "must lie between 0 and 1, not %v", p.BackoffJitter)
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
	for _, s := range p.Sizes() {
		if *s.Value < 1 || *s.Value > 1<<40 {
			return Invalid(s.Name, "must lie between 1 and %d bytes, not %d", 1<<40, *s.Value)
		}
	}
	if p.ArtifactMaxBytes > p.ArtifactTotalBytes {
		return Invalid("artifact_max_bytes", "must not be above artifact_total_bytes, %d", p.ArtifactTotalBytes)
	}
	for _, c := range []Class{Task, Agent, Process} {
		l, ok := p.Timeouts[c]
		if !ok || l.Default <= 0 || l.Max < l.Default {
			return Invalid("timeouts."+string(c), "needs a positive default that is not above its maximum")
		}
	}
	return nil
}

// Deadline is the instant at which a run of that class ends at the latest. A timeout of zero is the
// class's default.
func (p *Policy) Deadline(class Class, timeout Duration, from Instant) (Instant, error) {
	l := p.Timeouts[class]
	d := time.Duration(timeout)
	switch {
	case timeout == 0:
		d = l.Default
	case d < time.Millisecond:
		return 0, Invalid("timeout", "%s is too short", d)
	case d > l.Max:
		return 0, Invalid("timeout", "%s is above the greatest timeout of class %s, %s", d, class, l.Max)
	}
	return from.Add(d), nil
}

// Backoff is how long the n-th retry waits. roll, between 0 and 1, is the dice of the jitter.
func (p *Policy) Backoff(n int, roll float64) time.Duration {
	d := doubled(p.BackoffBase, n-1, p.BackoffMax)
	return time.Duration(float64(d) * (1 + p.BackoffJitter*(2*roll-1)))
}

// RedeliverAfter is how long the n-th delivery has to be heard from before it may be granted again.
func (p *Policy) RedeliverAfter(n int) time.Duration {
	return doubled(p.DispatchedRetry, n-1, p.DispatchedRetryMax)
}

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

// AfterLoss resolves a lost or retryably failed execution, before the table is asked, into the event that
// it amounts to: another attempt while some remain, and otherwise the end. Without this step a run that
// kills its workers would loop for ever. epoch is what the worker presented, or zero when the watchdog
// found the lease expired.
func (p *Policy) AfterLoss(r *Run, epoch int64, why Failure, roll float64) Event {
	switch {
	case r.Cancel.RequestedAt != 0 && epoch == 0:
		return CancelEnforced{Why: "the worker was lost while the run was being cancelled"}
	case r.Cancel.RequestedAt != 0:
		return FailedForGood{Epoch: epoch, Failure: why}
	case r.Strikes+1 < r.MaxAttempts:
		return Retried{Epoch: epoch, Failure: why, Delay: p.Backoff(r.Strikes+1, roll)}
	case epoch == 0 && why.Code != CodeHeartbeatLost:
		return GaveUp{Failure: Failure{Code: CodeAttemptsExhausted,
			Message: fmt.Sprintf("%d attempts in a row were lost; the last one: %s", r.Strikes+1, why.Message)}}
	default:
		return GaveUp{Epoch: epoch, Failure: why}
	}
}

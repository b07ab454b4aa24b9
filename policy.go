package perdure

import (
	"fmt"
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
	MaxDeliveries      int           // grants in a row without a sign of life before the run is a dead letter

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

	MaxAttempts int                     // default for runs that set none
	Timeouts    map[Class]TimeoutLimits // default and maximum of a run's timeout

	BeatEvery      time.Duration // an unchanged heartbeat is written to the log at most this often
	WaiterTTL      time.Duration // a node's record that a caller waits for a run expires after this
	DetachGrace    time.Duration // a run whose caller disconnected is deferred after this
	DeadLetterTTL  time.Duration
	IdempotencyTTL time.Duration
	Retention      time.Duration // an ended run is kept this long
	AuditRetention time.Duration // an entry of the audit log is kept this long

	ArtifactMaxBytes   int64 // of one artifact
	ArtifactTotalBytes int64 // of all artifacts of a run

	WatchdogInterval time.Duration // the longest sleep between two sweeps
	GapAfter         time.Duration // a time without a sweep on any node counts as a gap after this
	GapSpare         time.Duration // after a gap, the deadline of a leased run is enforced this much later
	PatrolEvery      time.Duration // how often the patrol checks a part of the live runs and repairs them
}

// WaitTimeouts has the default timeouts of waits for a signal or an approval, by its name.
var WaitTimeouts = map[string]time.Duration{
	"start_task":   5 * time.Minute,
	"approve_push": 10 * time.Minute,
}

// WaitTimeout returns the default timeout of a wait with that name.
func (p *Policy) WaitTimeout(name string) time.Duration {
	if d, ok := WaitTimeouts[name]; ok {
		return d
	}
	return p.SuspendTimeout
}

// TimeoutLimits are the default and the maximum timeout of a class.
type TimeoutLimits struct{ Default, Max time.Duration }

// DefaultPolicy returns the policy of a server without configuration.
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

// A Setting is a duration of a policy, with its name in configuration and documentation.
type Setting struct {
	Name  string
	Value *time.Duration
}

// Settings lists all durations of the policy, to be read and changed by name.
func (p *Policy) Settings() []Setting {
	return []Setting{
		{"lease", &p.Lease}, {"cancel_grace", &p.CancelGrace}, {"cleanup_grace", &p.CleanupGrace},
		{"dispatched_retry", &p.DispatchedRetry}, {"dispatched_retry_max", &p.DispatchedRetryMax},
		{"dispatched_timeout", &p.DispatchedTimeout}, {"inbox_processing_timeout", &p.InboxProcessingTimeout},
		{"suspend_timeout", &p.SuspendTimeout}, {"pending_wakeup", &p.PendingWakeup},
		{"pending_wakeup_skip", &p.PendingWakeupSkip}, {"active_reap", &p.ActiveReap}, {"queued_alert", &p.QueuedAlert},
		{"silent", &p.Silent}, {"no_progress", &p.NoProgress}, {"stale_after", &p.StaleAfter},
		{"dead_after", &p.DeadAfter}, {"worker_offline", &p.WorkerOffline},
		{"backoff_base", &p.BackoffBase}, {"backoff_max", &p.BackoffMax}, {"beat_every", &p.BeatEvery},
		{"waiter_ttl", &p.WaiterTTL}, {"detach_grace", &p.DetachGrace}, {"dead_letter_ttl", &p.DeadLetterTTL},
		{"idempotency_ttl", &p.IdempotencyTTL}, {"retention", &p.Retention},
		{"audit_retention", &p.AuditRetention}, {"watchdog_interval", &p.WatchdogInterval},
		{"gap_after", &p.GapAfter}, {"gap_spare", &p.GapSpare}, {"patrol_every", &p.PatrolEvery},
	}
}

// A Size is a number of bytes of a policy, with its name.
type Size struct {
	Name  string
	Value *int64
}

// Sizes lists all sizes of the policy.
func (p *Policy) Sizes() []Size {
	return []Size{{"artifact_max_bytes", &p.ArtifactMaxBytes}, {"artifact_total_bytes", &p.ArtifactTotalBytes}}
}

// Shorter durations are taken for mistakes: no worker could renew such a lease in time.
const (
	minDuration = time.Millisecond
	minLease    = 100 * time.Millisecond
)

// Validate refuses a policy under which a run might not end, or might be taken from a healthy
// worker.
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

// Deadline returns the deadline of a run that begins at from. A timeout of zero means the default
// of the class.
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

// Backoff returns the delay of the n-th retry. roll is the random number of the jitter, from 0 to
// 1.
func (p *Policy) Backoff(n int, roll float64) time.Duration {
	d := doubled(p.BackoffBase, n-1, p.BackoffMax)
	return time.Duration(float64(d) * (1 + p.BackoffJitter*(2*roll-1)))
}

// RedeliverAfter returns how long after the n-th delivery without a sign of life a run can be
// granted again.
func (p *Policy) RedeliverAfter(n int) time.Duration {
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

// AfterLoss chooses the event for an execution that was lost or failed retryably: a retry while
// attempts remain, otherwise the end. This happens before the table is asked; without it, a run
// that kills its workers would be retried for ever. epoch is the one that the worker presented, or
// zero if the watchdog found the lease expired.
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

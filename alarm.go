package perdure

import "time"

// A Clock is one reason why a live run may need attention at some instant. The earliest instant of
// all clocks is the run's alarm. When it is due, the watchdog applies the rule that the clock
// names.
type Clock struct {
	Name string
	// Rule is the number of the watchdog's rule for this clock.
	Rule string
	// Note says when the clock is due; docs/lifecycle.md prints it.
	Note string
	// at returns zero while the clock does not run.
	at func(p *Policy, r *Run) Instant
}

// Clocks lists all clocks. The deadline runs in every live state, so every live run has an alarm
// and no live state lacks a way out.
//
// The order matters: if several clocks are due, the watchdog acts on the first. Clocks that end a
// run come before wait timeouts, and the lease comes before the reap, which is its backstop. The
// hold comes before the deadline, so that a run that is on hold until then ends with the defect.
var Clocks = []Clock{
	{"hold", "W15", "queued and on hold: hold_timeout since the first defect, at most deadline_at",
		func(_ *Policy, r *Run) Instant {
			if !r.OnHold() || r.Cancel.RequestedAt != 0 {
				return 0
			}
			return when(r.State == Queued, r.Hold.Until, 0)
		}},
	{"deadline", "W8", "deadline_at", func(_ *Policy, r *Run) Instant { return r.DeadlineAt }},
	{"cancel-grace", "W15", "a cancel request: cancel_grace unacknowledged, cleanup_grace once acknowledged " +
		"or queued again for clean-up",
		func(p *Policy, r *Run) Instant {
			switch {
			case r.Cancel.CleanupAt != 0:
				return r.Cancel.CleanupAt.Add(p.CleanupGrace)
			case r.Cancel.AckedAt != 0:
				return r.Cancel.AckedAt.Add(p.CleanupGrace)
			case r.Cancel.RequestedAt != 0:
				return r.Cancel.RequestedAt.Add(p.CancelGrace)
			}
			return 0
		}},
	{"lease", "W6", "leased and heard from: the end of its lease; of a process, only while its single attempt " +
		"counts as spent by the grant alone",
		func(p *Policy, r *Run) Instant {
			return when(r.State.Leased() && r.HolderSeen && (!r.Options.Process || r.Spent), r.LeaseUntil, 0)
		}},
	{"dead", "W12", "running and heard from, a process: dead_after after the last sign of life; " +
		"after the server's restart, not while it is watched",
		func(p *Policy, r *Run) Instant {
			return watched(r, when(r.State == Running && r.HolderSeen && r.Options.Process, r.SeenAt,
				p.Thresholds(r).Dead))
		}},
	{"undelivered", "W5", "granted and not heard from: dispatched_timeout after the first grant",
		func(p *Policy, r *Run) Instant {
			return when(r.State.Leased() && !r.HolderSeen, r.FirstGrantAt, p.DispatchedTimeout)
		}},
	{"redeliver", "W4", "granted and not heard from: dispatched_retry, doubling, after the last grant",
		func(p *Policy, r *Run) Instant {
			again := !r.HolderSeen && !r.Ready && r.Grants < p.MaxGrants
			return when(r.State.Leased() && again, r.GrantedAt, p.RegrantAfter(r.Grants))
		}},
	{"reap", "W7", "running: active_reap after the last sign of life",
		func(p *Policy, r *Run) Instant {
			return watched(r, when(r.State == Running, r.SeenAt, p.reapAfter(r)))
		}},
	{"wait", "W2", "suspended: the first timeout of its open waits",
		func(_ *Policy, r *Run) Instant {
			return when(r.State == Suspended, r.WaitAt, 0)
		}},
	{"copy", "W15", "queued, a retry whose journal is being copied: 20 ms after the last part",
		func(_ *Policy, r *Run) Instant {
			return when(r.State == Queued && r.Copying(), max(r.MovedAt, r.CreatedAt), CopyPause)
		}},
	{"due", "W15", "queued: the end of its delay or backoff",
		func(_ *Policy, r *Run) Instant {
			waits := r.Turn == TurnWaiting || r.Copying() || r.AtLimit()
			return when(r.State == Queued && !r.Ready && !waits, r.ReadyAt, 0)
		}},
	{"unclaimed", "W5", "claimable, a run of `perdure exec`: local_claim since then",
		func(p *Policy, r *Run) Instant {
			return when(r.State == Queued && r.Ready && r.Local(), r.ReadyAt, p.LocalClaim)
		}},
	{"queued-long", "W11", "claimable, or blocked by a limit: queued_alert since then",
		func(p *Policy, r *Run) Instant {
			if r.State == Queued && r.AtLimit() && r.AlertsSent&AlertQueued == 0 {
				return r.Limited.Since.Add(p.QueuedAlert)
			}
			return when(r.State == Queued && r.Ready && r.AlertsSent&AlertQueued == 0, r.ReadyAt, p.QueuedAlert)
		}},
	{"silent", "W13", "running: silent after the last sign of life",
		func(p *Policy, r *Run) Instant {
			return when(r.State == Running && r.HolderSeen && r.AlertsSent&AlertSilent == 0, r.SeenAt,
				p.Thresholds(r).Silent)
		}},
	{"no-progress", "W13", "running: no_progress after the last change of activity, event or journal; " +
		"queued and on hold: no_progress after the first defect",
		func(p *Policy, r *Run) Instant {
			if r.State == Queued && r.OnHold() && r.Cancel.RequestedAt == 0 {
				return when(r.AlertsSent&AlertHold == 0, r.Hold.Since, p.Thresholds(r).NoProgress)
			}
			alert := r.HolderSeen && r.AlertsSent&AlertNoProgress == 0
			return when(r.State == Running && alert, r.MovedAt, p.Thresholds(r).NoProgress)
		}},
	{"stale", "W12", "running: stale_after after the last sign of life",
		func(p *Policy, r *Run) Instant {
			return when(r.State == Running && r.HolderSeen && r.AlertsSent&AlertStale == 0, r.SeenAt,
				p.Thresholds(r).Stale)
		}},
}

// CopyPause is the pause between two parts of a journal that is copied to a retry. Others get their
// turn at the store meanwhile.
const CopyPause = 20 * time.Millisecond

// when returns from+d if the condition holds and from is set, and zero otherwise.
func when(holds bool, from Instant, d time.Duration) Instant {
	if !holds || from == 0 {
		return 0
	}
	return from.Add(d)
}

// watched returns the instant, or the end of the time in which a process is watched if that is later.
func watched(r *Run, at Instant) Instant {
	if at == 0 {
		return 0
	}
	return max(at, r.WatchUntil)
}

// At returns when the clock is due for a run, or zero if it does not run in the run's state.
func (c *Clock) At(p *Policy, r *Run) Instant {
	if !r.State.Live() {
		return 0
	}
	return c.at(p, r)
}

// Alarm returns the earliest instant of a run's clocks, or zero for a run that has ended.
func (p *Policy) Alarm(r *Run) Instant {
	var first Instant
	for i := range Clocks {
		first = earliest(first, Clocks[i].At(p, r))
	}
	return first
}

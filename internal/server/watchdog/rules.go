package watchdog

import (
	"cmp"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
)

// A Rule is one row of the table: condition, action, bound. docs/watchdog.md is printed from them.
//
// A rule has up to three names. ID is its number in the specification, and several rules may share
// one. Name is unique. Both are labels of a metric and fields of stored entries, so they never
// change. FullName is the name for people where Name is too short to be understood alone. The
// server's log has all three.
type Rule struct {
	ID       string
	Name     string
	FullName string

	// Clock is the run's clock that calls the rule. It is empty for a rule that belongs to another
	// part of a sweep.
	Clock string
	// Postponed rules judge by silence, so they wait after a gap.
	Postponed bool

	Condition string
	Action    string
	Bound     string

	act func(tx *kernel.Tx, r *perdure.Run) error
}

// Names of rules that the code refers to.
const (
	ruleQueuedLong    = "queued-too-long"
	ruleUnclaimed     = "unclaimed"
	ruleCopy          = "copy"
	ruleWorkerOffline = "workers"
	ruleGroupDeadline = "group-deadline"
	ruleWaiterExpiry  = "waiters"
	ruleSchedule      = "schedule"
	ruleLimit         = "limit"
	ruleCascade       = "cascade"
	ruleLogTrim       = "log"
	ruleRetention     = "retention"
	ruleTTLExpiry     = "ttl"
)

// Rules lists all rules. Those with a clock come first, in the order in which they are tried.
var Rules = []Rule{
	{ID: "W15", Name: "hold-timeout", FullName: "hold-timeout-over", Clock: "hold",
		Condition: "`queued`, and a defect of the code has held it for too long",
		Action:    "`failed` with the defect's code, and a dead letter",
		Bound:     "`hold_timeout`, on a thread `hold_timeout_thread`; at most `deadline_at`",
		act:       func(tx *kernel.Tx, r *perdure.Run) error { return life.Finish(tx, r, perdure.HoldExpired{}) }},
	{ID: "W8", Name: "deadline", Clock: "deadline",
		Condition: "`deadline_at` has passed, in any live state",
		Action:    "`timeout`/`deadline_exceeded`; not retried",
		Bound:     "`deadline_at`, which nothing extends",
		act:       func(tx *kernel.Tx, r *perdure.Run) error { return dispatch.EndAtDeadline(tx, r) }},
	{ID: "W15", Name: "cancel-grace", FullName: "cancel-grace-over", Clock: "cancel-grace", Postponed: true,
		Condition: "a cancel request was not acknowledged in time, or its clean-up has taken too long",
		Action:    "`cancelled`; the lease is gone",
		Bound:     "`cancel_grace`; once acknowledged `cleanup_grace`",
		act: func(tx *kernel.Tx, r *perdure.Run) error {
			return life.Finish(tx, r, perdure.CancelEnforced{Why: "the worker did not stop in time"})
		}},
	{ID: "W6", Name: "lost-worker", Clock: "lease", Postponed: true,
		Condition: "`running`, the lease has expired",
		Action: "queued with attempt+1 and backoff while attempts remain; " +
			"then `failed`/`attempts_exhausted` and a dead letter; `failed`/`outcome_unknown` if its only attempt " +
			"was given to a worker that did not promise `confirms` and was not heard from; under a cancel request " +
			"`cancelled`, or queued for clean-up while a saga has steps to undo",
		Bound: "`lease`",
		act: func(tx *kernel.Tx, r *perdure.Run) error {
			why := "worker " + r.Worker + " was not heard from in time"
			return life.RetryOrFail(tx, r, 0, perdure.Failure{Code: "lease_lost", Message: why})
		}},
	{ID: "W12", Name: "dead", Clock: "dead", Postponed: true,
		Condition: "`running`, a process (class `process`) without a sign of life",
		Action: "queued with attempt+1 and backoff while attempts remain; " +
			"then `failed`/`heartbeat_lost` and a dead letter",
		Bound: "`dead_after`",
		act: func(tx *kernel.Tx, r *perdure.Run) error {
			why := "no heartbeat for " + tx.Now.Sub(r.SeenAt).Round(time.Second).String()
			return life.RetryOrFail(tx, r, 0, perdure.Failure{Code: perdure.CodeHeartbeatLost, Message: why})
		}},
	{ID: "W5", Name: "dispatch-timeout", Clock: "undelivered", Postponed: true,
		Condition: "granted and not heard from since its first grant",
		Action: "back to `queued`, no attempt spent; " +
			"after `max_deliveries` deliveries `timeout`/`dispatch_timeout` and a dead letter",
		Bound: "`dispatched_timeout`; `max_deliveries`",
		act: func(tx *kernel.Tx, r *perdure.Run) error {
			switch {
			case r.Cancel.RequestedAt != 0:
				return life.LoseCancelled(tx, r, 0, "not_started",
					"the dispatch was lost while the run was being cancelled")
			case r.Grants >= tx.Policy().MaxGrants:
				return life.Finish(tx, r, perdure.NeverStarted{})
			}
			return life.Requeue(tx, r, perdure.GrantLost{})
		}},
	{ID: "W5", Name: ruleUnclaimed, FullName: "exec-unclaimed", Clock: "unclaimed", Postponed: true,
		Condition: "`queued`, a run of `perdure exec` that its runner does not take; " +
			"not while its queue or kind is paused",
		Action: "`timeout`/`dispatch_timeout` and a dead letter",
		Bound:  "`local_claim`",
		act:    func(tx *kernel.Tx, r *perdure.Run) error { return life.Finish(tx, r, perdure.NeverClaimed{}) }},
	{ID: "W4", Name: "dispatch-retry", Clock: "redeliver", Postponed: true,
		Condition: "granted and not heard from since its n-th delivery",
		Action:    "may be granted again, to any poller; ring",
		Bound:     "`dispatched_retry` × 2ⁿ⁻¹, at most `dispatched_retry_max`",
		act:       func(tx *kernel.Tx, r *perdure.Run) error { return tx.Apply(r, perdure.Regrantable{}) }},
	{ID: "W7", Name: "reap", Clock: "reap", Postponed: true,
		Condition: "`running`, no sign of life; the net under W6 and W12",
		Action:    "`failed`/`timeout_reaped_by_watchdog`, no retry",
		Bound:     "`active_reap`",
		act:       func(tx *kernel.Tx, r *perdure.Run) error { return life.Finish(tx, r, perdure.Reaped{}) }},
	{ID: "W2", Name: "suspended-too-long", Clock: "wait",
		Condition: "`suspended`, an open wait's deadline has passed",
		Action: "a timeout report into the inbox for that wait (`tool_timeout`), run queued; " +
			"other waits stay open, children go on",
		Bound: "the wait's timeout, otherwise `suspend_timeout`",
		act:   func(tx *kernel.Tx, r *perdure.Run) error { return life.TimeOutWaits(tx, r) }},
	{ID: "W15", Name: ruleCopy, FullName: "journal-copied", Clock: "copy",
		Condition: "a retry that begins with the journal of its original, which is not copied whole yet",
		Action:    "the next entries are copied; with the last ones it is claimable; ring",
		Bound:     "128 entries or 1 MiB every 20 ms for all retries of a tenant; every 120 ms after 256 parts",
		act:       func(tx *kernel.Tx, r *perdure.Run) error { return life.CopyJournal(tx, r) }},
	{ID: "W15", Name: "due", FullName: "delay-over", Clock: "due",
		Condition: "`queued`, its delay or backoff is over",
		Action:    "claimable, or its place on its thread; ring",
		Bound:     "`run_at`, the backoff: `backoff_base` × 2ⁿ⁻¹, at most `backoff_max`",
		act: func(tx *kernel.Tx, r *perdure.Run) error {
			if r.Turn == perdure.TurnLater {
				return life.JoinThread(tx, r)
			}
			return tx.Apply(r, perdure.Due{})
		}},
	{ID: "W11", Name: ruleQueuedLong, Clock: "queued-long", Postponed: true,
		Condition: "claimable, and nobody takes it, or blocked by a limit; not while its queue or kind is paused",
		Action:    "`run:slow` with reason `queued`; never a kill",
		Bound:     "`queued_alert`",
		act:       alertSlow("queued", perdure.AlertQueued)},
	{ID: "W13", Name: "silent", Clock: "silent", Postponed: true,
		Condition: "`running`, no sign of life",
		Action:    "`run:slow` with reason `silent`, once per silence; never a kill",
		Bound:     "`silent`",
		act:       alertSlow("silent", perdure.AlertSilent)},
	{ID: "W13", Name: "no-progress", Clock: "no-progress", Postponed: true,
		Condition: "`running`, heartbeats without change of activity, event or journal; or `queued` and on hold",
		Action:    "`run:slow` with reason `no_progress`, once per hold; never a kill",
		Bound:     "`no_progress`",
		act: func(tx *kernel.Tx, r *perdure.Run) error {
			bit := perdure.AlertNoProgress
			if r.State == perdure.Queued {
				bit = perdure.AlertHold
			}
			return alertSlow("no_progress", bit)(tx, r)
		}},
	{ID: "W12", Name: "stale", Clock: "stale", Postponed: true,
		Condition: "`running`, no sign of life for so long that it may be gone",
		Action:    "`run:stale`, once per silence; never a kill",
		Bound:     "`stale_after`",
		act: func(tx *kernel.Tx, r *perdure.Run) error {
			if err := tx.Apply(r, perdure.WentStale{}); err != nil {
				return err
			}
			return life.NotifyStall(tx, r)
		}},

	{ID: "W1", Name: "inbox-reclaim", Postponed: true,
		Condition: "an inbox item is `processing` under an epoch that is no longer current",
		Action:    "back to `pending`",
		Bound:     "`inbox_processing_timeout`"},
	{ID: "W9", Name: "pending-wakeup", Postponed: true,
		Condition: "an item that satisfies an open wait is `pending`; or one of a run that has ended or is gone",
		Action: "the wait is evaluated again, run queued, ring; " +
			"or `skipped` with `watchdog_error` and `watchdog_at`. A signal nobody waits for yet is kept",
		Bound: "`pending_wakeup`; `pending_wakeup_skip`"},
	{ID: "W3", Name: "resume-replay",
		Condition: "`suspended` although a wait is over; a chord or group whose condition holds; " +
			"a live child whose parent ended and that may not outlive it",
		Action: "queued; continued; cancel requested",
		Bound:  "the next patrol, every `patrol_every`"},
	{ID: "W10", Name: "orphans",
		Condition: "a live run whose queue, thread, tenant or parent no longer exists; an open wait on a run " +
			"that doesn't",
		Action: "`failed`/`orphaned`; the wait ends as `orphaned`",
		Bound:  "the next patrol"},
	{ID: "W10", Name: "damaged",
		Condition: "a live run whose row can't be read, whose alarm is missing, or lies after its deadline",
		Action: "`failed`/`damaged`, or `signature_invalid` where signatures are required, and a dead letter; " +
			"the alarm is set anew",
		Bound: "the next poll that finds it, its alarm, the next patrol"},
	{ID: "W14", Name: ruleWorkerOffline, FullName: "worker-offline", Postponed: true,
		Condition: "a worker gave no sign of life",
		Action:    "shown as `offline`; its leases fall to W6",
		Bound:     "`worker_offline`"},
	{ID: "W15", Name: ruleGroupDeadline, FullName: "group-deadline-passed",
		Condition: "a group's deadline has passed",
		Action:    "`timed_out`; its runs go on",
		Bound:     "the group's timeout"},
	{ID: "W15", Name: ruleWaiterExpiry, FullName: "waiter-expired",
		Condition: "the last waiter of a run has expired",
		Action:    "the run is deferred; the work goes on",
		Bound:     "`detach_grace`; `waiter_ttl` for a dead node"},
	{ID: "W15", Name: ruleSchedule, FullName: "schedule-due",
		Condition: "an instant of a schedule has come",
		Action:    "a run is started, and the schedule moves to its next instant; or what its plan says of overlaps",
		Bound:     "the instant and its jitter"},
	{ID: "W15", Name: ruleLimit, FullName: "limit-room",
		Condition: "a limit that runs wait at allows the next one, is opened, changed or deleted; " +
			"or nobody has claimed a run that it has let through for 1 s",
		Action: "runs that wait there become claimable, one for each free slot; ring",
		Bound:  "the limit's rate, the end of its closure, 1 s; 16 runs in a sweep for each key"},
	{ID: "W15", Name: ruleCascade, FullName: "cascade-to-children",
		Condition: "an ended run still has live children that may not outlive it",
		Action:    "they are asked to stop, a portion at a time",
		Bound:     "the next sweep"},
	{ID: "W15", Name: ruleLogTrim, FullName: "watchdog-log-trim",
		Condition: "the watchdog's log has more than 10 000 entries, or one that is older than 7 days",
		Action:    "the oldest are removed, a portion at a time",
		Bound:     "500 more; an hour"},
	{ID: "W15", Name: ruleRetention, FullName: "retention-removal",
		Condition: "a run ended `retention` ago, and nothing live or open refers to it; " +
			"an upload was not finished within an hour; " +
			"a worker is gone, a webhook or a kind unused, or a key invalid for so long",
		Action: "removed with all that belongs to it, in small steps",
		Bound: "`retention`, `worker_retention`, `webhook_retention`, `key_retention`, `kind_retention`; " +
			"the next round through all runs"},
	{ID: "W15", Name: ruleTTLExpiry, FullName: "ttl-expired",
		Condition: "a dead letter, or an idempotency key whose run has ended, has expired",
		Action:    "removed",
		Bound:     "`dead_letter_ttl`, `idempotency_ttl`"},
}

// fullName returns the name for people.
func (r *Rule) fullName() string { return cmp.Or(r.FullName, r.Name) }

// RuleNames returns the ids and names by which stored actions can be selected: W1 to W15, then the
// name of each rule.
func RuleNames() []string {
	var ids, names []string
	for i := range Rules {
		if !slices.Contains(ids, Rules[i].ID) {
			ids = append(ids, Rules[i].ID)
		}
		names = append(names, Rules[i].Name)
	}
	slices.SortFunc(ids, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) })
	return append(ids, names...)
}

// StoredName returns the name that stored actions have for a rule that may be given by its full
// name. Any other text is returned as it is.
func StoredName(name string) string {
	for i := range Rules {
		if Rules[i].FullName == name && name != "" {
			return Rules[i].Name
		}
	}
	return name
}

// alertSlow returns the action of a rule that writes run:slow with a reason, once: the bit says
// that it was written. A parent that waits with on_stall is told.
func alertSlow(reason string, bit perdure.Alerts) func(*kernel.Tx, *perdure.Run) error {
	return func(tx *kernel.Tx, r *perdure.Run) error {
		if err := tx.Apply(r, perdure.Slow{Reason: reason, Bit: bit}); err != nil {
			return err
		}
		return life.NotifyStall(tx, r)
	}
}

// byClock has the rule that each clock of a run calls.
var byClock = func() map[string]*Rule {
	m := make(map[string]*Rule)
	for i := range Rules {
		if c := Rules[i].Clock; c != "" {
			m[c] = &Rules[i]
		}
	}
	return m
}()

// byName has each rule by its name.
var byName = func() map[string]*Rule {
	m := make(map[string]*Rule)
	for i := range Rules {
		m[Rules[i].Name] = &Rules[i]
	}
	return m
}()

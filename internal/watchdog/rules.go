package watchdog

import (
	"cmp"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/engine"
)

// A Rule is one line of the safety net: condition, action, bound. docs/watchdog.md is printed from these.
type Rule struct {
	ID        string // by which it is known in logs, metrics and docs
	Name      string
	Clock     string // the run's clock that calls it; empty: it has an alarm or a walk of its own
	Held      bool   // held back after a gap
	Condition string
	Action    string
	Bound     string

	act func(tx *engine.Tx, r *perdure.Run) error
}

// Rules are all there are, in the order in which they are tried.
var Rules = []Rule{
	{ID: "W8", Name: "deadline", Clock: "deadline",
		Condition: "`deadline_at` has passed, in any live state",
		Action:    "`timeout`/`deadline_exceeded`; not retried", Bound: "`deadline_at`, which nothing extends",
		act: func(tx *engine.Tx, r *perdure.Run) error { return tx.Finish(r, perdure.DeadlinePassed{}) }},
	{ID: "W15", Name: "cancel-grace", Clock: "cancel-grace", Held: true,
		Condition: "a cancel request was not acknowledged in time, or its clean-up has taken too long",
		Action:    "`cancelled`; the lease is gone", Bound: "`cancel_grace`; once acknowledged `cleanup_grace`",
		act: func(tx *engine.Tx, r *perdure.Run) error {
			return tx.Finish(r, perdure.CancelEnforced{Why: "the worker did not stop in time"})
		}},
	{ID: "W6", Name: "lost-worker", Clock: "lease", Held: true,
		Condition: "`running`, the lease has expired",
		Action:    "queued with attempt+1 and backoff while attempts remain; then `failed`/`attempts_exhausted` and a dead letter", Bound: "`lease`",
		act: func(tx *engine.Tx, r *perdure.Run) error {
			return tx.Lose(r, 0, perdure.Failure{Code: "lease_lost", Message: "worker " + r.Worker + " was not heard from in time"})
		}},
	{ID: "W12", Name: "dead", Clock: "dead", Held: true,
		Condition: "`running`, a process (class `process`) without a sign of life",
		Action:    "queued with attempt+1 and backoff while attempts remain; then `failed`/`heartbeat_lost` and a dead letter", Bound: "`dead_after`",
		act: func(tx *engine.Tx, r *perdure.Run) error {
			return tx.Lose(r, 0, perdure.Failure{Code: perdure.CodeHeartbeatLost, Message: "no heartbeat for " + tx.Now.Sub(r.SeenAt).Round(time.Second).String()})
		}},
	{ID: "W5", Name: "dispatch-timeout", Clock: "undelivered", Held: true,
		Condition: "granted and not heard from since its first grant",
		Action:    "back to `queued`, no attempt spent; after ten deliveries `timeout`/`dispatch_timeout` and a dead letter", Bound: "`dispatched_timeout`",
		act: func(tx *engine.Tx, r *perdure.Run) error {
			switch {
			case r.Cancel.RequestedAt != 0:
				return tx.Finish(r, perdure.CancelEnforced{Why: "the dispatch was lost while the run was being cancelled"})
			case r.Deliveries >= tx.Policy().MaxDeliveries:
				return tx.Finish(r, perdure.DeliveryGaveUp{})
			}
			return tx.Requeue(r, perdure.Undelivered{})
		}},
	{ID: "W4", Name: "dispatch-retry", Clock: "redeliver", Held: true,
		Condition: "granted and not heard from since its n-th delivery",
		Action:    "may be granted again, to any poller; ring", Bound: "`dispatched_retry` × 2ⁿ⁻¹, at most 5 min",
		act: func(tx *engine.Tx, r *perdure.Run) error { return tx.Apply(r, perdure.Redeliverable{}) }},
	{ID: "W7", Name: "reap", Clock: "reap", Held: true,
		Condition: "`running`, no sign of life; the net under W6 and W12",
		Action:    "`failed`/`timeout_reaped_by_watchdog`, no retry", Bound: "`active_reap`",
		act: func(tx *engine.Tx, r *perdure.Run) error { return tx.Finish(r, perdure.Reaped{}) }},
	{ID: "W2", Name: "suspended-too-long", Clock: "wait",
		Condition: "`suspended`, an open wait's deadline has passed",
		Action:    "a timeout report into the inbox for that wait (`tool_timeout`), run queued; other waits stay open, children go on", Bound: "the wait's timeout",
		act: func(tx *engine.Tx, r *perdure.Run) error { return tx.TimeOutWaits(r) }},
	{ID: "W15", Name: "due", Clock: "due",
		Condition: "`queued`, its delay or backoff is over",
		Action:    "claimable, or its place on its thread; ring", Bound: "`run_at`, the backoff",
		act: func(tx *engine.Tx, r *perdure.Run) error {
			if r.Turn == perdure.TurnLater {
				return tx.JoinThread(r)
			}
			return tx.Apply(r, perdure.Due{})
		}},
	{ID: "W11", Name: "queued-too-long", Clock: "queued-long", Held: true,
		Condition: "claimable, and nobody takes it",
		Action:    "`run:slow` with reason `queued`; never a kill", Bound: "`queued_alert`",
		act: slow("queued", perdure.SaidQueued)},
	{ID: "W13", Name: "silent", Clock: "silent", Held: true,
		Condition: "`running`, no sign of life",
		Action:    "`run:slow` with reason `silent`, once per silence; never a kill", Bound: "`silent`",
		act: slow("silent", perdure.SaidSilent)},
	{ID: "W13", Name: "no-progress", Clock: "no-progress", Held: true,
		Condition: "`running`, beats without change of activity, event or journal",
		Action:    "`run:slow` with reason `no_progress`; never a kill", Bound: "`no_progress`",
		act: slow("no_progress", perdure.SaidNoProgress)},
	{ID: "W12", Name: "stale", Clock: "stale", Held: true,
		Condition: "`running`, no sign of life for so long that it may be gone",
		Action:    "`run:stale`, once per silence; never a kill", Bound: "`stale_after`",
		act: func(tx *engine.Tx, r *perdure.Run) error {
			if err := tx.Apply(r, perdure.WentStale{}); err != nil {
				return err
			}
			return tx.Stalled(r)
		}},

	{ID: "W1", Name: "inbox-reclaim", Held: true,
		Condition: "an inbox item is `processing` under an epoch that is no longer current",
		Action:    "back to `pending`", Bound: "`inbox_processing_timeout`"},
	{ID: "W9", Name: "pending-wakeup", Held: true,
		Condition: "an item that satisfies an open wait is `pending`; or one of a run that has ended or is gone",
		Action:    "the wait is evaluated again, run queued, ring; or `skipped` with `watchdog_error` and `watchdog_at`. A signal nobody waits for yet is kept", Bound: "`pending_wakeup`; `pending_wakeup_skip`"},
	{ID: "W3", Name: "resume-replay",
		Condition: "`suspended` although a wait is over; a chord or group whose condition holds; a live child whose parent ended and that may not outlive it",
		Action:    "queued; continued; cancel requested", Bound: "the next patrol, every `patrol_every`"},
	{ID: "W10", Name: "orphans",
		Condition: "a live run whose queue, thread, tenant or parent no longer exists; an open wait on a run that doesn't",
		Action:    "`failed`/`orphaned`; the wait ends as `orphaned`", Bound: "the next patrol"},
	{ID: "W10", Name: "damaged",
		Condition: "a live run whose row can't be read, whose alarm is missing, or lies after its deadline",
		Action:    "`failed`/`damaged`, or `signature_invalid` where signatures are required, and a dead letter; the alarm is set anew", Bound: "the next poll that finds it, its alarm, the next patrol"},
	{ID: "W14", Name: "workers", Held: true,
		Condition: "a worker gave no sign of life",
		Action:    "shown as `offline`; its leases fall to W6", Bound: "`worker_offline`"},
	{ID: "W15", Name: "group-deadline",
		Condition: "a group's deadline has passed",
		Action:    "`timed_out`; its runs go on", Bound: "the group's timeout"},
	{ID: "W15", Name: "waiters",
		Condition: "nobody vouches for the last waiter of a run any more",
		Action:    "the run is deferred; the work goes on", Bound: "`detach_grace`; `waiter_ttl` for a dead node"},
	{ID: "W15", Name: "cascade",
		Condition: "an ended run still has live children that may not outlive it",
		Action:    "they are asked to stop, a batch at a time", Bound: "the next sweep"},
	{ID: "W15", Name: "log",
		Condition: "the watchdog's log has more than 10 000 entries, or one that is older than 7 days",
		Action:    "the oldest are removed, a batch at a time", Bound: "500 more; an hour"},
	{ID: "W15", Name: "retention",
		Condition: "a run ended `retention` ago, and nothing live or open refers to it; an upload was not finished within an hour; a worker is gone, a webhook unused or a key invalid for so long",
		Action:    "removed with all that belongs to it, in small steps", Bound: "`retention`, `worker_retention`, `webhook_retention`, `key_retention`; the next round through all runs"},
	{ID: "W15", Name: "ttl",
		Condition: "a dead letter, or an idempotency key whose run has ended, has expired",
		Action:    "removed", Bound: "`dead_letter_ttl`, `idempotency_ttl`"},
}

// RuleNames are what rules are known by: W1 to W15, and each one's name.
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

func slow(reason string, bit perdure.Said) func(*engine.Tx, *perdure.Run) error {
	return func(tx *engine.Tx, r *perdure.Run) error {
		if err := tx.Apply(r, perdure.Slow{Reason: reason, Bit: bit}); err != nil {
			return err
		}
		return tx.Stalled(r)
	}
}

// byClock finds the rule that a run's clock calls.
var byClock = func() map[string]*Rule {
	m := make(map[string]*Rule)
	for i := range Rules {
		if c := Rules[i].Clock; c != "" {
			m[c] = &Rules[i]
		}
	}
	return m
}()

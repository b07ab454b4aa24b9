// The rules of the watchdog, as in docs/watchdog.md. A test compares the two.

/** @type {{rule: string, name: string, when: string, then: string, bound: string}[]} */
export const rules = [
  {
    "rule": "W15", "name": "hold-timeout",
    "when": "queued, and a defect of the code has held it for too long",
    "then": "failed with the defect's code, and a dead letter",
    "bound": "hold_timeout, on a thread hold_timeout_thread; at most deadline_at",
  },
  {
    "rule": "W8", "name": "deadline",
    "when": "deadline_at has passed, in any live state",
    "then": "timeout/deadline_exceeded; not retried",
    "bound": "deadline_at, which nothing extends",
  },
  {
    "rule": "W15", "name": "cancel-grace",
    "when": "a cancel request was not acknowledged in time, or its clean-up has taken too long",
    "then": "cancelled; the lease is gone",
    "bound": "cancel_grace; once acknowledged cleanup_grace",
  },
  {
    "rule": "W6", "name": "lost-worker",
    "when": "running, the lease has expired",
    "then": "queued with attempt+1 and backoff while attempts remain; then failed/attempts_exhausted and a dead " +
      "letter; failed/outcome_unknown if its only attempt was given to a worker that did not promise confirms and " +
      "was not heard from; under a cancel request cancelled, or queued for clean-up while a saga has steps to undo",
    "bound": "lease",
  },
  {
    "rule": "W12", "name": "dead",
    "when": "running, a process (class process) without a sign of life",
    "then": "queued with attempt+1 and backoff while attempts remain; then failed/heartbeat_lost and a dead letter",
    "bound": "dead_after",
  },
  {
    "rule": "W5", "name": "dispatch-timeout",
    "when": "granted and not heard from since its first grant",
    "then": "back to queued, no attempt spent; after max_deliveries deliveries timeout/dispatch_timeout and a dead " +
      "letter",
    "bound": "dispatched_timeout; max_deliveries",
  },
  {
    "rule": "W5", "name": "unclaimed",
    "when": "queued, a run of perdure exec that its runner does not take; not while its queue or kind is paused",
    "then": "timeout/dispatch_timeout and a dead letter",
    "bound": "local_claim",
  },
  {
    "rule": "W4", "name": "dispatch-retry",
    "when": "granted and not heard from since its n-th delivery",
    "then": "may be granted again, to any poller; ring",
    "bound": "dispatched_retry × 2ⁿ⁻¹, at most dispatched_retry_max",
  },
  {
    "rule": "W7", "name": "reap",
    "when": "running, no sign of life; the net under W6 and W12",
    "then": "failed/timeout_reaped_by_watchdog, no retry",
    "bound": "active_reap",
  },
  {
    "rule": "W2", "name": "suspended-too-long",
    "when": "suspended, an open wait's deadline has passed",
    "then": "a timeout report into the inbox for that wait (tool_timeout), run queued; other waits stay open, " +
      "children go on",
    "bound": "the wait's timeout, otherwise suspend_timeout",
  },
  {
    "rule": "W15", "name": "copy",
    "when": "a retry that begins with the journal of its original, which is not copied whole yet",
    "then": "the next entries are copied; with the last ones it is claimable; ring",
    "bound": "128 entries or 1 MiB every 20 ms for all retries of a tenant; every 120 ms after 256 parts",
  },
  {
    "rule": "W15", "name": "due",
    "when": "queued, its delay or backoff is over",
    "then": "claimable, or its place on its thread; ring",
    "bound": "run_at, the backoff: backoff_base × 2ⁿ⁻¹, at most backoff_max",
  },
  {
    "rule": "W11", "name": "queued-too-long",
    "when": "claimable, and nobody takes it, or blocked by a limit; not while its queue or kind is paused",
    "then": "run:slow with reason queued; never a kill",
    "bound": "queued_alert",
  },
  {
    "rule": "W13", "name": "silent",
    "when": "running, no sign of life",
    "then": "run:slow with reason silent, once per silence; never a kill",
    "bound": "silent",
  },
  {
    "rule": "W13", "name": "no-progress",
    "when": "running, heartbeats without change of activity, event or journal; or queued and on hold",
    "then": "run:slow with reason no_progress, once per hold; never a kill",
    "bound": "no_progress",
  },
  {
    "rule": "W12", "name": "stale",
    "when": "running, no sign of life for so long that it may be gone",
    "then": "run:stale, once per silence; never a kill",
    "bound": "stale_after",
  },
  {
    "rule": "W1", "name": "inbox-reclaim",
    "when": "an inbox item is processing under an epoch that is no longer current",
    "then": "back to pending",
    "bound": "inbox_processing_timeout",
  },
  {
    "rule": "W9", "name": "pending-wakeup",
    "when": "an item that satisfies an open wait is pending; or one of a run that has ended or is gone",
    "then": "the wait is evaluated again, run queued, ring; or skipped with watchdog_error and watchdog_at. A " +
      "signal nobody waits for yet is kept",
    "bound": "pending_wakeup; pending_wakeup_skip",
  },
  {
    "rule": "W3", "name": "resume-replay",
    "when": "suspended although a wait is over; a chord or group whose condition holds; a live child whose " +
      "parent ended and that may not outlive it",
    "then": "queued; continued; cancel requested",
    "bound": "the next patrol, every patrol_every",
  },
  {
    "rule": "W10", "name": "orphans",
    "when": "a live run whose queue, thread, tenant or parent no longer exists; an open wait on a run that doesn't",
    "then": "failed/orphaned; the wait ends as orphaned",
    "bound": "the next patrol",
  },
  {
    "rule": "W10", "name": "damaged",
    "when": "a live run whose row can't be read, whose alarm is missing, or lies after its deadline",
    "then": "failed/damaged, or signature_invalid where signatures are required, and a dead letter; the alarm is " +
      "set anew",
    "bound": "the next poll that finds it, its alarm, the next patrol",
  },
  {
    "rule": "W14", "name": "workers",
    "when": "a worker gave no sign of life",
    "then": "shown as offline; its leases fall to W6",
    "bound": "worker_offline",
  },
  {
    "rule": "W15", "name": "group-deadline",
    "when": "a group's deadline has passed",
    "then": "timed_out; its runs go on",
    "bound": "the group's timeout",
  },
  {
    "rule": "W15", "name": "waiters",
    "when": "the last waiter of a run has expired",
    "then": "the run is deferred; the work goes on",
    "bound": "detach_grace; waiter_ttl for a dead node",
  },
  {
    "rule": "W15", "name": "schedule",
    "when": "an instant of a schedule has come",
    "then": "a run is started, and the schedule moves to its next instant; or what its plan says of overlaps",
    "bound": "the instant and its jitter",
  },
  {
    "rule": "W15", "name": "limit",
    "when": "a limit that runs wait at allows the next one, is opened, changed or deleted; " +
      "or nobody has claimed a run that it has let through for 1 s",
    "then": "runs that wait there become claimable, one for each free slot; ring",
    "bound": "the limit's rate, the end of its closure, 1 s; 16 runs in a sweep for each key",
  },
  {
    "rule": "W15", "name": "cascade",
    "when": "an ended run still has live children that may not outlive it",
    "then": "they are asked to stop, a portion at a time",
    "bound": "the next sweep",
  },
  {
    "rule": "W15", "name": "log",
    "when": "the watchdog's log has more than 10 000 entries, or one that is older than 7 days",
    "then": "the oldest are removed, a portion at a time",
    "bound": "500 more; an hour",
  },
  {
    "rule": "W15", "name": "retention",
    "when": "a run ended retention ago, and nothing live or open refers to it; an upload was not finished within " +
      "an hour; a worker is gone, a webhook or a kind unused, or a key invalid for so long",
    "then": "removed with all that belongs to it, in small steps",
    "bound": "retention, worker_retention, webhook_retention, key_retention, kind_retention; the next round " +
      "through all runs",
  },
  {
    "rule": "W15", "name": "ttl",
    "when": "a dead letter, or an idempotency key whose run has ended, has expired",
    "then": "removed",
    "bound": "dead_letter_ttl, idempotency_ttl",
  },
];

package pairs

// The parts of the product by which runs get features. A part that belongs to no particular feature is
// listed with none. A test compares the lists with the tables of the code: who adds an event, a rule, a
// wait, a field or a route says here to which feature it belongs, and a new feature needs its row.

// none is for what every run has, and for what is about no run.
const none Feature = -1

// events has the events of the transition table.
var events = map[string]Feature{
	"Accepted": none, "Granted": none, "GrantedStarted": none, "Due": Delay, "JournalCopied": Retry,
	"TurnCame": Thread, "Slow": none, "HoldReleased": Hold, "HoldExpired": Hold, "HoldAbandoned": Hold,
	"Regrantable": none, "GrantLost": none, "NeverStarted": none, "Started": none, "Heartbeat": none,
	"Released": none, "Restored": Restore, "Rejected": Signature, "ItemsHandedOver": none,
	"SentinelMoved": Process, "ProcessWatched": Process, "ProcessFound": Process, "ProcessRestored": Process,
	"NeverClaimed": Process, "OutputKept": Process, "Committed": none, "WaitOpened": Suspend,
	"WaitWithdrawn": Suspend, "WentToSleep": Suspend, "Retried": LostLease, "GaveUp": OneAttempt, "HoldBegun": Hold,
	"Done": none, "FailedForGood": none, "WaitFailed": Suspend, "CancelConfirmed": Cleanup,
	"CleanupAgain": Cleanup, "Reaped": none,
	"WentStale": Process, "Woken": Resume, "WaitClockReset": Suspend, "FindingsListed": Saga,
	"DeadlinePassed": Deadline, "Orphaned": Child, "Corrupted": none, "CancelEnforced": Cancel,
	"Adopted": LateResult, "CancelAsked": Cancel, "WentDeferred": Defer, "Reattached": Defer,
	"Renumbered": Restore, "ClockSetBack": none, "Rearmed": none, "AlarmRepaired": none, "WaitEnded": Suspend,
	"WaitsClosed": Suspend, "ItemArrived": Signal, "ItemReclaimed": none, "ItemsContinued": Chord,
	"ChildStarted": Parent, "ChildEnded": Parent, "QuestionsBelow": Approval,
	"Gathered": Group, "WaiterAttached": Defer, "WaiterLeft": Defer,
	"CascadeAdvanced": Parent, "ItemExpired": none, "LateResultAdopted": LateResult, "MessagesAppended": Thread,
	"Continued": Chord, "LateResultKept": LateResult, "LateResultDiscarded": LateResult, "Repeated": Retry,
	"CallbackRefused": Callback, "LimitReached": none, "LimitOffered": none, "Debounced": none,
	"StepAdmitted": none, "StepsLeft": none,
}

// waits has the types of waits.
var waits = map[string]Feature{
	"limit": none, "children": Parent, "signal": Signal, "timer": Suspend, "callback": Callback, "approval": Approval,
	"message": Chat,
}

// submission has the fields of a submission.
var submission = map[string]Feature{
	"kind": Kind, "input": none, "thread_id": Thread, "class": Process, "queue": Pause, "priority": none,
	"timeout": Deadline, "run_at": Delay, "delay": Delay, "max_attempts": OneAttempt, "metadata": none,
	"messages": Thread, "multitask_strategy": Thread, "on_disconnect": Defer, "webhook": Webhook,
	"webhook_events": Webhook, "webhook_format": Webhook,
	"limits": none, "limit_key": none, "units": none, "name": none, "unique": none,
	"debounce": none,
}

// rules has the rules of the watchdog.
var rules = map[string]Feature{
	"hold-timeout": Hold, "deadline": Deadline, "cancel-grace": Cleanup, "lost-worker": LostLease, "dead": Process,
	"unclaimed":        Process,
	"dispatch-timeout": none, "dispatch-retry": none, "reap": none, "suspended-too-long": Suspend, "copy": Retry,
	"stale": Process, "no-progress": none, "silent": none, "due": Delay, "queued-too-long": none, "workers": none,
	"group-deadline": Group, "waiters": Defer, "schedule": none, "limit": none,
	"cascade": Parent, "log": none, "retention": Retention, "ttl": none,
	"inbox-reclaim": none, "pending-wakeup": Signal, "resume-replay": Resume, "orphans": Child, "damaged": none,
}

// routes has the routes, or what is above them.
var routes = map[string]Feature{
	"/api/v1/runs": none, "/api/v1/runs/batch": none, "/api/v1/runs/{id}": Retention,
	"/api/v1/runs/{id}/cancel": Cancel, "/api/v1/runs/{id}/retry": Retry,
	"/api/v1/runs/retry": Retry, "/api/v1/runs/{id}/defer": Defer, "/api/v1/runs/{id}/join": Defer,
	"/api/v1/runs/{id}/release-hold": Hold, "/api/v1/runs/{id}/dead-letter": Hold,
	"/api/v1/runs/{id}/late-results": LateResult, "/api/v1/runs/{id}/signals": Signal,
	"/api/v1/runs/{id}/artifacts": Artifact, "/api/v1/runs/{id}/replay": Hold,
	"/api/v1/runs/{id}/views": View, "/api/v1/jobs": none,
	"/api/v1/callbacks": Callback, "/api/v1/approvals": Approval, "/api/internal/runs/{id}/continue": Chord,
	"/api/v1/threads": Thread, "/api/v1/chat": Chat, "/api/v1/groups": Group,
	"/api/v1/workers": StandingPoll, "/api/v1/queues": Pause, "/api/v1/history": none,
	"/api/v1/schedules": Delay, "/api/v1/attention": none, "/api/v1/kinds": Kind,
	"/api/v1/limits": none, "/api/v1/limits/{name}": none, "/api/v1/limits/{name}/close": none,
	"/api/v1/limits/{name}/open": none, "/api/v1/limits/{name}/keys/{key}": none,
	"/api/v1/runs/{id}/names/{name}": none, "/api/v1/dlq": Redrive, "/api/v1/webhooks": Webhook,
	"/api/v1/deliveries": Webhook, "/api/v1/keys": KeyRevoked,
	"/api/v1/session": KeyRevoked, "/api/v1/audit": none, "/api/v1/signing-keys": Signature, "/api/v1/ws": none,
	"/api/admin/tenants": Share, "/api/admin/keys": KeyRevoked, "/api/admin/invariants": none,
	"/api/admin/watchdog": none, "/api/admin/policy": none, "/api/admin/locks": none, "/api/admin/audit": none,
	"/api/admin/recovery/jobs": Process, "/api/admin/recovery/jobs/resume": Redrive, "/api/admin/jobs": Process,
	"/api/admin/startup-log": Upgrade, "/healthz": none, "/readyz": none, "/openapi.json": none, "/metrics": none,
}

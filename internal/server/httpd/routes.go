package httpd

import (
	"net/http"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// table returns all routes. The OpenAPI document is made from it. Tests call each route without a
// key, with a wrong scope and with another tenant's key.
//
// A row has the method, the path, the guard, a summary and the handler. Methods add the rest: takes
// names the query parameters, upTo reserves memory for a large answer, creates, also and once
// concern the status and idempotency, logged the audit log (route.go).
func (s *Server) table() []route {
	list := s.rows()
	for i := range list {
		list[i].letChooseTenant()
	}
	return list
}

// rows returns the routes as they are written down.
func (s *Server) rows() []route {
	const v1 = api.Prefix
	create, read, control := scope(perdure.ScopeCreate), scope(perdure.ScopeRead), scope(perdure.ScopeControl)
	poll, report, keys := scope(perdure.ScopePoll), scope(perdure.ScopeReport), scope(perdure.ScopeKeys)
	hooks, approve := scope(perdure.ScopeWebhooks), scope(perdure.ScopeApprove)
	kinds := scope(perdure.ScopeKinds)
	return []route{
		on("POST", v1+"/runs", create, "Start a run; with wait, in the foreground", startRun).
			creates().also(http.StatusOK, http.StatusAccepted).idempotent(),
		on("GET", v1+"/runs", read, "List runs, newest first", listRuns).
			takes(append(slices.Clone(runFilters), "limit", "cursor")...).repeats(severalOf...).upTo(largePage),
		on("GET", v1+"/runs/counts", read, "Count runs by status, state, kind and queue", countRuns).
			takes(runFilters...).repeats(severalOf...),
		on("GET", v1+"/runs/{id}", read, "Look at a run", getRun).upTo(largeRun),
		on("GET", v1+"/runs/by-name/{name}", read, "Look at the run that has a name", getRunByName).upTo(largeRun),
		on("PUT", v1+"/runs/{id}/names/{name}", create, "Give a run one more name", nameRun).
			creates().idempotent(),
		on("GET", v1+"/runs/{id}/join", read, "Wait for a run", joinRun).takes("timeout").also(http.StatusAccepted),
		live(v1+"/runs/{id}/stream", read, "Follow a run's log as server-sent events", api.MediaStream, streamRun).
			takes("after", "last_event_id").also(http.StatusNoContent),
		live(v1+"/ws", read, "Watch many runs over a WebSocket", api.MediaSocket, openSocket).
			takes(append(slices.Clone(runFilters), "limit", "events", "watch")...).repeats(severalOf...),
		on("GET", v1+"/runs/{id}/events", read, "Read a run's log by polling", runEvents).takes("after", "limit",
			"wait"),
		on("GET", v1+"/runs/{id}/activity", read, "See what a run is doing", runActivity),
		on("GET", v1+"/runs/{id}/children/{child}/activity", report,
			"See what a child of a leased run is doing", childActivity).
			takes("epoch"),
		on("GET", v1+"/runs/{id}/tree", read, "List the runs of a run's tree", runTree).
			takes("limit", "cursor").upTo(largePage),
		on("GET", v1+"/runs/{id}/deliverable", read, "Get what an ended run hands over", runDeliverable).upTo(largeRun),
		on("GET", v1+"/runs/{id}/artifacts", read, "List what a run has left beside its result", listArtifacts),
		download(v1+"/runs/{id}/artifacts/{name}", read, "Get an artifact's bytes", getArtifact).
			also(http.StatusPartialContent, http.StatusNotModified),
		upload(v1+"/runs/{id}/artifacts/{name}", report, "Leave an artifact beside a leased run's result", putArtifact).
			creates().takes("epoch", "sha256").also(http.StatusOK),
		on("GET", v1+"/runs/{id}/views", read, "List the views that a run has published", listViews),
		on("GET", v1+"/runs/{id}/views/{name}", read, "Get the latest value of a view", getView),
		on("GET", v1+"/runs/{id}/late-results", read, "List finished work that came too late", runLateResults).
			takes("limit", "cursor").upTo(largePage),
		on("POST", v1+"/runs/{id}/late-results/{n}/adopt", control, "Adopt a late result", adoptLate).logged(),
		on("POST", v1+"/runs/{id}/late-results/{n}/discard", control, "Discard a late result", discardLate).logged(),
		on("POST", v1+"/runs/{id}/cancel", control, "Ask a run to stop", cancelRun).
			takes("wait").also(http.StatusAccepted).idempotent().logged(),
		on("POST", v1+"/runs/{id}/release-hold", control, "End the hold of a run; any worker may take it", releaseHold).
			idempotent().logged(),
		on("POST", v1+"/runs/{id}/dead-letter", control, "End a run that is on hold, as a dead letter", deadLetterRun).
			idempotent().logged(),
		on("POST", v1+"/runs/{id}/defer", control, "Stop waiting for a run; it goes on", deferRun),
		on("POST", v1+"/runs/{id}/retry", create, "Make a new run with the input of an ended one", retryRun).
			creates().idempotent(),
		itemized[api.StartMany]("POST", v1+"/runs/batch", create,
			"Start many runs in the background, each accepted or refused by itself", startMany).idempotent(),
		on("POST", v1+"/runs/retry", create, "Make new runs with the inputs of many ended ones",
			retryMany).idempotent(),
		on("POST", v1+"/runs/{id}/signals/{name}", control, "Send a signal to a run", sendSignal).idempotent().logged(),
		on("DELETE", v1+"/runs/{id}", control, "Delete an ended run and all that belongs to it",
			deleteRun).idempotent().logged(),
		on("GET", v1+"/runs/{id}/journal", report, "Read more of a leased run's journal", runJournal).
			takes("epoch", "after", "limit").upTo(largePage),
		on("GET", v1+"/runs/{id}/inbox", report, "Take more of a leased run's inbox", runInbox).
			takes("epoch", "after", "limit").upTo(largePage),
		on("GET", v1+"/runs/{id}/journal/entries", read, "List the steps that a run has recorded", listSteps).
			takes("after", "limit").upTo(largeRun),
		on("GET", v1+"/runs/{id}/journal/entries/{n}", read, "Look at a step with its whole value", getStep).
			upTo(largeRun),
		on("GET", v1+"/runs/{id}/inbox/items", read, "List what has come to a run", listItems).
			takes("after", "limit").upTo(largeRun),
		on("GET", v1+"/runs/{id}/inbox/items/{n}", read, "Look at an inbox item with its whole value", getItem).
			upTo(largeRun),
		on("GET", v1+"/runs/{id}/replay", read,
			"Read all that a replay of a run needs: input, journal and inbox", replay).
			takes("journal_after", "inbox_after").upTo(largePage),
		on("GET", v1+"/runs/{id}/messages", report, "Read the thread of a leased run", runMessages).
			takes("epoch", "after", "before", "limit").upTo(largePage),
		on("GET", v1+"/jobs/{id}/status", read, "Look at a run, shortly", jobStatus),
		on("POST", v1+"/callbacks/{token}", guard{open: true, token: callbackToken}, "Answer a callback", useCallback),
		on("GET", v1+"/approvals", read, "List what runs want to be approved, oldest first", listApprovals).
			takes("state", "run_id", "root_run_id", "thread_id", "limit", "cursor").upTo(largePage).ofEveryTenant(),
		on("GET", v1+"/approvals/{id}", read, "Look at an approval", getApproval),
		on("POST", v1+"/approvals/{id}", approve, "Approve or reject", decide).logged(),
		on("POST", "/api/internal/runs/{id}/continue", control, "Say that work outside has finished", continueRun).
			creates().also(http.StatusOK),

		on("POST", v1+"/threads", create, "Make a thread; with a known name, look at that thread",
			createThread).creates().idempotent(),
		on("GET", v1+"/threads", read, "List threads, newest activity first", listThreads).
			takes("limit", "cursor", "children", "status", "metadata.*"),
		on("GET", v1+"/threads/{id}", read, "Look at a thread", getThread),
		on("GET", v1+"/threads/by-name/{name}", read, "Look at the thread that has a name", getThreadByName),
		on("PUT", v1+"/threads/{id}/names/{name}", create, "Give a thread one more name", nameThread).
			creates().idempotent(),
		on("PATCH", v1+"/threads/{id}", create, "Merge metadata into those of a thread; null removes a key",
			changeThread).idempotent(),
		on("DELETE", v1+"/threads/{id}", control, "Delete a thread and its messages",
			deleteThread).idempotent().logged(),
		on("GET", v1+"/threads/{id}/messages", read, "Read a thread's messages", threadMessages).
			takes("after", "limit").upTo(largePage),
		on("POST", v1+"/threads/{id}/messages", create, "Append a message to a thread",
			appendMessage).creates().idempotent(),
		on("POST", v1+"/threads/{id}/runs", create, "Start a run on a thread", startRunOnThread).
			creates().also(http.StatusOK, http.StatusAccepted).idempotent(),

		on("POST", v1+"/chat", create, "Say something to an agent: start a conversation or go on with one", chat).
			creates().also(http.StatusOK, http.StatusAccepted).idempotent().orStream(),

		on("POST", v1+"/groups", create, "Gather runs", createGroup).creates().idempotent(),
		on("GET", v1+"/groups", read, "List groups, newest first", listGroups).takes("state", "limit", "cursor"),
		on("GET", v1+"/groups/{id}", read, "Look at a group", getGroup),
		on("GET", v1+"/groups/{id}/join", read, "Wait for a group",
			joinGroup).takes("timeout").also(http.StatusAccepted),

		on("POST", v1+"/workers/{id}/poll", poll, "Lease runs", pollRuns),
		on("POST", v1+"/workers/{id}/start", report, "Begin with leased runs", startLeased),
		on("POST", v1+"/workers/{id}/heartbeat", report, "Keep leases alive", heartbeat),
		on("POST", v1+"/workers/{id}/commit", report, "Say what happened to leased runs", commit),
		on("POST", v1+"/workers/{id}/release", report, "Hand leased runs back", releaseRuns),
		on("POST", v1+"/workers/{id}/limits", report, "Take slots of limits for steps of leased runs", takeLimits),
		on("GET", v1+"/workers", read, "List workers", listWorkers).takes("limit", "cursor"),
		on("GET", v1+"/queues", read, "List queues", listQueues).takes("limit", "cursor"),

		on("PUT", v1+"/queues/{name}", kinds, "Give a queue limits, or take them away", putQueueLimits).
			idempotent().logged(),
		on("POST", v1+"/queues/{name}/pause", control, "Pause a queue: nothing is granted from it", pauseQueue).
			idempotent().logged(),
		on("POST", v1+"/queues/{name}/resume", control, "Resume a paused queue", resumeQueue).idempotent().logged(),

		on("GET", v1+"/attention", read, "See what may need a person", attention),
		on("POST", v1+"/schedules", create, "Make a schedule: runs that are started at instants of a plan",
			createSchedule).creates().also(http.StatusOK).idempotent().logged(),
		on("GET", v1+"/schedules", read, "List schedules by name", listSchedules).
			takes("limit", "cursor").upTo(largePage),
		on("GET", v1+"/schedules/{name}", read, "Look at a schedule", getSchedule),
		on("PUT", v1+"/schedules/{name}", create, "Make a schedule, or change it", putSchedule).
			creates().also(http.StatusOK).idempotent().logged(),
		on("DELETE", v1+"/schedules/{name}", control, "Delete a schedule; its runs go on", deleteSchedule).
			idempotent().logged(),
		on("POST", v1+"/schedules/{name}/pause", control, "Pause a schedule", pauseSchedule).idempotent().logged(),
		on("POST", v1+"/schedules/{name}/resume", control, "Resume a paused schedule", resumeSchedule).
			idempotent().logged(),
		on("POST", v1+"/schedules/{name}/trigger", create, "Start a run of a schedule now", triggerSchedule).
			creates().also(http.StatusOK).idempotent().logged(),
		on("GET", v1+"/schedules/{name}/next", read, "List the next instants of a schedule", upcomingInstants).
			takes("n"),

		on("GET", v1+"/limits", read, "List limits by name, with how many runs hold slots and wait", listLimits).
			takes("limit", "cursor").upTo(largePage),
		on("PUT", v1+"/limits/{name}", kinds, "Make a limit, or change it", putLimit).
			creates().also(http.StatusOK).idempotent().logged(),
		on("GET", v1+"/limits/{name}", read, "Look at a limit, with runs that hold slots and wait", getLimit),
		on("DELETE", v1+"/limits/{name}", kinds, "Delete a limit; what waits there goes on", deleteLimit).
			idempotent().logged(),
		on("POST", v1+"/limits/{name}/close", kinds, "Close a limit or a key of it for a while", closeLimit).
			idempotent().logged(),
		on("POST", v1+"/limits/{name}/open", kinds, "Open a limit or a key of it", openLimit).idempotent().logged(),
		on("GET", v1+"/limits/{name}/keys", read, "List the keys of a limit", listLimitKeys).
			takes("limit", "cursor").upTo(largePage),
		on("PUT", v1+"/limits/{name}/keys/{key}", kinds, "Give a key of a limit values of its own", putLimitKey).
			idempotent().logged(),
		on("DELETE", v1+"/limits/{name}/keys/{key}", kinds, "Give a key the values of its limit again",
			deleteLimitKey).idempotent().logged(),

		on("GET", v1+"/history", read, "Count what happened to runs, by the minute", history).takes("since", "step"),

		on("PUT", v1+"/kinds/{kind}", poll, "Announce a kind that a worker executes", announceKind),
		on("GET", v1+"/kinds", read, "List kinds by name, with their defaults and whether somebody serves them",
			listKinds).
			takes("limit", "cursor").upTo(largePage),
		on("GET", v1+"/kinds/{kind}", read, "Look at a kind", getKind),
		on("GET", v1+"/kinds/{kind}/stats", read, "See how the newest runs of a kind went", kindStats),
		on("PATCH", v1+"/kinds/{kind}", kinds, "Override fields of a kind; null removes an override", changeKind).
			idempotent().logged(),
		on("POST", v1+"/kinds/{kind}/pause", control, "Pause a kind: none of its runs is granted", pauseKind).
			idempotent().logged(),
		on("POST", v1+"/kinds/{kind}/resume", control, "Resume a paused kind", resumeKind).idempotent().logged(),
		on("DELETE", v1+"/kinds/{kind}", kinds, "Delete a kind from the registry", deleteKind).
			takes("platform").idempotent().logged(),

		on("GET", v1+"/dlq", read, "List dead letters, newest first", listDeadLetters).
			takes("cause", "kind", "queue", "limit", "cursor").upTo(largePage),
		on("GET", v1+"/dlq/causes", read, "Count dead letters by cause and kind", deadLetterCauses).
			takes("cause", "kind", "queue", "limit"),
		on("GET", v1+"/dlq/{id}", read, "Look at a dead letter and what led to it", getDeadLetter).upTo(largePage),
		on("POST", v1+"/dlq/{id}/redrive", control, "Make a new run of a dead letter",
			redrive).creates().idempotent().logged(),
		on("DELETE", v1+"/dlq/{id}", control, "Discard a dead letter", dropDeadLetter).idempotent().logged(),
		on("POST", v1+"/dlq/redrive", control, "Make new runs of many dead letters", redriveMany).idempotent().logged(),
		on("POST", v1+"/dlq/discard", control, "Discard many dead letters", dropDeadLetters).idempotent().logged(),

		on("POST", v1+"/webhooks", hooks, "Register a webhook", createWebhook).creates().idempotent().logged(),
		on("GET", v1+"/webhooks", hooks, "List registered webhooks", listWebhooks).takes("limit", "cursor"),
		on("GET", v1+"/webhooks/{id}", hooks, "Look at a webhook", getWebhook),
		on("PATCH", v1+"/webhooks/{id}", hooks, "Change, disable or enable a webhook",
			changeWebhook).idempotent().logged(),
		on("DELETE", v1+"/webhooks/{id}", hooks, "Delete a webhook", deleteWebhook).idempotent().logged(),
		on("POST", v1+"/webhooks/{id}/rotate", hooks, "Give a webhook a new secret",
			rotateWebhook).idempotent().logged(),
		on("POST", v1+"/webhooks/{id}/test", hooks, "Send a webhook a test message", testWebhook).idempotent(),
		on("GET", v1+"/webhooks/{id}/deliveries", hooks, "List what a webhook was told", webhookDeliveries).
			takes("state", "limit", "cursor").upTo(largePage),
		on("GET", v1+"/deliveries/{id}", hooks, "Look at a delivery and its attempts", getDelivery),
		on("POST", v1+"/deliveries/{id}/redeliver", hooks, "Deliver again", redeliver).idempotent().logged(),

		on("POST", v1+"/keys", keys, "Make a key of this tenant", createKey).creates().idempotent().logged(),
		on("GET", v1+"/keys", keys, "List this tenant's keys", listKeys).takes("limit", "cursor"),
		on("DELETE", v1+"/keys/{id}", keys, "Revoke a key", revokeKey).logged(),
		on("POST", v1+"/session", guard{scope: perdure.ScopeRead, login: true},
			"Log in with a key or a login link, for a browser", openSession).creates().logged(),
		on("GET", v1+"/session", read, "Look at who is logged in", getSession),
		on("DELETE", v1+"/session", read, "Log out", closeSession),
		on("POST", v1+"/session/links", read, "Make a link that logs in once", makeLink).creates().logged(),
		on("GET", v1+"/audit", scope(perdure.ScopeAudit), "List who did what in this tenant, newest first",
			tenantAudit).
			takes(auditFilters...),
		on("POST", "/api/admin/tenants/{tenant}/keys", platform(perdure.ScopeKeys),
			"Make a key of any tenant", createTenantKey).
			creates().idempotent().logged(),
		on("DELETE", "/api/admin/tenants/{tenant}/keys/{id}", platform(perdure.ScopeKeys),
			"Revoke a key of any tenant", revokeTenantKey).
			logged(),
		on("POST", "/api/admin/keys", platform(perdure.ScopeKeys), "Make a key of the platform", createPlatformKey).
			creates().idempotent().logged(),
		on("DELETE", "/api/admin/keys/{id}", platform(perdure.ScopeKeys), "Revoke a key of the platform",
			revokePlatformKey).
			logged(),
		on("GET", v1+"/signing-keys", read, "List the public keys that runs are signed with", signingKeys),
		on("GET", "/api/admin/tenants", platform(perdure.ScopePlatformRead), "List tenants and their limits",
			listTenants).
			takes("limit", "cursor"),
		on("GET", "/api/admin/tenants/{tenant}", platform(perdure.ScopePlatformRead), "Look at a tenant", getTenant),
		on("PUT", "/api/admin/tenants/{tenant}", platform(perdure.ScopePlatformAdmin),
			"Say what holds for a tenant", changeTenant).
			logged(),
		on("GET", "/api/admin/invariants", platform(perdure.ScopePlatformRead),
			"Check the store against its invariants", checkInvariants).
			takes("recent"),
		download("/api/admin/backup", platform(perdure.ScopePlatformAdmin), "Get a backup of the whole store",
			getBackup).
			logged(),
		on("GET", "/api/admin/watchdog", platform(perdure.ScopePlatformRead),
			"List what the watchdog did and why, newest first", watchdogLog).
			takes("rule", "run_id", "tenant", "limit", "cursor"),
		on("GET", "/api/admin/locks", platform(perdure.ScopePlatformRead),
			"List the locks of other sessions of the database that are in this node's way", listLocks),
		on("GET", "/api/admin/policy", platform(perdure.ScopePlatformRead),
			"List the settings of the policy that are in force on this node", policySettings),
		on("GET", "/api/admin/audit", platform(perdure.ScopeAudit),
			"List who did what in all tenants, newest first", platformAudit).
			takes(append(auditFilters, "tenant")...),

		on("GET", "/api/admin/recovery/jobs/status", platform(perdure.ScopePlatformRead),
			"See what the recovery of processes did since this node's start", recoveryStatus),
		on("GET", "/api/admin/recovery/jobs/heartbeats", platform(perdure.ScopePlatformRead),
			"List live processes with the age of their heartbeats", jobHeartbeats).takes("limit", "cursor"),
		on("GET", "/api/admin/recovery/jobs/stale", platform(perdure.ScopePlatformRead),
			"List live processes that are stale or dead", staleJobs).takes("limit", "cursor"),
		on("GET", "/api/admin/jobs/{jobId}/health", platform(perdure.ScopePlatformRead),
			"Look at the health of a process", jobHealth),
		on("GET", "/api/admin/recovery/jobs/sentinels", platform(perdure.ScopePlatformRead),
			"List the sentinels of this node's workspace, and the files that were set aside", listSentinels).
			takes("limit", "cursor"),
		on("GET", "/api/admin/recovery/jobs/metrics", platform(perdure.ScopePlatformRead),
			"Count processes by tier, and what recovery did", recoveryMetrics),
		on("GET", "/api/admin/recovery/jobs/failed", platform(perdure.ScopePlatformRead),
			"List processes that failed because they were lost, newest first", failedJobs).takes("limit", "cursor"),
		on("POST", "/api/admin/recovery/jobs/resume", platform(perdure.ScopePlatformAdmin),
			"Watch live processes once more, and make new runs of failed ones", resumeJobs).logged(),
		on("GET", "/api/admin/startup-log", platform(perdure.ScopePlatformRead),
			"Read what recovery did at this node's start", startupLog).takes("limit", "after"),

		text("/metrics", guard{platform: true, scope: perdure.ScopePlatformRead, remembered: true},
			"Metrics for Prometheus", serveMetrics),
		on("GET", "/healthz", public, "Whether the process lives", healthz),
		on("GET", "/readyz", public, "Whether the node should get traffic", readyz).also(http.StatusServiceUnavailable),
		on("GET", "/openapi.json", public, "This document", openapi),
	}
}

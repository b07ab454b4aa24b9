package symptoms

// Alerts has a row for each alert, in the order of deploy/alerts.yml.
var Alerts = []Row{
	{"PerdureRunsPastDeadline",
		"The watchdog can't act: the store takes no writes, a row makes it fail, or every node hangs.",
		"`perdure doctor`, then `perdure watchdog -n 20`. The lines of `watchdog` in the server's log name the " +
			"row. Restart a node whose sweeps have stopped; the next sweep ends the runs."},
	{"PerdureWatchdogSilent",
		"No node runs, no node reaches the store, or the store takes no writes.",
		"`/readyz` of each node says which. Start a node, or mend the store."},
	{"PerdureDown",
		"No node runs, or Prometheus can't reach one: its network, its key, its TLS.",
		"`systemctl status perdure` on each node, then `curl -i …/metrics` with the key of Prometheus: 401 or " +
			"403 is the key, which needs `platform:read`."},
	{"PerdureStoreTakesNoWrites",
		"The disk is full, another program has the store locked, the store is read-only (a standby), or " +
			"PostgreSQL is away.",
		"`/readyz` says which. See [Full disk](operations.md#full-disk); a standby: " +
			"[failover](operations.md#failover). The node goes on by itself."},
	{"PerdureRunsOnHold",
		"The code of an agent has a defect: it panicked, or changed against its journal.",
		"`perdure jobs`, `perdure peek RUN`: the defect. Deploy a fixed build, which takes the runs at once, or " +
			"go back to the former one. `perdure builds check` finds this before a deploy."},
	{"PerdureStoreNotCounted",
		"Readers of the store are busy or slow: a large store, a slow disk, a query of another program.",
		"Not urgent while calls are answered. On PostgreSQL look at `pg_stat_activity`; raise `for:` of this " +
			"alert where a count takes long on a store of millions of live runs."},
	{"PerdureDeadLetters",
		"Runs can't go on: the cause is in the label.",
		"`perdure dlq`, `perdure dlq show RUN`. Mend the cause, then `perdure dlq redrive`. They expire after a " +
			"day."},
	{"PerdureWorkersOffline",
		"Workers have ended, can't reach a node, or their key was revoked or has expired.",
		"Look at the workers' logs: 401 is the key. `perdure doctor` lists queues without workers."},
	{"PerdureQueueWaits",
		"Too few workers, a paused queue, a limit of the kind or the tenant, or nobody serves the kind.",
		"`perdure peek RUN` of a waiting run says why. `perdure queues` shows pauses, `perdure kinds` who serves " +
			"what."},
	{"PerdureLeasesLost",
		"Workers die (memory, deploys with SIGKILL), hang, or their network is cut.",
		"`perdure watchdog --rule W6` names the runs and the workers. One kind in all of them: it kills its " +
			"worker."},
	{"PerdureRunsStale",
		"Workers renew their leases, and the runs give no sign of life: a hung call, a loop.",
		"`perdure jobs`, `perdure peek RUN`: its last activity. `perdure kill RUN` stops it; its deadline ends " +
			"it anyway."},
	{"PerdureDeadlinesLate",
		"Sweeps are slow: the store is slow, or very many deadlines fell on one instant.",
		"Compare with `perdure:commit_seconds:p99_5m`. It ends with the load; a disk that stays slow needs a " +
			"look."},
	{"PerdureNetActed",
		"A rule mended a state that no operation leaves behind: an edited database, or a defect of Perdure.",
		"`perdure watchdog --rule W3` (W1, W10), `perdure fsck`. Report it with both outputs."},
	{"PerdureRowSetAside",
		"One row makes the watchdog fail: damaged, edited, or a defect of Perdure.",
		"The server's log names it (`a row can't be acted on and is set aside`). `perdure fsck`; report it with " +
			"the line."},
	{"PerdureCommitsSlow",
		"The disk is slow or shared, PostgreSQL waits for a synchronous standby or for locks, or is overloaded.",
		"`iostat -x`, `pg_stat_activity` (`wait_event`), `pg_stat_replication`. See [scale](scale.md)."},
	{"PerdureWebhooksFail",
		"Receivers refuse messages or are away.",
		"`perdure webhooks deliveries ID`: the answers. Messages are tried again; mend the receiver, or " +
			"`disable` it."},
	{"PerdureStreamsNearlyFull",
		"More clients follow runs than this node has room for.",
		"Add a node, or raise `LimitNOFILE` and `max_streams`. Refused clients get 503 and try another node."},
	{"PerdureCertificateExpires",
		"The certificate was not renewed.",
		"Put the new pair at `tls_cert` and `tls_key`; it is used without a restart. `perdure doctor` shows its " +
			"expiry."},
	{"PerdureFilesNearlyOut",
		"Many connections, or a low limit of the process.",
		"Raise `LimitNOFILE`, or add a node. `perdure_stream_clients` says what they are."},
	{"PerdureLaneFull",
		"More arrives than one store writes: 256 operations in each batch.",
		"Look at `perdure_store_commit_seconds` first: a slow disk fills batches too. Then see [scale](scale.md)."},
}

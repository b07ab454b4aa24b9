package metrics

// A Metric is one row of the table: what is measured, and when to be alerted. docs/metrics.md is
// printed from it.
type Metric struct {
	Name   string
	Type   Type
	Labels []string
	Help   string
	Watch  string // when to be alerted; empty if never
	Local  bool   // of a node; otherwise of the store, and equal on all nodes
}

// A Type is the Prometheus type of a metric.
type Type string

const (
	Counter   Type = "counter"
	Gauge     Type = "gauge"
	Histogram Type = "histogram"
)

// Names of metrics, each a row of Table.
const (
	queueDepth   = "perdure_queue_depth"
	queueOldest  = "perdure_queue_oldest_seconds"
	runs         = "perdure_runs"
	runsDeferred = "perdure_runs_deferred"
	runsHeld     = "perdure_runs_held"
	runTiers     = "perdure_run_tiers"
	pastDeadline = "perdure_runs_past_deadline"
	lettersHeld  = "perdure_dead_letters"
	workersSeen  = "perdure_workers"
	quietest     = "perdure_worker_oldest_heartbeat_seconds"
	sweepAge     = "perdure_watchdog_last_sweep_seconds"
	fanOuts      = "perdure_webhook_events_waiting"
	scrapeOK     = "perdure_scrape_ok"
	scrapeTook   = "perdure_scrape_census_seconds"

	runsCreated  = "perdure_runs_created_total"
	runsEnded    = "perdure_runs_ended_total"
	runDuration  = "perdure_run_duration_seconds"
	runTimeouts  = "perdure_run_timeouts_total"
	lateness     = "perdure_deadline_lateness_seconds"
	cancelTook   = "perdure_cancel_seconds"
	detached     = "perdure_waits_detached_total"
	alerts       = "perdure_run_alerts_total"
	letters      = "perdure_dead_letters_total"
	lateResults  = "perdure_late_results_total"
	leasesLost   = "perdure_lease_losses_total"
	actions      = "perdure_watchdog_actions_total"
	setAside     = "perdure_watchdog_set_aside_total"
	attempts     = "perdure_webhook_attempts_total"
	streams      = "perdure_stream_clients"
	streamsLimit = "perdure_stream_clients_limit"
	batches      = "perdure_store_batch_seconds"
	commits      = "perdure_store_commit_seconds"
	operations   = "perdure_store_operations_total"
	writable     = "perdure_store_writable"
	rowsAside    = "perdure_store_rows_set_aside_total"
	rowsLocked   = "perdure_store_locked_rows"
	standbys     = "perdure_store_standbys"
	mayLose      = "perdure_store_failover_loses"
	processes    = "perdure_processes_recovered_total"
	filesAside   = "perdure_workspace_files_set_aside_total"
	beatFailures = "perdure_sentinel_write_failures"
	scanTook     = "perdure_sentinel_scan_seconds"
	certExpires  = "perdure_tls_certificate_expires_timestamp_seconds"
	buildInfo    = "perdure_build_info"
)

// Table lists all metrics except those of the Go runtime and the process.
var Table = []Metric{
	{Name: pastDeadline, Type: Gauge, Help: "Live runs whose deadline passed more than two seconds ago.",
		Watch: "above 0: the watchdog does not do what it is for"},
	{Name: queueDepth, Type: Gauge, Labels: []string{"queue"}, Help: "Runs that a worker could take now.",
		Watch: "grows for long"},
	{Name: queueOldest, Type: Gauge, Labels: []string{"queue"},
		Help: "Time for which the oldest claimable run has been claimable.", Watch: "above what callers put up with"},
	{Name: runs, Type: Gauge, Labels: []string{"state"}, Help: "Live runs by state."},
	{Name: runsDeferred, Type: Gauge, Help: "Live runs that no caller waits for any more."},
	{Name: runsHeld, Type: Gauge, Help: "Runs that wait for a backoff after a defect of their code.",
		Watch: "above 0: a fixed build continues them"},
	{Name: runTiers, Type: Gauge, Labels: []string{"tier"}, Help: "Leased runs by tier of liveness.",
		Watch: "stale or dead above 0 for long"},
	{Name: runsCreated, Type: Counter, Local: true, Help: "Runs accepted."},
	{Name: runsEnded, Type: Counter, Labels: []string{"state"}, Local: true, Help: "Runs ended, by state.",
		Watch: "the share of failed and timeout"},
	{Name: runDuration, Type: Histogram, Labels: []string{"state"}, Local: true,
		Help: "Time from a run's acceptance to its end."},
	{Name: runTimeouts, Type: Counter, Labels: []string{"queue", "kind"}, Local: true, Help: "Runs ended as timeout."},
	{Name: lateness, Type: Histogram, Local: true,
		Help:  "Time from a deadline until the end that it caused was durable.",
		Watch: "above a second, unless a server was away"},
	{Name: cancelTook, Type: Histogram, Local: true, Help: "Time from the request to stop until the run had ended."},
	{Name: detached, Type: Counter, Labels: []string{"reason"}, Local: true,
		Help: "Waits that ended before their run; the last one of a run counts."},
	{Name: alerts, Type: Counter, Labels: []string{"reason"}, Local: true,
		Help:  "Alerts about runs that may be stuck: run:slow by its reason, run:stale, and run:held.",
		Watch: "queued: too few workers; held: the code has a defect; the others: look at the runs"},
	{Name: leasesLost, Type: Counter, Local: true,
		Help:  "Leases that were taken from a worker that was not heard from.",
		Watch: "rises: workers die, or are cut off"},
	{Name: letters, Type: Counter, Labels: []string{"cause"}, Local: true, Help: "Runs that became dead letters.",
		Watch: "rises"},
	{Name: lettersHeld, Type: Gauge, Labels: []string{"cause"},
		Help: "Dead letters that wait for somebody to redrive or discard them.", Watch: "above 0: they expire"},
	{Name: lateResults, Type: Counter, Local: true, Help: "Results that came too late and were kept beside their run."},
	{Name: actions, Type: Counter, Labels: []string{"rule", "name"}, Local: true,
		Help:  "Actions of the watchdog, by rule.",
		Watch: "W1, W3, W10: a transaction left something undone; W4, W5: workers take runs and are not heard from"},
	{Name: setAside, Type: Counter, Labels: []string{"part"}, Local: true,
		Help:  "Rows that the watchdog could not act on and left alone for a minute, by the part of the sweep.",
		Watch: "rises: the server's log names the row and the error"},
	{Name: sweepAge, Type: Gauge,
		Help:  "Time since the last recorded sweep of any node; a sweep is recorded once a second.",
		Watch: "above 10: nobody sweeps"},
	{Name: workersSeen, Type: Gauge, Labels: []string{"state"}, Help: "Workers, online or offline.",
		Watch: "no one is online; many went offline"},
	{Name: quietest, Type: Gauge, Help: "Longest time since the last heartbeat of an online worker."},
	{Name: fanOuts, Type: Gauge,
		Help:  "Events that wait to become messages to several webhooks; 10,000 are counted at most.",
		Watch: "grows for long: one tenant has more events than can be sent"},
	{Name: attempts, Type: Counter, Labels: []string{"outcome"}, Local: true, Help: "Attempts to send a webhook.",
		Watch: "the share of refused and unreachable"},
	{Name: streams, Type: Gauge, Labels: []string{"transport"}, Local: true,
		Help: "Calls that block: event streams, sockets, waits, polls of workers, and cancels that wait."},
	{Name: streamsLimit, Type: Gauge, Local: true,
		Help: "How many streams, sockets and waits may be open on this node.", Watch: "nearly reached"},
	{Name: batches, Type: Histogram, Labels: []string{"lane"}, Local: true,
		Help: "Time to decide and write a batch that was written."},
	{Name: commits, Type: Histogram, Labels: []string{"lane"}, Local: true,
		Help: "Time to write a batch and have it on disk.", Watch: "its 99th percentile"},
	{Name: operations, Type: Counter, Labels: []string{"lane"}, Local: true,
		Help: "Operations in batches that were written."},
	{Name: writable, Type: Gauge, Local: true,
		Help:  "1 while this node's store takes writes; 0 while it is read-only, locked, away, or its disk is full.",
		Watch: "0"},
	{Name: rowsAside, Type: Counter, Local: true,
		Help:  "Rows that were set aside because another session of the database held them locked.",
		Watch: "rises: perdure doctor says which session"},
	{Name: rowsLocked, Type: Gauge, Local: true,
		Help:  "Rows and whole tables that another session of the database holds locked, as far as this node met them.",
		Watch: "above 0 for long"},
	{Name: standbys, Type: Gauge, Labels: []string{"sync"}, Local: true,
		Help:  "Standbys of PostgreSQL by their synchronous state; hidden: the role may not see it.",
		Watch: "fewer than there should be"},
	{Name: mayLose, Type: Gauge, Local: true,
		Help:  "1 if a failover of PostgreSQL may lose acknowledged commits: no standby is synchronous.",
		Watch: "1, if nothing may be lost"},
	{Name: scrapeOK, Type: Gauge, Local: true,
		Help: "1 if the store was counted in time; if not, the metrics of the store are missing.", Watch: "0 for long"},
	{Name: scrapeTook, Type: Gauge, Local: true, Help: "Duration of the last count of the store."},
	{Name: processes, Type: Counter, Labels: []string{"how"}, Local: true,
		Help:  "Processes whose files were acted on: reattached, adopted or dead; absent without a workspace.",
		Watch: "dead rises"},
	{Name: filesAside, Type: Counter, Local: true,
		Help:  "Files of the workspace that could not be used and were set aside; absent without a workspace.",
		Watch: "rises: a command writes to files that are not its own"},
	{Name: beatFailures, Type: Gauge, Local: true,
		Help:  "Sentinels that the runners of live processes could not write; absent without a workspace.",
		Watch: "rises: the disk of the workspace is full or broken"},
	{Name: scanTook, Type: Gauge, Local: true,
		Help: "Duration of the last scan of the workspace; absent without a workspace.", Watch: "above 1"},
	{Name: certExpires, Type: Gauge, Local: true,
		Help:  "Expiry of this node's TLS certificate, in seconds since 1970; absent without TLS.",
		Watch: "less than 14 days ahead"},
	{Name: buildInfo, Type: Gauge, Labels: []string{"version", "commit", "goversion"}, Local: true,
		Help: "1, with the running version as labels."},
}

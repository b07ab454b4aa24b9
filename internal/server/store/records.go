package store

// Records is everything that the store keeps: a repository for each kind of record. In a View it
// reads committed rows. In a Tx it also sees the rows that the batch has staged, and stages more.
//
// A record that belongs to a run is written only together with that run's row, whose version guards
// both.
//
// A new kind of record needs a file with its table and its repository, a field here, and a line in
// open.
type Records struct {
	base

	Runs        Runs
	Claims      Claims
	Processes   Processes
	Events      Events
	Waits       Waits
	Inbox       Inbox
	Journal     Journal
	Commits     Commits
	Approvals   Approvals
	Artifacts   Artifacts
	Views       Views
	Values      Values
	LateResults LateResults
	DeadLetters DeadLetters
	Threads     Threads
	Names       Names
	Trees       Trees
	Groups      Groups
	Idempotency Idempotency
	Workers     Workers
	Waiters     Waiters
	Tenants     Tenants
	Queues      Queues
	Pauses      Pauses
	Schedules   Schedules
	Limits      Limits
	LimitKeys   LimitKeys
	LimitLines  LimitLines
	Unique      Unique
	Keys        Keys
	Kinds       Kinds
	Webhooks    Webhooks
	Outbox      Outbox
	FanOuts     FanOuts
	WatchLog    WatchLog
	AuditLog    AuditLog
	History     History
	Meta        Meta
	Removals    Removals
}

// open prepares the repositories. Their order is the write order: tables with a version come first,
// so that a conflict shows before any other row is written.
func (r *Records) open() {
	in := &r.base
	r.Runs.open(in, &r.Events, &r.Removals)
	r.Threads.open(in, &r.Values, &r.Runs, &r.Removals)
	r.Names.open(in)
	r.Groups.open(in)
	r.Webhooks.open(in)
	r.Outbox.open(in)
	r.FanOuts.open(in)
	r.Kinds.open(in)
	r.Schedules.open(in)
	r.Limits.open(in)
	r.LimitKeys.open(in)
	r.Unique.open(in)
	r.History.open(in)
	// Tables from here on have no version.
	r.Events.open(in, &r.Values)
	r.Waits.open(in)
	r.Approvals.open(in, &r.Values)
	r.Inbox.open(in, &r.Runs)
	r.Journal.open(in, &r.Values)
	r.Commits.open(in, &r.Runs)
	r.Idempotency.open(in, &r.Runs)
	r.LateResults.open(in)
	r.DeadLetters.open(in)
	r.WatchLog.open(in)
	r.AuditLog.open(in)
	r.Workers.open(in)
	r.Waiters.open(in, &r.Runs)
	r.Tenants.open(in)
	r.Queues.open(in)
	r.Pauses.open(in, &r.Meta)
	r.Keys.open(in)
	r.Values.open(in)
	r.Artifacts.open(in, &r.Removals)
	r.Views.open(in)
	r.Removals.open(in, &r.Values, &r.Artifacts, &r.Runs)
	r.Trees.open(in)
	r.Claims.open(in, &r.Runs)
	r.Processes.open(in)
	r.LimitLines.open(in, &r.Runs)
	r.Meta.open(in)
}

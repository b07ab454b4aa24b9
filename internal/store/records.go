package store

import "github.com/perdure/perdure"

// Records is everything that the store keeps: a repository for each kind of record. In a View it
// reads committed rows. In a Tx it also sees the rows that the batch has staged, and stages more.
//
// A record that belongs to a run is written only together with that run's row, whose version guards
// both.
//
// A new kind of record needs a file with its table and its repository, a field here, and a line in
// open.
type Records struct {
	// Now is the instant of all that is read and written.
	Now perdure.Instant

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
	Trees       Trees
	Groups      Groups
	Idempotency Idempotency
	Workers     Workers
	Waiters     Waiters
	Tenants     Tenants
	Queues      Queues
	Pauses      Pauses
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

	s       *Store
	dialect *dialect
	sess    Conn
	// tx is nil in a View, which stages nothing.
	tx *Tx
	// writers are the repositories of a Tx that write rows, in write order.
	writers []writer
}

// open prepares the repositories. Their order is the write order: tables with a version come first,
// so that a conflict shows before any other row is written.
func (r *Records) open() {
	r.Runs.open(r)
	r.Threads.open(r)
	r.Groups.open(r)
	r.Webhooks.open(r)
	r.Outbox.open(r)
	r.FanOuts.open(r)
	r.Kinds.open(r)
	r.History.open(r)
	// Tables from here on have no version.
	r.Events.open(r)
	r.Waits.open(r)
	r.Approvals.open(r)
	r.Inbox.open(r)
	r.Journal.open(r)
	r.Commits.open(r)
	r.Idempotency.open(r)
	r.LateResults.open(r)
	r.DeadLetters.open(r)
	r.WatchLog.open(r)
	r.AuditLog.open(r)
	r.Workers.open(r)
	r.Waiters.open(r)
	r.Tenants.open(r)
	r.Queues.open(r)
	r.Pauses.open(r)
	r.Keys.open(r)
	r.Values.open(r)
	r.Artifacts.open(r)
	r.Views.open(r)
	r.Removals.open(r)
	r.Trees.open(r)
	r.Claims.open(r)
	r.Processes.open(r)
	r.Meta.open(r)
}

// write registers a table whose rows the batch writes. It does nothing in a View.
func (r *Records) write(w writer) {
	if r.tx != nil {
		r.writers = append(r.writers, w)
	}
}

// stage adds a statement that is executed after the rows of the batch are written.
func (r *Records) stage(text string, args []any, want int64) {
	r.tx.later.add(statement{text, args, want})
}

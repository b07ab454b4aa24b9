package store

import "github.com/perdure/perdure"

// Records is everything that the store keeps: a repository for each kind of record. A View reads with it what is
// committed. A Tx reads through it what its batch has staged, and stages more.
//
// A record that belongs to a run is written only together with that run's row, whose version guards both.
//
// A new kind of record is a file with its table and its repository, a field here, and a line in open.
type Records struct {
	Now perdure.Instant // one instant for all that is read and written

	Runs        Runs
	Claims      Claims
	Events      Events
	Waits       Waits
	Inbox       Inbox
	Journal     Journal
	Commits     Commits
	Approvals   Approvals
	Artifacts   Artifacts
	Values      Values
	LateResults LateResults
	DeadLetters DeadLetters
	Threads     Threads
	Groups      Groups
	Idempotency Idempotency
	Workers     Workers
	Waiters     Waiters
	Tenants     Tenants
	Queues      Queues
	Keys        Keys
	Webhooks    Webhooks
	Outbox      Outbox
	FanOuts     FanOuts
	WatchLog    WatchLog
	AuditLog    AuditLog
	Meta        Meta
	Removals    Removals

	s       *Store
	dialect *dialect
	sess    Session
	tx      *Tx      // nil in a View, which stages nothing
	writers []writer // of a Tx, in write order
}

// open makes the repositories ready. Their order is that in which their rows are written: a batch that was overtaken
// finds out by a row with a version, before it has written anything else.
func (r *Records) open() {
	r.Runs.open(r)
	r.Threads.open(r)
	r.Groups.open(r)
	r.Webhooks.open(r)
	r.Outbox.open(r)
	r.FanOuts.open(r)
	// Rows without a version come from here on.
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
	r.Keys.open(r)
	r.Values.open(r)
	r.Artifacts.open(r)
	r.Removals.open(r)
	r.Claims.open(r)
	r.Meta.open(r)
}

// write has a batch write the rows of a table. A View writes nothing.
func (r *Records) write(w writer) {
	if r.tx != nil {
		r.writers = append(r.writers, w)
	}
}

// stage adds a statement to a batch, behind the rows that it writes.
func (r *Records) stage(text string, args []any, want int64) {
	r.tx.later.add(statement{text, args, want})
}

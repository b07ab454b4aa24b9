// Package store keeps runs, and every record that belongs to them, in a SQL database. It answers a
// write only when the write is durable.
//
// # Promises
//
//   - Acknowledged means on disk. Batch, Do and DoAll return after the commit is durable. A commit
//     that fails is never an acknowledgement.
//   - One transaction per batch. A batch is decided on what it has read and then written in one
//     short transaction. A single statement changes rows of runs: a compare-and-set on the version
//     (runs.go). If another writer has changed one of the rows, the whole batch is decided again.
//   - One behaviour on both databases. The SQL is shared. The differences between SQLite and
//     PostgreSQL are the fields of dialect (dialect.go, sqlite.go, postgres.go).
//
// # How a batch works
//
//	Do, DoAll   an operation (Op) is put into the queue of its lane              batch.go
//	gather      the lane takes the next operations, in turns between tenants     queue.go
//	decide      each operation reads from Records and stages its changes         tx.go, staged.go
//	verify      versions of runs that the batch read but does not write          cache.go
//	commit      all staged rows in one transaction, versioned ones first         batch.go
//	answer      every operation gets its own error; callbacks of Tx.After run    batch.go
//
// Lanes decide at the same time. Two lanes, or two nodes, that change the same row conflict: the
// second one fails at the version and decides again with fresh rows. An operation that is refused
// has its changes undone and does not affect the rest of the batch. A batch that can't be written
// is halved, so that one bad operation does not fail the others.
//
// # Records
//
// Records (records.go) holds a repository for each kind of record: Runs, Waits, Inbox, Threads and
// so on, each in a file of its own with its table. A Tx embeds Records: reads see the rows that the
// batch has staged, and Put and Drop stage more. A View embeds Records too and only reads: all of
// it as of one moment.
//
// Records of a run (waits, items, journal, log) have no version. They are written only together
// with their run's row, and its version guards them. Such records are read after their run.
//
// # What it is not
//
// The store makes no decisions about runs. The domain package says which transition is allowed, and
// the engine calls it inside an Op. The store also sends nothing and has no timers for runs: the
// watchdog asks it which alarms have passed (due.go, runs_find.go).
//
// # Packages below
//
// Package sqlite and package pg hold the connections, backup is the format of a backup, and scan
// converts column values. None of them knows the store's tables, and none imports the store.
//
// # Where to start reading
//
// The files build on one another: one uses names of those before it, and hardly of those after it.
//
//   - conn.go, idle.go, statement.go, alike.go, dialect.go, sqlite.go: a connection, what is executed on
//     it, and the differences between the databases.
//   - columns.go, table.go, damage.go, lockkeys.go: how a record becomes a row and back, also a
//     damaged one, and which rows a statement writes.
//   - tx.go, base.go, budget.go, staged.go: a batch, what repositories share, and the rows in
//     memory.
//   - migrations.go, migrate.go, template.go, spares.go, store.go, clock.go, timeline.go, accept.go,
//     postgres.go, full.go, read.go: opening a store, its views, its clock, and which PostgreSQL it is.
//   - metadata.go, values.go, events.go, removals.go, rest.go, runs.go, heads.go,
//     list_filter.go, list.go, list_sources.go, page.go, due.go, runs_find.go, ends.go, counts.go: the
//     runs, and how they are found.
//   - waits.go, approvals.go, inbox.go, journal.go, idempotency.go, commits.go, waiters.go,
//     lateresults.go, views.go, artifacts.go, deadletters.go: records of a run.
//   - names.go, threads.go, threads_find.go, trees.go, groups.go: records over several runs.
//   - meta.go, tenants.go, queues.go, pauses.go, schedules.go, limits.go, limit_relative.go,
//     unique.go, apikeys.go, kinds.go, workers.go, processes.go, webhooks.go, outbox.go, fanout.go,
//     watchlog.go, audit.go, history.go: records of a tenant or of the platform.
//   - expire.go, clear.go: removing what has expired.
//   - claims.go, places.go, held.go, limit_lines.go, records.go: which runs a worker may claim; all
//     repositories together.
//   - cache.go, lookup.go, inputs.go, queue.go, lane.go, locks.go, contended.go, blockers.go,
//     outage.go, writable.go, batch.go: how a batch is read, decided and written, and what may be in
//     its way.
//   - standbys.go, levels.go, pending.go: what a failover may lose, which releases write, and what an
//     upgrade would change.
//   - readers.go, limit_check.go, check.go, census.go, clockback.go, backup.go, restore.go: reading
//     committed rows, and looking at the whole store.
//
// Begin with Open in store.go, View in readers.go and Batch in batch.go, then waits.go: a small
// repository that has everything a repository has. runs.go is the most important one. check.go lists
// the invariants of the data as queries; the server, the simulator and the restore of a backup run
// them.
//
// # How to add a table
//
// Add the next file to schema/ (never edit an older one). Write a file with the row type, the table
// and the repository with its open method, and list it above. Add a field to Records and a line to
// Records.open. Rows of a run also need an entry in belongings (removals.go), so that they are
// removed with it.
package store

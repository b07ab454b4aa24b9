// Package engine puts the engine together: the use cases of the server, everything that can be done
// with runs. It is the only place in which a decision of the domain meets the write that stores it.
//
// # A kernel and wings
//
//	kernel    operations, Tx.Apply with hooks, idempotency, redaction, one type of cache
//	access    keys, sessions, the root secret, the audit log
//	outbox    webhooks: endpoints, fan-out, deliveries
//	rules     what a tenant's queues and kinds say: kinds, pauses, limits, signatures
//	life      submit, commit, wait, signal, children, groups, threads, cancel, retry, end
//	dispatch  the gate; polls, held runs, polls that stand by
//	upkeep    retention, repair, removal, restore, the clock
//	reads     what httpd, the feed and the commands ask
//
// A later wing may use an earlier one, never the other way; a test checks that. A wing owns its state
// and registers it once, with the hooks that the kernel calls it by: see assemble in engine.go, and
// parts.go of the kernel.
//
// # An operation and its life
//
// A use case that changes something is a kernel.Op: a struct with the request's fields and, afterwards,
// the answer's. Engine.Do runs one through the store's group commit:
//
//  1. bind: The Op is wrapped for the store. If it has a Prepare method, this validates and hashes
//     the input here. That is outside of the lane, so that it does not hold up the batch.
//  2. lane: The store puts the Op into a lane. Operations of one lane are decided one after the
//     other and committed in batches; lanes run side by side. Needs names the runs that the store
//     reads for the whole batch at once. Weight says about how much the Op costs.
//  3. Do: The Op reads through kernel.Tx what is stored and what the batch has staged so far. It has the
//     domain decide (Tx.Apply), and stages rows through Tx.DB. An error discards what this Op
//     staged and leaves the rest of the batch alone.
//  4. write: The store writes the batch in one transaction. Each run's row is compared with the
//     version that was read. After a conflict the batch is decided again: Do must set all fields of
//     the answer anew, and keep nothing from an earlier try.
//  5. after: Once the batch is durable, doorbells ring, the watchdog is woken, metrics are counted
//     and caches are changed. Only then does the caller get its answer.
//
// Engine.Step does the same for a batch at a given instant, synchronously. The simulator and many
// tests use it.
//
// A read is a method of a noun (Runs, Threads, Webhooks …, see package reads). It looks at one
// snapshot of the store and waits for no batch.
//
// # What it is not
//
// The engine does not decide what a state is or which event may follow: that is the transition
// table of the root package. It knows no HTTP and no SQL dialect. It holds no state of runs:
// everything is in the store, and any number of engines may work on one store. What it remembers is
// a cache (API keys, webhooks, counts of live runs, cursors of polls), and each cache says how old
// it may get.
//
// # Where to start reading
//
// Follow a run. life/submit.go accepts it. dispatch/claim.go leases it to a worker; search.go beside it
// finds it for that. life/commit.go takes the worker's progress and outcome, wait.go suspends the run
// and wakes it again, end.go ends it, and follow.go stops its children. Keep the transition table of
// the root package open (docs/lifecycle.md shows it).
//
// # Invariants
//
//   - Time, ids and random numbers come from the transaction and the options. No file of the
//     wings starts a goroutine or reads a clock; a test checks that.
//   - A run's state changes in Tx.Apply alone, by an event of the transition table. (The one other
//     place is restore.go, which applies events to the runs of a backup.)
//   - A run that can be affected from two nodes at once has its row written by both, even if
//     nothing in it changes. One of them then conflicts and is decided again.
//   - The end of a run never fails for lack of disk space, a quota, or a value that can't be read.
//   - One operation costs a bounded number of rows and bytes. What exceeds it is stored as work
//     left to do, and the watchdog continues it.
//
// # How to add a use case
//
// Add a file with the Op to its wing: its fields, Needs and Do. Validate the input in Prepare or at
// the start of Do. Use kernel.UnderKey if it takes an idempotency key. Give it a Lane if it isn't work on a run, and
// a Weight if its cost grows with the request. Then add a route in httpd and a scenario in
// conformance. docs/adding-a-table.md goes through an example, with a new table.
package engine

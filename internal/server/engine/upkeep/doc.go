// Package upkeep keeps a store healthy: retention, removal, repair, restore from a backup, and the
// clock.
//
// The watchdog and the operator's commands call it. It removes and repairs; no run lives by it.
//
// # Where to start reading
//
// retention.go. The files build on one another: one uses names of those before it.
//
//   - unused_kinds.go, unused.go: rows that nothing refers to.
//   - tree.go, delete.go: removing a run with its tree, and a thread.
//   - retention.go: removing what has expired.
//   - invariants.go, repair.go: looking for impossible rows, and mending them.
//   - restore.go, accept.go, clockback.go, deadletter.go: for operators.
package upkeep

// Package upkeep has what keeps a store healthy: retention, removal, repair, restore from a backup,
// and the clock.
//
// The watchdog and the operator's commands call it. It removes and repairs; no run lives by it.
//
// # Where to start reading
//
// retention.go, then unused.go and unused_kinds.go; delete.go and tree.go remove what somebody
// deletes; repair.go and invariants.go look for what can't be; restore.go, clockback.go and
// deadletter.go are for operators.
package upkeep

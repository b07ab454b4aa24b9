// Package kernel holds what the use cases of the server share.
//
// An operation is an Op; Engine.Do runs it through the store's group commit, and Tx is its view of
// the store. A run's state changes in Tx.Apply alone, by an event of the transition table. The
// kernel knows no wing: wings keep their state in it and are called by it, see parts.go.
//
// # Where to start reading
//
// kernel.go has the engine and its operations, tx.go what an operation can do. Then: actor.go,
// cache.go, canonical.go, idempotency.go, parts.go, observe.go, redact.go, budget.go, bound.go.
package kernel

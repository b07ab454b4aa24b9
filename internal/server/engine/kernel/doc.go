// Package kernel is shared by all use cases of the server: operations, transitions, caches.
//
// An operation is an Op; Engine.Do runs it through the store's group commit, and Tx is its view of
// the store. A run's state changes in Tx.Apply alone, by an event of the transition table. The
// kernel knows no wing: wings keep their state in it and are called by it, see parts.go.
//
// # Where to start reading
//
// kernel.go and tx.go. The files build on one another: one uses names of those before it, and hardly
// of those after it.
//
//   - cache.go, canonical.go: the one cache type, with its rule of staleness; the canonical form of JSON.
//   - kernel.go, actor.go: the engine, an operation and its Tx; who acts, for the audit log.
//   - idempotency.go, budget.go: keys of callers, and the cost that an operation may have.
//   - parts.go, observe.go, redact.go: state and hooks of wings, metrics, secrets.
//   - features.go: what waits until no node of an older release is connected.
//   - tx.go, bound.go: transitions, and how an operation runs in a batch.
package kernel

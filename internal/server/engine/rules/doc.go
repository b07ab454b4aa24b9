// Package rules holds a tenant's settings for its runs: kinds, paused queues, limits, signatures.
//
// It answers questions about the settings. Package life decides whether a run is accepted, and
// package dispatch whether it is granted.
//
// # Where to start reading
//
// kind.go, pause.go, queue.go, sign.go, live.go and tenant.go, one for each setting. The files build on one
// another: one uses names of those before it.
//
//   - rules.go: the settings of the server.
//   - kind_cache.go, limit.go, kind.go: kinds, and the limits that their concurrency is.
//   - place.go, pause.go, queue.go: queues, their pauses and their limits.
//   - live.go, sign.go, tenant.go: the limit of live runs, signatures, a tenant's own settings.
package rules

// Package metrics collects the metrics of a server for Prometheus.
//
// Counters count durable facts: the engine's changes, the watchdog's actions, the store's batches.
// Each node counts what went through it. Gauges about runs are computed from the store at a scrape,
// by a census. It is cached, so that it takes only a small part of the store's time.
//
// The package decides nothing, and nothing waits for it. Package embedded connects it with the
// server.
//
// table.go lists all metrics; docs/metrics.md is printed from it. metrics.go has the counters,
// census.go the gauges, and label.go limits the values of labels.
//
// Invariants: every metric is a row of the table. No label has an unlimited number of values, so no
// label is a run, a thread, a tenant or a worker. Counting allocates no memory.
package metrics

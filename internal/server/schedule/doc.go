// Package schedule says at which instants a schedule fires, and which of them were missed.
//
// A Plan is what a tenant writes: a cron expression in a time zone, or an interval. A Clock gives its
// instants. It is pure: time is an argument, and the same plan has the same instants on every node. The
// engine's wing life stores schedules and starts their runs.
//
//   - cron.go: reading an expression, and its civil minutes.
//   - next.go: from civil minutes to instants, also on days on which clocks change.
//   - schedule.go: plans, and what is due.
package schedule

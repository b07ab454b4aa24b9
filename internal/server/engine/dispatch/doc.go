// Package dispatch has how runs and workers find each other.
//
// gate.go is the one place that says whether a run may be granted to a poll now, and what people
// read if not. Every way to a grant asks it.
//
// # Where to start reading
//
// gate.go, then claim.go, which is one poll. The files build on one another: one uses names of those
// before it, and hardly of those after it.
//
//   - serving.go, poll.go: the polls that workers send; one poll and its budget.
//   - gate.go, grant.go: whether a run may be granted, and granting it.
//   - queue.go, held_places.go: places with runs that can be granted, places with held runs.
//   - search.go, held.go, claim.go: the search for runs, also for held ones; the operation of a poll.
//   - standby.go: polls that wait.
//   - dispatch.go: adds the wing to an engine.
package dispatch

// Package life has the life of a run, from its submission to its end.
//
// Everything that a caller, a worker or another run can do to a run is here, a file for each:
// submit, start, commit, wait, signal, cancel, retry, end, and what runs have in common: threads,
// groups, children. How a run finds its worker is not: that is dispatch.
//
// # Where to start reading
//
// submit.go accepts a run. start.go begins it, heartbeat.go keeps it, commit.go takes the worker's
// progress and outcome. wait.go suspends it and wakes it again. end.go ends it, and follow.go stops
// its children. Keep the transition table of the root package open (docs/lifecycle.md shows it).
package life

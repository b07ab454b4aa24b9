// Package dispatch has how runs and workers find each other.
//
// gate.go is the one place that says whether a run may be granted to a poll now, and what people
// read if not. Every way to a grant asks it.
//
// # Where to start reading
//
// gate.go, then claim.go, which is one poll; search.go finds its runs, held.go those that are held
// back, standby.go has polls that wait. serving.go and queue.go tell who polls for what.
package dispatch

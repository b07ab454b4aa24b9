// Package stage has marks for tests that have nothing to show in one of the stages of "make test-all". A
// test has its mark in its first line. The Makefile leaves such tests out of that stage (.ci/left-out), and
// they run in the stage "test". No test skips itself: run by hand, they run everywhere.
package stage

import "testing"

// NoStore marks a test that is left out where tests run once more on PostgreSQL: it has no store, names its
// store itself, or has both already. Or it is about something above the store, such as the wire, a limit in
// memory or what a library does with an answer; the conformance suite compares what both stores do.
func NoStore(testing.TB) {}

// NoRace marks a test that is left out under the race detector: it makes one call after the other, so that
// its goroutines are those of others in the same package, or it takes long because of what it reads, compares
// or waits for in one goroutine.
func NoRace(testing.TB) {}

// Package stage has marks for tests that have nothing to show in one of the stages of "make test-all". A
// test has its mark in its first line. The Makefile leaves such tests out of that stage (.ci/left-out), and
// they run in the stage "test". No test skips itself: run by hand, they run everywhere.
package stage

import "testing"

// NoStore marks a test that is left out where tests run once more on PostgreSQL: it has no store, or
// names its store itself, or has both already. It is for tests that take long.
func NoStore(testing.TB) {}

// NoRace marks a test that is left out under the race detector. It is for tests that take long because of
// what they read, compare or wait for in one goroutine, or whose goroutines are those of others in the
// same package.
func NoRace(testing.TB) {}

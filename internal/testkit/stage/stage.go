// Package stage has marks for tests that belong into some stages of "make test-all" and not into others. A
// test has its mark in its first line, and the Makefile goes by it (.ci/left-out). No test skips itself: run
// by hand, they run everywhere.
package stage

import "testing"

// NoStore marks a test that is left out where tests run once more on PostgreSQL: it has no store, or
// names its store itself, or has both already. It is for tests that take long.
func NoStore(testing.TB) {}

// NoRace marks a test that is left out under the race detector. It is for tests that take long because of
// what they read, compare or wait for in one goroutine, or whose goroutines are those of others in the
// same package.
func NoRace(testing.TB) {}

// Long marks a test of the stage "long". It is left out of "make test", which contributors run before every
// push. It is for tests of fleets, upgrades, failovers and attacks, which take long whatever their size.
func Long(testing.TB) {}

// Package stage is for tests that have nothing to show in one of the stages of "make test-all". Such a
// test says so in its first line, and runs in the stage "test" alone.
package stage

import (
	"os"
	"testing"
)

// Elsewhere is the reason of a test that is left out. .ci/run tells such tests from skipped ones by it.
const Elsewhere = "this test runs in the stage test alone"

// store is storetest.Env. The store's own tests use this package, so that it can't import that one.
const store = "PERDURE_TEST_STORE"

// NoStore leaves a test out where tests run once more on PostgreSQL: it has no store, or names its
// store itself, or has both already. It is for tests that take long.
func NoStore(t testing.TB) {
	t.Helper()
	if os.Getenv(store) == "postgres" {
		t.Skip(Elsewhere)
	}
}

// NoRace leaves a test out under the race detector. It is for tests that take long because of what
// they read, compare or wait for in one goroutine, or whose goroutines are those of others in the same
// package.
func NoRace(t testing.TB) {
	t.Helper()
	if raced {
		t.Skip(Elsewhere)
	}
}

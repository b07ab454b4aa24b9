// Package eventually is for tests that wait for something which nobody tells them of: another process, a connection, a
// goroutine that ends. Where something does tell, a channel or a doorbell, a test waits for that instead.
package eventually

import (
	"testing"
	"time"
)

// Within is how long anything may take. A machine with other things to do fails no test, so it is as long as "go test"
// gives a package where nothing else is said.
const Within = 10 * time.Minute

// True asks until the answer is yes. It fails the test after Within, or shortly before the deadline of the test binary:
// then the failure names what was waited for.
func True(t testing.TB, what string, ok func() bool) {
	t.Helper()
	began, limit, told := time.Now(), Left(t), false
	for !ok() {
		waited := time.Since(began)
		if waited > limit {
			t.Fatalf("%s: not within %s", what, waited.Round(time.Second))
		}
		if waited > time.Minute && !told {
			told = true
			t.Logf("%s: not yet after %s", what, waited.Round(time.Second))
		}
		// The longer it takes the less often it asks: to ask costs the time of what it waits for.
		time.Sleep(min(max(waited/20, 2*time.Millisecond), 20*time.Millisecond))
	}
}

// Left is how long a test may still wait for something: Within at most, and a tenth less than the test binary has left.
// In a bubble of synctest, where T.Deadline panics, the binary's deadline is no part of the bubble's time.
func Left(t testing.TB) (left time.Duration) {
	left = Within
	defer func() { _ = recover() }()
	if t, ok := t.(interface{ Deadline() (time.Time, bool) }); ok {
		if end, ok := t.Deadline(); ok {
			left = min(left, time.Until(end)*9/10)
		}
	}
	return left
}

// Package eventually is for tests that wait for something which nobody tells them of: another process, a connection, a
// goroutine that ends. Where something does tell, a channel or a doorbell, a test waits for that instead.
package eventually

import (
	"testing"
	"time"
)

// Within is how long anything may take, on a machine with other things to do.
const Within = 40 * time.Second

// True asks until the answer is yes, and fails the test when that takes too long.
func True(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(Within); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %s", what, Within)
		}
	}
}

package e2e

import (
	"testing"
	"time"

	"github.com/perdure/perdure/internal/server/engine/rules"
	"github.com/perdure/perdure/internal/testkit/pgtest"
)

// A queue is paused at one server process, and another one grants nothing from it after the stated delay.
// With PERDURE_PAUSES it does so more often. It logs how long the other process went on.
func TestPauseAtOneServerStopsGrantsOfAnother(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2, pgtest.New(t))
	do := func(at int, path string, in, out any) {
		t.Helper()
		if status, err := f.call(at, "POST", "/api/v1"+path, "", in, out); err != nil || status/100 != 2 {
			t.Fatalf("POST %s: status %d, error %v, want 2xx", path, status, err)
		}
	}
	poll := func(wait string) int {
		t.Helper()
		var got struct{ Runs []obj }
		do(1, "/workers/w/poll", obj{"slots": 1, "wait": wait}, &got)
		return len(got.Runs)
	}
	left := 0
	take := func() {
		t.Helper()
		if poll("30s") == 0 {
			t.Fatalf("no run was granted within 30 s, and %d are claimable", left)
		}
		left--
	}
	submit := func() {
		for ; left < 400; left += 100 {
			many := make([]obj, 100)
			for i := range many {
				many[i] = obj{"kind": "job"}
			}
			do(0, "/runs/batch", obj{"runs": many}, nil)
		}
	}
	var delays []time.Duration
	for range number("PERDURE_PAUSES", 2) { // the first pause ever, and one more
		submit()
		for range 3 { // the other process has looked at the pauses just now
			take()
		}
		do(0, "/queues/default/pause", obj{"reason": "a test"}, nil)
		paused, last := time.Now(), time.Duration(0)
		for time.Since(paused) <= rules.PauseDelay {
			if poll("0s") > 0 {
				left--
				last = time.Since(paused)
			}
		}
		for range 5 {
			if poll("0s") > 0 {
				t.Fatalf("a run was granted by a poll that began %s after the pause, want none after %s",
					time.Since(paused), rules.PauseDelay)
			}
		}
		delays = append(delays, last)
		do(0, "/queues/default/resume", nil, nil)
		if take(); left < 100 {
			t.Fatalf("%d runs were left, so that this proves nothing", left)
		}
	}
	t.Logf("%d pauses: the other server's last grant came %s (p50), %s (p99), %s (max) after the pause was answered",
		len(delays), quantile(delays, 0.5), quantile(delays, 0.99), quantile(delays, 1))
}

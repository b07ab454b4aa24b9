package watchdog

import (
	"fmt"
	"testing"
	"time"

	"github.com/perdure/perdure"
)

func TestCopiesOfATenantStandInLine(t *testing.T) {
	c := newCopies()
	now := perdure.Instant(1_000_000)
	run := func(tenant perdure.TenantID, id perdure.RunID) *perdure.Run {
		return &perdure.Run{Tenant: tenant, ID: id}
	}
	want := func(when string, r *perdure.Run, due perdure.Instant, ahead time.Duration) {
		t.Helper()
		at := perdure.Instant(0)
		if ahead > 0 {
			at = now.Add(ahead)
		}
		if got := c.turn(r, due, now); got != at {
			t.Errorf("%s: %s of %s is copied at %d, want %d", when, r.ID, r.Tenant, got, at)
		}
	}
	one, two, other := run("a", "one"), run("a", "two"), run("b", "other")
	due := now
	want("at first", one, due, 0)
	want("behind it", two, due, perdure.CopyPause)
	want("of another tenant", other, due, 0)
	// The sweep is decided again, or another event has set the alarm.
	want("again", one, due, 0)
	want("again", two, due, perdure.CopyPause)

	now = now.Add(perdure.CopyPause)
	c.forget(now)
	want("its next part, behind the other's", one, now, perdure.CopyPause)
	want("when its turn has come", two, due, 0)

	for i := range quickParts - 4 {
		c.turn(run("a", perdure.RunID(fmt.Sprint("quick", i))), now, now)
	}
	want("last of the quick ones", run("a", "quick"), now, (quickParts-2)*perdure.CopyPause)
	want("first of the slow ones", run("a", "slow"), now, (quickParts-1)*perdure.CopyPause)
	want("behind it", run("a", "slower"), now, (quickParts-1)*perdure.CopyPause+longPause)
	for i := range int(longestLine / longPause) {
		c.turn(run("a", perdure.RunID(fmt.Sprint(i))), now, now)
	}
	want("behind a long line", run("a", "last"), now, longestLine)
	now = now.Add(2*longestLine + longPause)
	c.forget(now)
	if len(c.lines)+len(c.reserved) != 0 {
		t.Errorf("left: %d tenants and %d reservations, want none", len(c.lines), len(c.reserved))
	}
}

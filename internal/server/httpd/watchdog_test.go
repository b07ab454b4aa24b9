package httpd

import (
	"testing"

	"github.com/perdure/perdure/internal/server/watchdog"
	"github.com/perdure/perdure/internal/testkit/eventually"
)

func TestWatchdogLogTakesFullRuleNames(t *testing.T) {
	w := newWorld(t, setup{watchdog: true})
	admin := w.as(w.admin)
	id := w.start(`{"kind":"job","delay":"20ms"}`)
	count := func(rule string) int {
		return len(admin.get("/api/admin/watchdog?run_id=" + id + "&rule=" + rule).is(200)["actions"].([]any))
	}
	eventually.True(t, "the watchdog logs that the delay is over", func() bool { return count("due") == 1 })
	if got := count("delay-over"); got != 1 {
		t.Errorf("run %s: actions of rule delay-over = %d, want 1, as of rule due", id, got)
	}
	for _, r := range watchdog.Rules {
		if r.FullName != "" {
			admin.get("/api/admin/watchdog?rule=" + r.FullName).is(200)
		}
	}
	admin.get("/api/admin/watchdog?rule=delay-under").refuses(400, "invalid")
}

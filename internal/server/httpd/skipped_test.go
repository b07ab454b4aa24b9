package httpd

import (
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/testkit/eventually"
)

// An inbox item that an ended run has not read is skipped later. The run's activity shows it.
func TestSkippedItemIsShown(t *testing.T) {
	w := newWorld(t, setup{watchdog: true, policy: func(p *perdure.Policy) {
		p.PendingWakeup, p.PendingWakeupSkip = time.Millisecond, time.Millisecond
	}})
	g := w.running(`{"kind":"job"}`)
	id := g["run_id"].(string)
	w.do("POST", runs+"/"+id+"/signals/unread", `{"data":1}`).is(200)
	if list := w.get(runs + "/" + id + "/activity").is(200)["skipped"].([]any); len(list) != 0 {
		t.Errorf("skipped items of live run %s = %v, want none", id, list)
	}
	w.commits(g, complete)
	var list []any
	eventually.True(t, "the item is skipped", func() bool {
		list = w.get(runs + "/" + id + "/activity").is(200)["skipped"].([]any)
		return len(list) > 0
	})
	item := list[0].(obj)
	if len(list) != 1 || item["seq"] != 1.0 || item["type"] != "signal" || item["name"] != "unread" ||
		item["watchdog_error"] != "run_ended" {
		t.Errorf("skipped items of run %s = %v, want the signal, because of run_ended", id, list)
	}
	if came, skipped := w.instant(item["at"]), w.instant(item["watchdog_at"]); !skipped.After(came) {
		t.Errorf("item of run %s came at %s and was skipped at %s, want that later", id, came, skipped)
	}
}

package httpd

import (
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/access"
	"github.com/perdure/perdure/internal/testkit/eventually"
)

// queue gives a queue as the list of queues has it.
func (w *world) queue(name string) obj {
	w.t.Helper()
	for _, q := range w.get("/api/v1/queues").is(200)["queues"].([]any) {
		if q.(obj)["name"] == name {
			return q.(obj)
		}
	}
	w.t.Fatalf("no queue %s", name)
	return nil
}

func TestPausedQueueGrantsNothingUntilItIsResumed(t *testing.T) {
	w := newWorld(t, setup{})
	p := w.do("POST", "/api/v1/queues/default/pause", `{"reason":"a bad deploy"}`).is(200)["paused"].(obj)
	if p["reason"] != "a bad deploy" || p["paused_by"] != "test" || p["paused_at"] == nil || p["until"] != nil {
		t.Errorf("paused = %v, want the reason, the key's name and no end", p)
	}
	polled := w.later("POST", "/api/v1/workers/w/poll", `{"slots":1,"wait":"30s"}`)
	eventually.True(t, "a poll waits", func() bool { return w.attached("poll") == 1 })
	id := w.start(`{"kind":"job"}`)
	polls := w.do("POST", "/api/v1/workers/v/poll", `{"slots":1,"wait":"0s"}`).is(200)
	if runs := polls["runs"].([]any); len(runs) != 0 {
		t.Errorf("a poll of a paused queue got %v", runs)
	}
	a := w.get("/api/v1/runs/" + id + "/activity").is(200)
	if got, _ := a["paused"].(obj); got["reason"] != "a bad deploy" {
		t.Errorf("activity = %v, want the pause", a)
	}
	if got, _ := w.queue("default")["paused"].(obj); got["paused_by"] != "test" {
		t.Errorf("queue = %v, want the pause", w.queue("default"))
	}
	out := w.do("POST", "/api/v1/queues/default/resume", "").is(200)
	if out["paused"] != nil || out["name"] != "default" {
		t.Errorf("resumed: %v, want no pause", out)
	}
	if runs := (<-polled).is(200)["runs"].([]any); len(runs) != 1 || runs[0].(obj)["run_id"] != id {
		t.Errorf("the poll that waited got %v, want run %s at once", runs, id)
	}
	w.do("POST", "/api/v1/queues/default/resume", "").is(200)
}

func TestPauseOfPlatformKeyHidesItsName(t *testing.T) {
	w := newWorld(t, setup{})
	w.start(`{"kind":"job"}`)
	w.as(w.admin).do("POST", "/api/v1/queues/default/pause?tenant=a", `{"for":"1h"}`).is(200)
	p := w.queue("default")["paused"].(obj)
	if p["platform"] != true || p["paused_by"] != nil || p["until"] == nil {
		t.Errorf("paused by the platform: %v, want no name, and an end", p)
	}
}

func TestPauseIsRefusedWithAReason(t *testing.T) {
	w := newWorld(t, setup{})
	soon := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	for body, field := range map[string]string{
		`{"until":"2020-01-01T00:00:00Z"}`:                "until",
		`{"until":"9020-01-01T00:00:00Z"}`:                "until",
		`{"for":"-1s"}`:                                   "for",
		`{"for":"1h","until":"` + soon + `"}`:             "for",
		`{"reason":"` + strings.Repeat("x", 1<<20) + `"}`: "reason",
	} {
		if got := w.do("POST", "/api/v1/queues/q/pause", body).problem()["field"]; got != field {
			t.Errorf("%.60s is refused for the field %v, want %s", body, got, field)
		}
	}
	w.do("POST", "/api/v1/queues/%24x/pause", "").is(400)
	reader := w.newKey("a", func(op *access.CreateKey) { op.Scopes = []perdure.Scope{perdure.ScopeRead} })
	w.as(reader).do("POST", "/api/v1/queues/q/pause", "").is(403)
}

package httpd

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// Every change of a run moves updated_at of its job status. Reading the run does not.
func TestJobStatusHasTimeOfLastChange(t *testing.T) {
	var now atomic.Int64
	now.Store(1e15)
	at := storetest.Options(t)
	at.Hooks.Clock = func() perdure.Instant { return perdure.Instant(now.Load()) }
	w := newWorld(t, setup{store: &at})
	id := w.do("POST", runs, `{"kind":"job","class":"agent","wait":"1ms"}`).is(202)["run_id"].(string)
	var g obj
	updated := func() time.Time {
		return w.instant(w.get("/api/v1/jobs/" + id + "/status").is(200)["updated_at"])
	}
	for _, step := range []struct {
		name string
		do   func()
	}{
		{"reattaching and deferral", func() { w.get(runs + "/" + id + "/join?timeout=1ms").is(202) }},
		{"a grant", func() { g = w.lease("w", `,"start":true`) }},
		{"a suspend", func() {
			w.commits(g, `"waits":[{"id":"s","type":"signal","name":"go"}],"outcome":{"type":"suspend"}`)
		}},
		{"a signal that nobody waits for", func() { w.do("POST", runs+"/"+id+"/signals/other", `{"data":1}`).is(200) }},
		{"a signal that is waited for", func() { w.do("POST", runs+"/"+id+"/signals/go", `{"data":1}`).is(200) }},
		{"a cancel", func() { w.do("POST", runs+"/"+id+"/cancel", `{}`).is(200) }},
	} {
		before := updated()
		now.Add(time.Second.Microseconds())
		if again := updated(); !again.Equal(before) {
			t.Errorf("before %s: updated_at moved from %s to %s, and nothing happened", step.name, before, again)
		}
		step.do()
		if got, want := updated(), before.Add(time.Second); !got.Equal(want) {
			t.Errorf("updated_at after %s = %s, want %s", step.name, got, want)
		}
	}
}

package httpd

import (
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/eventually"
)

// A wait reads the store from time to time, because the cached state of a run may be stale.
func TestWaitDoesNotTrustStaleCache(t *testing.T) {
	m, err := store.NewMemory()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	at := store.Options{Memory: m}
	w, behind := newWorld(t, setup{store: &at, poll: 10 * time.Millisecond}), newWorld(t, setup{store: &at})
	behind = behind.as(w.key)
	waits := w.later("POST", runs, `{"kind":"job","wait":"1h"}`)
	g := w.do("POST", "/api/v1/workers/w/poll",
		`{"slots":1,"start":true,"wait":"30s"}`).is(200)["runs"].([]any)[0].(obj)
	ref := store.Ref{Tenant: "a", Run: perdure.RunID(g["run_id"].(string))}
	eventually.True(t, "somebody waits", func() bool { return w.s.waiters.Count(ref) > 0 })
	behind.commits(g, complete) // the first server hears nothing of it
	if !w.e.Store().Live(ref.Tenant, ref.Run) {
		t.Error("the first server knows it: this proves nothing")
	}
	if run := soon(t, waits).is(200); run["state"] != "completed" {
		t.Errorf("run = %v, want state = completed", run)
	}
}

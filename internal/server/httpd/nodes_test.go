package httpd

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/doorbell"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// twoNodes makes two servers on one PostgreSQL. Neither gets the other's rings, so that each finds
// changes of the other by polling.
func twoNodes(t *testing.T) (a, b *world) {
	t.Helper()
	opt := setup{store: &store.Options{URL: storetest.Postgres(t)}, poll: 5 * time.Millisecond}
	a = newWorld(t, opt)
	opt.options = func(o *Options) { o.Node = "n2" }
	b = newWorld(t, opt)
	b.key = a.key
	return a, b
}

// A wait on one of two nodes answers rings of its own node from memory, until there is news of the
// other node: then it reads the run.
func TestWaitReadsAfterNewsOfAnotherNode(t *testing.T) {
	counters := new(atomic.Pointer[doorbell.Stats])
	counters.Store(&doorbell.Stats{Connected: true})
	opt := setup{store: &store.Options{URL: storetest.Postgres(t)}, counters: counters}
	a := newWorld(t, opt)
	opt.options = func(o *Options) { o.Node = "n2" }
	b := newWorld(t, opt)
	b.key = a.key
	waits := a.later("POST", runs, `{"kind":"job","wait":"1h"}`)
	g := a.do("POST", "/api/v1/workers/w/poll",
		`{"slots":1,"start":true,"wait":"30s"}`).is(200)["runs"].([]any)[0].(obj)
	ref := store.Ref{Tenant: "a", Run: perdure.RunID(g["run_id"].(string))}
	eventually.True(t, "somebody waits", func() bool { return a.s.waiters.Count(ref) > 0 })
	b.commits(g, complete)
	if !a.e.Store().Live(ref.Tenant, ref.Run) {
		t.Error("the first node knows of the end: this proves nothing")
	}
	counters.Store(&doorbell.Stats{Connected: true, Received: 1})
	a.bell.Ring(doorbell.Run(ref.Tenant, string(ref.Run)))
	if run := soon(t, waits).is(200); run["state"] != "completed" {
		t.Errorf("run = %v, want state = completed", run)
	}
}

package httpd

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/eventually"
)

// here is how many wait for a run on this node, once that is written down.
func (w *world) here(id string) int {
	w.t.Helper()
	ref := store.Ref{Tenant: "a", Run: perdure.RunID(id)}
	n := w.s.waiters.Count(ref)
	if n > 0 && !slices.Contains(w.noted(id), w.s.opt.Node) {
		return 0
	}
	return n
}

// noted returns the nodes that have a waiter's record for a run.
func (w *world) noted(id string) (nodes []string) {
	w.t.Helper()
	err := w.e.Store().View(context.Background(), func(v *store.View) error {
		return v.Rows("SELECT node FROM waiters WHERE run_id=? ORDER BY node", []any{id},
			func(scan func(...any) error) error {
				var node string
				err := scan(&node)
				nodes = append(nodes, node)
				return err
			})
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return nodes
}

func (w *world) waits(id string, n int) {
	w.t.Helper()
	eventually.True(w.t, fmt.Sprint(n, " wait"), func() bool { return w.here(id) == n })
}

func (w *world) status(id string) any {
	w.t.Helper()
	return w.run(id)["status"]
}

// leaving joins a run until hangUp is called.
func (w *world) leaving(id string) (hangUp func()) {
	w.t.Helper()
	before := w.here(id)
	ctx, cut := context.WithCancel(context.Background())
	gone := make(chan *answer, 1)
	go func() {
		gone <- w.send(ask{method: "GET", path: runs + "/" + id + "/join?timeout=1h", key: w.key, ctx: ctx})
	}()
	w.waits(id, before+1)
	return func() {
		w.t.Helper()
		cut()
		soon(w.t, gone)
	}
}

// foreground starts a run on a thread with a wait that passes at once.
func (w *world) foreground(thread, more string) (id string) {
	w.t.Helper()
	return w.do("POST", "/api/v1/threads/"+thread+"/runs",
		`{"kind":"job","wait":"1ms"`+more+`}`).is(202)["run_id"].(string)
}

func TestDeferredAnswer(t *testing.T) {
	w := newWorld(t, setup{})
	thread := w.thread()
	a := w.do("POST", "/api/v1/threads/"+thread+"/runs", `{"kind":"job","wait":"1ms","metadata":{"n":"1"}}`).is(202)
	id := a["run_id"].(string)
	for field, want := range map[string]any{"status": "deferred", "state": "queued", "thread_id": thread,
		"attach_url": perdure.AttachURL(perdure.RunID(id)), "status_url": runs + "/" + id, "kind": "job"} {
		if a[field] != want {
			t.Errorf("%s is %v, not %v", field, a[field], want)
		}
	}
	if a["message"] == nil || a["deferred_at"] == nil || a["result"] != nil || a["error"] != nil {
		t.Errorf("a = %v, want message set, deferred_at set, no result, no error", a)
	}
	if at, err := time.Parse(time.RFC3339, a["deferred_at"].(string)); err != nil || time.Since(at) > time.Minute {
		t.Errorf("%v: %v", a["deferred_at"], err)
	}
	g := w.lease("w", `,"start":true`)
	for query, n := range map[string]int{"status=deferred": 1, "state=running": 1, "status=running": 0,
		"state=running&status=deferred": 1, "state=queued": 0, "status=deferred&thread_id=" + thread: 1,
		"status=deferred&metadata.n=1": 1, "status=deferred&metadata.n=2": 0} {
		if list := w.get(runs + "?" + query).is(200)["runs"].([]any); len(list) != n {
			t.Errorf("%d runs with %s, not %d", len(list), query, n)
		}
	}
	if job := w.get("/api/v1/jobs/" + id + "/status").is(200); job["status"] != "deferred" ||
		job["state"] != "running" {
		t.Errorf("job = %v, want status = deferred, state = running", job)
	}
	said := w.messages(thread)
	if len(said) != 1 {
		t.Fatalf("said = %v, want 1 entry", said)
	}
	meta := said[0]["metadata"].(obj)
	if text, _ := said[0]["content"].(string); text == "" || said[0]["role"] != "system" || meta["notice"] != true ||
		said[0]["run_id"] != id || meta["status"] != "deferred" || meta["run_id"] != id ||
		meta["attach_url"] != a["attach_url"] {
		t.Errorf("message = %v, want the notice of the deferral with its URLs", said[0])
	}
	for _, e := range w.events(id) {
		if e["type"] == "run:deferred" && e["data"].(obj)["reason"] != "timeout" {
			t.Errorf("line = %v, want reason timeout", e)
		}
	}
	w.commits(g, complete)
	if run := w.run(id); run["status"] != "completed" ||
		len(w.get(runs + "?status=deferred").is(200)["runs"].([]any)) != 0 {
		t.Errorf("run = %v, want it completed, and no deferred runs", run)
	}
}

// A deferral is told to the thread the first time alone, however many follow.
func TestSecondDeferralWritesNoLine(t *testing.T) {
	w := newWorld(t, setup{})
	thread := w.thread()
	id := w.foreground(thread, "")
	for range 3 {
		w.get(runs + "/" + id + "/join?timeout=1ms").is(202)
	}
	if run := w.do("POST", runs+"/"+id+"/defer", "").is(200); run["status"] != "deferred" {
		t.Errorf("run = %v, want status = deferred", run)
	}
	types := w.types(id)
	if countOf(types, "run:deferred") != 4 || countOf(types, "run:reattached") != 3 || len(w.messages(thread)) != 1 {
		t.Errorf("%v, and %v", types, w.messages(thread))
	}
}

// With two waits and a join, the run is deferred only when the last of them ends.
func TestRunIsDeferredWhenLastWaiterLeaves(t *testing.T) {
	w := newWorld(t, setup{})
	start := func(wait string) <-chan *answer {
		c := make(chan *answer, 1)
		go func() {
			c <- w.send(ask{method: "POST", path: runs, key: w.key, body: `{"kind":"job","wait":"` + wait + `"}`,
				header: http.Header{"Idempotency-Key": {"one"}}})
		}()
		return c
	}
	first := start("60s")
	var id string
	eventually.True(t, "it is started", func() bool {
		list := w.get(runs).is(200)["runs"].([]any)
		if len(list) == 1 {
			id = list[0].(obj)["run_id"].(string)
		}
		return id != ""
	})
	w.waits(id, 1)
	second := start("60s")
	w.waits(id, 2)
	w.get(runs + "/" + id + "/join?timeout=1ms").is(202)
	soon(t, start("1ms")).is(202)
	if run := w.do("POST", runs+"/"+id+"/defer", "").is(200); run["status"] != "queued" {
		t.Errorf("deferred while two wait: %v", run)
	}
	if types := w.types(id); slices.Contains(types, "run:deferred") || slices.Contains(types, "run:reattached") {
		t.Errorf("types of lines = %v, want neither run:deferred nor run:reattached", types)
	}
	w.s.Shutdown() // both are answered, as if their connection had dropped
	soon(t, first).is(202)
	soon(t, second).is(202)
	if w.status(id) != "queued" || w.here(id) != 0 {
		t.Errorf("run = %v, want it queued without waiters", w.run(id))
	}
}

func TestDroppedConnectionHasGracePeriod(t *testing.T) {
	w := newWorld(t, setup{watchdog: true})
	id := w.foreground(w.thread(), "")
	for range 3 {
		w.leaving(id)()
		if types := w.types(id); w.status(id) != "queued" || types[len(types)-1] != "run:reattached" {
			t.Fatalf("deferred at once: %v", types)
		}
	}
	w = newWorld(t, setup{watchdog: true, policy: func(p *perdure.Policy) { p.DetachGrace = time.Millisecond }})
	id = w.foreground(w.thread(), "")
	for range 3 {
		hangUp := w.leaving(id)
		if types := w.types(id); w.status(id) != "queued" || types[len(types)-1] != "run:reattached" {
			t.Errorf("types of lines = %v, want the run queued and run:reattached last", types)
		}
		hangUp()
		eventually.True(t, "it is deferred", func() bool { return w.status(id) == "deferred" })
		log := w.events(id)
		if d := log[len(log)-1]; d["type"] != "run:deferred" || d["data"].(obj)["reason"] != "disconnect" {
			t.Errorf("d = %v, want type = run:deferred, data.reason = disconnect", d)
		}
	}
}

// A waiter that leaves cancels the run only with on_disconnect=cancel, and then as a cancel call does.
func TestOnDisconnect(t *testing.T) {
	w := newWorld(t, setup{})
	for mode, cancelled := range map[string]bool{"continue": false, "cancel": true} {
		ctx, hangUp := context.WithCancel(context.Background())
		gone := make(chan *answer, 1)
		go func() {
			gone <- w.send(ask{method: "POST", path: runs, key: w.key, ctx: ctx,
				body: `{"kind":"` + mode + `","wait":"60s","on_disconnect":"` + mode + `"}`})
		}()
		g := w.do("POST", "/api/v1/workers/w/poll",
			`{"slots":1,"start":true,"wait":"30s"}`).is(200)["runs"].([]any)[0].(obj)
		id := g["run_id"].(string)
		w.waits(id, 1)
		// One who joins and goes is not the one who asked for it.
		w.leaving(id)()
		if run := w.run(id); run["cancel"] != nil {
			t.Errorf("%s: %v", mode, run)
		}
		hangUp()
		soon(t, gone)
		run := w.run(id)
		if proof, asked := run["cancel"].(obj); asked != cancelled || asked &&
			proof["reason"] != "its caller disconnected" || run["state"] != "running" {
			t.Errorf("%s: %v", mode, run)
		}
		w.commits(g, complete)
	}
	id := w.do("POST", runs, `{"kind":"passes","wait":"1ms","on_disconnect":"cancel"}`).is(202)["run_id"].(string)
	if run := w.run(id); run["cancel"] != nil || run["status"] != "deferred" {
		t.Errorf("a wait that passes is no disconnect: %v", run)
	}
}

func TestDeferOfEndedRunDoesNothing(t *testing.T) {
	w := newWorld(t, setup{})
	thread := w.thread()
	g := w.running(`{"kind":"job","thread_id":"` + thread + `"}`)
	w.commits(g, complete)
	id := g["run_id"].(string)
	before := w.run(id)
	after := w.do("POST", runs+"/"+id+"/defer", "").is(200)
	if after["status"] != "completed" || after["deferred_at"] != nil || after["last_seq"] != before["last_seq"] ||
		len(w.messages(thread)) != 0 {
		t.Errorf("run = %v, want it completed and unchanged, without messages", after)
	}
	w.do("POST", runs+"/nobody/defer", "").refuses(404, "not_found")
}

// ---- on several nodes

func TestWaiterOnOtherNodeCounts(t *testing.T) {
	a, b := twoNodes(t)
	id := a.foreground(a.thread(), "")
	join := b.later("GET", runs+"/"+id+"/join?timeout=60s", "")
	b.waits(id, 1)
	if b.status(id) != "queued" {
		t.Errorf("status is not queued; types of lines = %v", b.types(id))
	}
	a.get(runs + "/" + id + "/join?timeout=1ms").is(202)
	if run := a.do("POST", runs+"/"+id+"/defer", "").is(200); run["status"] != "queued" {
		t.Errorf("deferred while somebody waits elsewhere: %v", a.types(id))
	}
	a.commits(a.take("job"), complete)
	if run := soon(t, join).is(200); run["result"] != "done" {
		t.Errorf("run = %v, want result = done", run)
	}
	if n := countOf(b.types(id), "run:deferred"); n != 1 {
		t.Errorf("types of lines = %v, want run:deferred once", b.types(id))
	}
	eventually.True(t, "nobody is noted any more", func() bool { return b.here(id) == 0 })
}

// The records of a dead node are not renewed, so its waiters expire.
func TestWaitersOfDeadNodeExpire(t *testing.T) {
	w := newWorld(t, setup{watchdog: true})
	thread := w.thread()
	id, kept := w.foreground(thread, ""), w.foreground(w.thread(), "")
	defer w.leaving(kept)()
	p := perdure.DefaultPolicy()
	p.WaiterTTL = time.Millisecond // of the dead node alone, so that nobody has to wait for it
	dead, err := engine.New(w.e.Store(), engine.Options{Policy: &p})
	if err != nil {
		t.Fatal(err)
	}
	if err := dead.Do(context.Background(), &life.Attach{Tenant: "a", Node: "dead",
		RunIDs: []perdure.RunID{perdure.RunID(id), perdure.RunID(kept)}}); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "the dead node is forgotten", func() bool {
		return len(w.noted(id)) == 0 && slices.Equal(w.noted(kept), []string{"n1"})
	})
	if w.status(id) != "deferred" || w.status(kept) != "queued" || len(w.messages(thread)) != 1 {
		t.Errorf("%v: %v; %v: %v", w.status(id), w.types(id), w.status(kept), w.types(kept))
	}
	if types := w.types(id); !slices.Equal(types[len(types)-2:], []string{"run:reattached", "run:deferred"}) {
		t.Errorf("types of lines = %v, want run:reattached, run:deferred at the end", types)
	}
}

// A node renews its record as long as a caller waits there.
func TestLiveNodeRenewsItsWaiters(t *testing.T) {
	w := newWorld(t, setup{})
	id := w.foreground(w.thread(), "")
	until := func() (at int64) {
		err := w.e.Store().View(context.Background(), func(v *store.View) error {
			return v.Rows("SELECT expires_at FROM waiters WHERE run_id=?", []any{id},
				func(scan func(...any) error) error { return scan(&at) })
		})
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	hangUp := w.leaving(id)
	before := until()
	w.s.waiters.Renew(context.Background())
	if renewed := until(); renewed <= before {
		t.Errorf("%d, then %d", before, renewed)
	}
	hangUp()
	left := until()
	w.s.waiters.Renew(context.Background())
	if now := until(); now != left {
		t.Error("who has left is vouched for")
	}
}

// ---- the last one leaves while another comes

// A waiter that arrives while the last one is being removed is recorded, in whatever order the two
// writes happen.
func TestWaiterArrivesWhileLastOneLeaves(t *testing.T) {
	w := newWorld(t, setup{})
	id := w.foreground(w.thread(), "")
	ref := store.Ref{Tenant: "a", Run: perdure.RunID(id)}
	ctx := context.Background()
	for round := range 1000 {
		if err := w.s.waiters.Add(ctx, ref, false); err != nil {
			t.Fatal(err)
		}
		var both sync.WaitGroup
		both.Go(func() { w.s.waiters.Remove(ctx, ref, "timeout", false) })
		both.Go(func() {
			if err := w.s.waiters.Add(ctx, ref, false); err != nil {
				t.Error(err)
			}
		})
		both.Wait()
		if w.status(id) != "queued" || w.here(id) != 1 {
			types := w.types(id)
			t.Fatalf("round %d: somebody waits, and the run is %v: …%v", round, w.status(id),
				strings.Join(types[max(0, len(types)-6):], " "))
		}
		w.s.waiters.Remove(ctx, ref, "timeout", false)
		if w.status(id) != "deferred" || w.here(id) != 0 {
			t.Fatalf("round %d: nobody waits, and the run is %v", round, w.status(id))
		}
	}
}

package httpd

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/eventually"
)

// remain waits until n waiters are left on this node and the departure of the others is written.
func (w *world) remain(id string, n int) {
	w.t.Helper()
	ref := store.Ref{Tenant: "a", Run: perdure.RunID(id)}
	eventually.True(w.t, "waiters have left", func() bool { return w.s.waiters.Count(ref) == n })
}

// following opens a stream that counts as a waiter, until hangUp is called.
func (w *world) following(id string) (hangUp func()) {
	w.t.Helper()
	s := w.attach(id, "")
	s.next("stream:attached")
	return s.stop
}

// expectCancel checks whether a disconnect has asked a run to stop.
func (w *world) expectCancel(id, when string, want bool) {
	w.t.Helper()
	run := w.run(id)
	proof, asked := run["cancel"].(obj)
	if asked != want || asked && proof["reason"] != "its caller disconnected" {
		w.t.Errorf("%s: cancel of run %s = %v (run %v), want requested: %v", when, id, run["cancel"],
			run["state"], want)
	}
}

// leased starts a run and leases it, so that a cancel request stays visible.
func (w *world) leased(body string) string {
	w.t.Helper()
	a := w.do("POST", runs, body)
	if a.status != http.StatusAccepted { // its wait has passed
		a.is(http.StatusCreated)
	}
	id := a.is(a.status)["run_id"].(string)
	if g := w.lease("w", `,"start":true`); g["run_id"] != id {
		w.t.Fatalf("leased run %v, want %s", g["run_id"], id)
	}
	return id
}

const (
	followed = `{"kind":"job","foreground":true,"on_disconnect":"cancel"}`
	passes   = `{"kind":"job","wait":"1ms","on_disconnect":"cancel"}`
)

func TestLastWaiterThatDisconnectsCancelsRun(t *testing.T) {
	t.Run("a stream", func(t *testing.T) {
		w := newWorld(t, setup{})
		id := w.leased(followed)
		one, two := w.following(id), w.following(id)
		one()
		w.remain(id, 1)
		w.expectCancel(id, "one of two streams closed", false)
		two()
		w.remain(id, 0)
		w.expectCancel(id, "both streams closed", true)
		entries := w.get("/api/v1/audit?action=" + perdure.AuditRunCancel).is(200)["entries"].([]any)
		if len(entries) != 1 || entries[0].(obj)["target"] != id {
			t.Errorf("audit entries of the cancel = %v, want one for run %s", entries, id)
		}
	})
	t.Run("a join", func(t *testing.T) {
		w := newWorld(t, setup{})
		id := w.leased(passes)
		w.expectCancel(id, "the wait of the start passed", false)
		w.get(runs + "/" + id + "/join?timeout=1ms").is(202)
		w.expectCancel(id, "a join passed", false)
		w.leaving(id)()
		w.expectCancel(id, "a join closed", true)
	})
	t.Run("a join beside a stream", func(t *testing.T) {
		w := newWorld(t, setup{})
		id := w.leased(followed)
		stream, join := w.following(id), w.leaving(id)
		join()
		w.remain(id, 1)
		w.expectCancel(id, "the join closed before the stream", false)
		stream()
		w.remain(id, 0)
		w.expectCancel(id, "the stream closed last", true)
	})
	t.Run("a run that nobody has leased", func(t *testing.T) {
		w := newWorld(t, setup{})
		id := w.start(followed)
		hangUp := w.following(id)
		hangUp()
		w.remain(id, 0)
		if run := w.run(id); run["state"] != "cancelled" {
			t.Errorf("state of run %s after its stream closed = %v, want cancelled", id, run["state"])
		}
	})
}

func TestUnnoticedDisconnectCancelsNothing(t *testing.T) {
	t.Run("nobody came", func(t *testing.T) {
		w := newWorld(t, setup{watchdog: true, policy: func(p *perdure.Policy) { p.DetachGrace = time.Millisecond }})
		id := w.leased(followed)
		eventually.True(t, "it is deferred", func() bool { return w.status(id) == "deferred" })
		w.expectCancel(id, "nobody followed the run", false)
	})
	t.Run("the last wait passes", func(t *testing.T) {
		w := newWorld(t, setup{})
		id := w.leased(followed)
		hangUp := w.following(id)
		ref := store.Ref{Tenant: "a", Run: perdure.RunID(id)}
		if err := w.s.waiters.Add(t.Context(), ref, false); err != nil {
			t.Fatal(err)
		}
		hangUp()
		w.remain(id, 1)
		w.s.waiters.Remove(t.Context(), ref, "timeout", false)
		w.expectCancel(id, "the last waiter's time passed", false)
	})
	t.Run("the server shuts down", func(t *testing.T) {
		w := newWorld(t, setup{})
		streamed, joined := w.leased(followed), w.leased(followed)
		s := w.attach(streamed, "")
		s.next("stream:attached")
		join := w.later("GET", runs+"/"+joined+"/join?timeout=60s", "")
		w.waits(joined, 1)
		w.s.Shutdown()
		s.stop()
		soon(t, join).is(202)
		for _, id := range []string{streamed, joined} {
			w.remain(id, 0)
			w.expectCancel(id, "the server shut down", false)
		}
	})
	t.Run("the key is revoked", func(t *testing.T) {
		w := newWorld(t, setup{})
		id, secret := w.leased(followed), w.newKey("a", nil)
		w.as(secret).following(id)
		w.revoke(strings.Split(secret, "_")[1])
		w.remain(id, 0)
		w.expectCancel(id, "the key was revoked", false)
	})
	t.Run("the reader is too slow", func(t *testing.T) {
		w := newWorld(t, setup{options: func(o *Options) { o.StreamWriteTimeout = 100 * time.Millisecond }})
		w.start(followed)
		g := w.lease("w", `,"start":true`)
		id := g["run_id"].(string)
		hs, client := w.narrow()
		w.attachBy(client.Transport, hs.URL, id, "")
		// more than sockets hold
		w.commits(g, `"events":[`+strings.TrimSuffix(strings.Repeat(`{"type":"x:big","data":"`+strings.Repeat("b",
			60<<10)+`"},`, 50), ",")+`]`)
		w.remain(id, 0)
		w.expectCancel(id, "a slow reader was dropped", false)
	})
	t.Run("a run of the background", func(t *testing.T) {
		w := newWorld(t, setup{})
		id := w.leased(`{"kind":"job","on_disconnect":"cancel"}`)
		hangUp := w.following(id)
		hangUp()
		eventually.True(t, "the stream is over", func() bool { return w.streams() == 0 })
		w.expectCancel(id, "a stream of a background run closed", false)
	})
}

// The waiter of each node is a row of its own: the one that closes last cancels, wherever the run was started.
func TestLastWaiterOfTwoNodesCancels(t *testing.T) {
	a, b := twoNodes(t)
	id := a.leased(followed)
	elsewhere := b.following(id)
	elsewhere()
	b.remain(id, 0)
	a.expectCancel(id, "started on one node, the stream of the other closed", true)

	id = a.leased(followed)
	one, two := a.following(id), b.following(id)
	one()
	a.remain(id, 0)
	a.expectCancel(id, "one node's stream closed", false)
	two()
	b.remain(id, 0)
	a.expectCancel(id, "the streams of both nodes closed", true)

	for range 20 { // both at once: neither may take the other for one who waits
		id := a.leased(followed)
		one, two := a.following(id), b.following(id)
		go one()
		two()
		a.remain(id, 0)
		b.remain(id, 0)
		a.expectCancel(id, "the streams of both nodes closed at once", true)
	}
}

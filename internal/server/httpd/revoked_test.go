package httpd

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/doorbell"
	"github.com/perdure/perdure/internal/server/engine/access"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// A blocking is a call that blocks, and what it waits for.
type blocking struct {
	name   string
	call   func(w *world) ask
	happen func(w *world) // after which it would be answered
}

// blockings are those of a run that is running, and of a group that it is in.
func blockings(g obj, group string) []blocking {
	id := g["run_id"].(string)
	ends := func(w *world) { w.commits(g, complete) }
	return []blocking{
		{"a poll", func(w *world) ask {
			return ask{method: "POST", path: "/api/v1/workers/w/poll", body: `{"slots":1,"wait":"60s"}`}
		}, func(w *world) { w.start(`{"kind":"job","input":"secret"}`) }},
		{"a poll for news", func(w *world) ask {
			return ask{method: "POST", path: "/api/v1/workers/news/poll",
				body: fmt.Sprintf(`{"news":true,"wait":"60s","holding":[{"run_id":"%s","epoch":%v}]}`, id, g["epoch"])}
		}, func(w *world) { w.do("POST", "/api/v1/runs/"+id+"/cancel", `{}`).is(200) }},
		{"a join", func(w *world) ask {
			return ask{method: "GET", path: "/api/v1/runs/" + id + "/join?timeout=60s"}
		}, ends},
		{"a join of a group", func(w *world) ask {
			return ask{method: "GET", path: "/api/v1/groups/" + group + "/join?timeout=60s"}
		}, ends},
		{"a start that waits", func(w *world) ask {
			return ask{method: "POST", path: "/api/v1/runs",
				body: `{"kind":"waited","queue":"waited","wait":"60s","on_disconnect":"cancel"}`}
		}, func(w *world) {
			w.commits(w.lease("w", `,"start":true,"queues":["waited"]`), complete)
		}},
		{"a log that is polled", func(w *world) ask {
			return ask{method: "GET", path: fmt.Sprintf("/api/v1/runs/%s/events?wait=60s&after=%d", id,
				len(w.events(id)))}
		}, ends},
		{"a cancel that waits", func(w *world) ask {
			return ask{method: "POST", path: "/api/v1/runs/" + id + "/cancel?wait=60s", body: `{}`}
		}, func(w *world) { w.commits(g, `"outcome":{"type":"cancelled"}`) }},
	}
}

// whileTheyBlock has each kind of call block under a key of its own, does something, and sees that all of them are
// refused.
func whileTheyBlock(t *testing.T, opt setup, key func(*access.CreateKey),
	do func(w *world, ids []string, open []blocking)) {
	w := newWorld(t, opt)
	var open []blocking
	var ids []string
	var answers []<-chan *answer
	for i := range blockings(obj{"run_id": ""}, "") {
		g := w.running(`{"kind":"job"}`)
		group := w.do("POST", "/api/v1/groups", `{"run_ids":["%s"]}`, g["run_id"]).is(201)["group_id"].(string)
		open = append(open, blockings(g, group)[i])
	}
	for _, b := range open {
		a := b.call(w)
		secret := w.newKey("a", key)
		id := strings.Split(secret, "_")[1]
		ids, answers = append(ids, id), append(answers, w.as(secret).later(a.method, a.path, a.body))
		eventually.True(t, b.name+" blocks", func() bool {
			w.s.keyWatcher.mu.Lock()
			defer w.s.keyWatcher.mu.Unlock()
			return w.s.keyWatcher.keys[id] != nil
		})
	}
	do(w, ids, open)
	for i := range open {
		if a := soon(t, answers[i]); a.status != 401 || a.problem()["code"] != "unauthorized" {
			t.Errorf("%s: %d %s", open[i].name, a.status, a.body)
		}
	}
	// its caller has not gone away
	if list := w.get("/api/v1/runs?state=cancelled&kind=waited").is(200)["runs"].([]any); len(list) > 0 {
		t.Errorf("cancelled: %v", list)
	}
	if list := w.get("/api/v1/runs?state=dispatched").is(200)["runs"].([]any); len(list) > 0 {
		t.Errorf("granted: %v", list)
	}
	if n := w.streams(); n != 0 {
		t.Errorf("%d seats are taken", n)
	}
}

func (w *world) revoke(ids ...string) {
	w.t.Helper()
	for _, id := range ids {
		if err := w.e.Do(context.Background(), &access.RevokeKey{Tenant: "a", ID: id}); err != nil {
			w.t.Fatal(err)
		}
	}
}

func TestBlockedCallEndsWhenKeyIsRevoked(t *testing.T) {
	t.Run("when that is revoked", func(t *testing.T) {
		whileTheyBlock(t, setup{}, nil, func(w *world, ids []string, _ []blocking) { w.revoke(ids...) })
	})
	t.Run("when that is revoked elsewhere", func(t *testing.T) {
		whileTheyBlock(t, setup{deaf: true, poll: 10 * time.Millisecond}, nil,
			func(w *world, ids []string, _ []blocking) { w.revoke(ids...) })
	})
	t.Run("when that expires", func(t *testing.T) {
		var now atomic.Int64
		now.Store(1e15)
		at := storetest.Options(t)
		at.Hooks.Clock = func() perdure.Instant { return perdure.Instant(now.Load()) }
		whileTheyBlock(t, setup{store: &at, poll: 10 * time.Millisecond}, func(op *access.CreateKey) {
			op.TTL = perdure.Duration(time.Minute)
		}, func(*world, []string, []blocking) {
			now.Add(time.Minute.Microseconds())
		})
	})
}

// The server has not heard of the revocation when the event that the call waits for happens.
func TestRevokedKeyGetsNoGrant(t *testing.T) {
	whileTheyBlock(t, setup{deaf: true}, nil, func(w *world, ids []string, open []blocking) {
		w.revoke(ids...)
		for _, b := range open {
			b.happen(w)
			if b.name == "a join of a group" {
				w.s.bell.Ring(doorbell.Run("a", strings.Split(b.call(w).path, "/")[4]))
			}
		}
		for _, run := range w.get("/api/v1/runs").is(200)["runs"].([]any) {
			w.s.bell.Ring(doorbell.Run("a", run.(obj)["run_id"].(string)))
		}
		w.s.bell.Ring(doorbell.Worker("a", "news"))
		w.s.bell.Ring(doorbell.Queue("a", "default").Of("job"))
	})
}

func TestBodyAfterRevocationIsRefused(t *testing.T) {
	for name, r := range map[string]struct{ method, path, half, rest string }{
		"a run": {"POST", "/api/v1/runs", `{"kind":`, `"late"}`},
		"an artifact": {"PUT", "/api/v1/runs/$RUN/artifacts/late?epoch=1", strings.Repeat("a", 2<<20),
			strings.Repeat("b", 1<<20)},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, setup{})
			g := w.running(`{"kind":"job"}`)
			secret := w.newKey("a", nil)
			body, in := io.Pipe()
			req := httptest.NewRequest(r.method, strings.Replace(r.path, "$RUN", g["run_id"].(string), 1), body)
			req.Host = "localhost"
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("Authorization", "Bearer "+secret)
			rec := httptest.NewRecorder()
			done := make(chan struct{})
			go func() {
				defer close(done)
				w.s.Handler().ServeHTTP(rec, req)
				body.Close()
			}()
			io.WriteString(in, r.half)
			w.revoke(strings.Split(secret, "_")[1])
			io.WriteString(in, r.rest)
			in.Close()
			<-done
			if rec.Code != 401 {
				t.Errorf("%d %s", rec.Code, rec.Body)
			}
			if list := w.get("/api/v1/runs?kind=late").is(200)["runs"].([]any); len(list) > 0 {
				t.Errorf("runs = %v, want none of the revoked key", list)
			}
			if list := w.get(fmt.Sprintf("/api/v1/runs/%v/artifacts",
				g["run_id"])).is(200)["artifacts"].([]any); len(list) > 0 {
				t.Errorf("artifacts = %v, want none of the revoked key", list)
			}
		})
	}
}

// slowly is an answer that is read slowly: its first bytes are taken when the test says so.
type slowly struct {
	*httptest.ResponseRecorder
	began, goOn chan struct{}
}

func (s *slowly) Write(b []byte) (int, error) {
	if s.began != nil {
		close(s.began)
		<-s.goOn
		s.began = nil
	}
	return s.ResponseRecorder.Write(b)
}

func TestDownloadEndsWhenKeyIsRevoked(t *testing.T) {
	w := newWorld(t, setup{})
	g := w.running(`{"kind":"job"}`)
	artifact := fmt.Sprintf("/api/v1/runs/%v/artifacts/a", g["run_id"])
	w.send(ask{method: "PUT", path: artifact + "?epoch=1", key: w.key, body: strings.Repeat("x", 1<<20)}).is(201)
	for path, platform := range map[string]bool{artifact: false, "/api/admin/backup": true} {
		secret := w.newKey("a", func(op *access.CreateKey) { op.Platform = platform })
		req := httptest.NewRequest("GET", path, nil)
		req.Host = "localhost"
		req.Header.Set("Authorization", "Bearer "+secret)
		out := &slowly{httptest.NewRecorder(), make(chan struct{}), make(chan struct{})}
		began, broke := out.began, make(chan any)
		go func() {
			defer func() { broke <- recover() }()
			w.s.Handler().ServeHTTP(out, req)
		}()
		<-began
		w.revoke(strings.Split(secret, "_")[1])
		close(out.goOn)
		if p := <-broke; p != http.ErrAbortHandler {
			t.Errorf("%s: %d bytes, and %v", path, out.Body.Len(), p)
		}
	}
}

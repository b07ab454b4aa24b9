package httpd

import (
	"context"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/engine"
	"github.com/perdure/perdure/internal/eventually"
	"github.com/perdure/perdure/internal/stage"
)

// members returns how many members the crowd of a run has, or -1 if the run is not followed.
func (w *world) members(id string) int {
	w.s.crowds.mu.Lock()
	defer w.s.crowds.mu.Unlock()
	if cr := w.s.crowds.of[engine.Ref{Tenant: "a", Run: perdure.RunID(id)}]; cr != nil && cr.followed {
		return cr.members.Len()
	}
	return -1
}

// Of many calls that wait for a run, each is answered once it has ended. Those that go before, and those whose time
// passes, don't keep the others waiting.
func TestEachOfACrowdIsAnswered(t *testing.T) {
	stage.NoStore(t)
	w := newWorld(t, setup{})
	for name, id := range map[string]string{
		"foreground": w.do("POST", runs, `{"kind":"foreground","wait":"1ms"}`).is(202)["run_id"].(string),
		"background": w.start(`{"kind":"background"}`),
	} {
		path := runs + "/" + id + "/join"
		const others, many = crowdSize, 100
		var joins []<-chan *answer
		for range others {
			joins = append(joins, w.later("GET", path+"?timeout=60s", ""))
		}
		eventually.True(t, "the first calls wait", func() bool { return w.members(id) == 0 })
		for range many {
			joins = append(joins, w.later("GET", path+"?timeout=60s", ""))
		}
		ctx, hangUp := context.WithCancel(t.Context())
		gone := make(chan *answer, 1)
		go func() { gone <- w.send(ask{method: "GET", path: path + "?timeout=60s", key: w.key, ctx: ctx}) }()
		eventually.True(t, "the others are a crowd", func() bool { return w.members(id) == many+1 })
		hangUp()
		soon(t, gone)
		w.get(path + "?timeout=1ms").is(202)
		if n := w.members(id); n != many {
			t.Errorf("%s: %d members after one has gone and one's time has passed, want %d", name, n, many)
		}
		g := w.take(name)
		w.commits(g, `"events":[{"type":"x:line"}]`)
		w.commits(g, complete)
		for _, join := range joins {
			if run := soon(t, join).is(200); run["result"] != "done" {
				t.Fatalf("%s: run = %v, want the result done", name, run)
			}
		}
		if n := w.s.shares.woken.Used(); n != 0 {
			t.Errorf("%s: %d turns are held after all were answered", name, n)
		}
		eventually.True(t, "nothing is remembered of the crowd", func() bool {
			w.s.crowds.mu.Lock()
			defer w.s.crowds.mu.Unlock()
			return len(w.s.crowds.of) == 0
		})
		w.get(path + "?timeout=60s").is(200)
	}
}

// A line of the log wakes none of a crowd.
func TestCrowdSleepsUntilTheEnd(t *testing.T) {
	stage.NoStore(t)
	w := newWorld(t, setup{})
	g := w.running(`{"kind":"job"}`)
	id := g["run_id"].(string)
	ref := engine.Ref{Tenant: "a", Run: perdure.RunID(id)}
	var leaves []func()
	for i := range crowdSize {
		leave, follow := w.s.crowds.enter(ref, false)
		if want := i == crowdSize-1; follow != want {
			t.Fatalf("call %d has to follow the run = %t, want %t", i, follow, want)
		}
		leaves = append(leaves, leave)
	}
	m := w.s.crowds.join(ref)
	followed := make(chan struct{})
	go func() { w.s.follow(ref); close(followed) }()
	for range 10 {
		w.commits(g, `"events":[{"type":"x:line"}]`)
	}
	select {
	case <-m.end:
		t.Fatal("a member is woken before the end")
	default:
	}
	w.commits(g, complete)
	(<-m.end)()
	<-followed
	for _, leave := range leaves {
		leave()
	}
	if len(w.s.crowds.of) != 0 {
		t.Errorf("crowds after the end = %v, want none", w.s.crowds.of)
	}
}

// A crowd hears of an end on another node, and a member whose key is revoked is refused.
func TestCrowdOnAnotherNode(t *testing.T) {
	a, b := twoNodes(t)
	g := a.running(`{"kind":"job"}`)
	id := g["run_id"].(string)
	path := runs + "/" + id + "/join?timeout=60s"
	var joins []<-chan *answer
	for range crowdSize {
		joins = append(joins, b.later("GET", path, ""))
	}
	eventually.True(t, "the first calls wait", func() bool { return b.members(id) == 0 })
	joins = append(joins, b.later("GET", path, ""))
	secret := b.newKey("a", nil)
	refused := b.as(secret).later("GET", path, "")
	eventually.True(t, "two are members", func() bool { return b.members(id) == 2 })
	b.revoke(strings.Split(secret, "_")[1])
	soon(t, refused).refuses(401, "unauthorized")
	a.commits(g, complete)
	for _, join := range joins {
		if run := soon(t, join).is(200); run["result"] != "done" {
			t.Fatalf("run = %v, want the result done", run)
		}
	}
}

// A member that can't be recorded as a waiter leaves no trace: nobody would give its turn back.
func TestMemberThatDoesNotComeToWaitHoldsNoTurn(t *testing.T) {
	stage.NoStore(t)
	w := newWorld(t, setup{broken: true})
	id := w.do("POST", runs, `{"kind":"job","wait":"1ms"}`).is(202)["run_id"].(string)
	ref := engine.Ref{Tenant: "a", Run: perdure.RunID(id)}
	for range crowdSize {
		leave, _ := w.s.crowds.enter(ref, true)
		defer leave()
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel() // so the waiter can't be written
	c := &call{Request: httptest.NewRequestWithContext(gone, "GET", "/", nil), s: w.s, w: httptest.NewRecorder(),
		key: perdure.Key{Tenant: "a"}}
	if _, _, err := c.await(ref.Run, time.Minute, false, nil); err == nil {
		t.Error("a caller that is gone has waited, want an error")
	}
	if n := w.members(id); n != 0 {
		t.Errorf("%d members after the only one has ended, want none", n)
	}
}

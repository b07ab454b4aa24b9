package httpd

import (
	"context"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/server/httpd/waiting"
	"github.com/perdure/perdure/internal/testkit/eventually"
)

// crowdSize is the number of calls from which on a run is followed.
const crowdSize = waiting.CrowdSize

// members returns how many members the only crowd has, or -1 if its run is not followed.
func (w *world) members() int {
	if _, followed, members := w.s.waits.Crowds(); followed > 0 {
		return members
	}
	return -1
}

// Of many calls that wait for a run, each is answered once it has ended. Those that go before, and those whose time
// passes, don't keep the others waiting.
func TestEachOfACrowdIsAnswered(t *testing.T) {
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
		eventually.True(t, "the first calls wait", func() bool { return w.members() == 0 })
		for range many {
			joins = append(joins, w.later("GET", path+"?timeout=60s", ""))
		}
		ctx, hangUp := context.WithCancel(t.Context())
		gone := make(chan *answer, 1)
		go func() { gone <- w.send(ask{method: "GET", path: path + "?timeout=60s", key: w.key, ctx: ctx}) }()
		eventually.True(t, "the others are a crowd", func() bool { return w.members() == many+1 })
		hangUp()
		soon(t, gone)
		w.get(path + "?timeout=1ms").is(202)
		if n := w.members(); n != many {
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
		eventually.True(t, name+": no turn is held after all were answered", func() bool {
			return w.s.shares.woken.Used() == 0
		})
		eventually.True(t, "nothing is remembered of the crowd", func() bool {
			runs, _, _ := w.s.waits.Crowds()
			return runs == 0
		})
		w.get(path + "?timeout=60s").is(200)
	}
}

// Many waiters are told of an end on another node, and one whose key is revoked is refused.
func TestCrowdOnAnotherNode(t *testing.T) {
	a, b := twoNodes(t)
	g := a.running(`{"kind":"job"}`)
	id := g["run_id"].(string)
	path := runs + "/" + id + "/join?timeout=60s"
	var joins []<-chan *answer
	for range crowdSize {
		joins = append(joins, b.later("GET", path, ""))
	}
	eventually.True(t, "the first calls wait", func() bool { return b.members() == 0 })
	joins = append(joins, b.later("GET", path, ""))
	secret := b.newKey("a", nil)
	refused := b.as(secret).later("GET", path, "")
	eventually.True(t, "two are members", func() bool { return b.members() == 2 })
	b.revoke(strings.Split(secret, "_")[1])
	soon(t, refused).refuses(401, "unauthorized")
	a.commits(g, complete)
	for _, join := range joins {
		if run := soon(t, join).is(200); run["result"] != "done" {
			t.Fatalf("run = %v, want the result done", run)
		}
	}
}

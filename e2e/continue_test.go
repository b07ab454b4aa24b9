package e2e

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/perdure/perdure/internal/testkit/pgtest"
)

// A turn is an ended run on a thread. It is continued when its children have ended. The children
// are leased.
type turn struct {
	id, thread string
	kids       []runView
}

// turn creates a turn with a number of children.
func (n *node) turn(kids int) turn {
	n.t.Helper()
	must := func(method, path string, in, out any) {
		n.t.Helper()
		if s := n.insist(method, path, "", in, out); s >= 300 {
			n.t.Fatalf("%s %s: status %d, want 2xx", method, path, s)
		}
	}
	var thread struct {
		ID string `json:"thread_id"`
	}
	must("POST", "/api/v1/threads", obj{}, &thread)
	must("POST", "/api/v1/threads/"+thread.ID+"/runs", obj{"kind": "boss"}, nil)
	lease := func(kind string, slots int) []runView {
		n.t.Helper()
		var p polled
		must("POST", "/api/v1/workers/w/poll", obj{"slots": slots, "start": true, "wait": "10s",
			"kinds": []string{kind}}, &p)
		if len(p.Runs) != slots {
			n.t.Fatalf("poll for kind %s returned %d runs, want %d", kind, len(p.Runs), slots)
		}
		return p.Runs
	}
	boss := lease("boss", 1)[0]
	var spawns []obj
	var keys []string
	for i := range kids {
		keys = append(keys, fmt.Sprint("k", i))
		spawns = append(spawns, obj{"key": keys[i], "kind": "kid"})
	}
	must("POST", "/api/v1/workers/w/commit",
		obj{"commits": []obj{{"commit_id": "turn", "run_id": boss.RunID, "epoch": boss.Epoch, "children": spawns,
			"outcome": obj{"type": "complete", "result": "I'll tell you", "continue_on": keys}}}}, nil)
	return turn{boss.RunID, thread.ID, lease("kid", kids)}
}

// completes completes a child, with retries.
func (n *node) completes(r runView) {
	if s := n.insist("POST", "/api/v1/workers/w/commit", "", complete(r, "done"), nil); s != 200 {
		n.t.Errorf("commit of a child's end: status %d, want 200", s)
	}
}

// continuedOnce checks that a turn has one continuation, with all results in the thread, and ends
// it.
func (n *node) continuedOnce(c turn) {
	n.t.Helper()
	var page struct {
		Runs []struct {
			RunID string `json:"run_id"`
			Of    string `json:"continuation_of_run_id"`
			By    string `json:"continued_by_run_id"`
			State string `json:"state"`
		} `json:"runs"`
	}
	n.insist("GET", "/api/v1/runs?thread_id="+c.thread, "", nil, &page)
	// Two nodes may create both within a millisecond, in any order.
	if len(page.Runs) == 2 && page.Runs[0].RunID == c.id {
		slices.Reverse(page.Runs)
	}
	if len(page.Runs) != 2 || page.Runs[0].Of != c.id || page.Runs[1].RunID != c.id ||
		page.Runs[1].By != page.Runs[0].RunID || page.Runs[0].State != "queued" {
		n.t.Errorf("turn %s: continuations = %+v, want one", c.id, page.Runs)
	}
	var thread struct {
		Messages []struct {
			Role    string
			Content struct{ Key, Status, Result string }
		}
	}
	n.insist("GET", "/api/v1/threads/"+c.thread+"/messages", "", nil, &thread)
	if len(thread.Messages) != len(c.kids) {
		n.t.Errorf("turn %s: messages = %+v, want one for each child", c.id, thread.Messages)
	}
	for i, m := range thread.Messages {
		if m.Role != "tool" || m.Content.Key != fmt.Sprint("k", i) || m.Content.Status != "completed" ||
			m.Content.Result != "done" {
			n.t.Errorf("turn %s: message = %+v, want the result of a child", c.id, m)
		}
	}
	var log struct {
		Events []struct{ Type string }
	}
	n.insist("GET", "/api/v1/runs/"+c.id+"/events", "", nil, &log)
	lines := 0
	for _, e := range log.Events {
		if e.Type == "run:continued" {
			lines++
		}
	}
	if lines != 1 {
		n.t.Errorf("turn %s: %d lines run:continued, want 1", c.id, lines)
	}
	// The continuation must not disturb the next round.
	if s := n.insist("POST", "/api/v1/runs/"+page.Runs[0].RunID+"/cancel", "", obj{}, nil); s != 200 {
		n.t.Errorf("cancel of the continuation: status %d, want 200", s)
	}
}

func (n *node) sound() {
	n.t.Helper()
	var check struct {
		Violations []any `json:"violations"`
	}
	n.insist("GET", "/api/admin/invariants", "", nil, &check)
	if len(check.Violations) > 0 {
		n.t.Errorf("violations of invariants = %v, want none", check.Violations)
	}
}

// The server is killed around the ends of the last children. Each turn is continued once.
func TestKillAroundLastChildEndContinuesOnce(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	const turns, kids = 6, 3
	var none, some, whole int // rounds with no, some and all ends acknowledged before the kill
	for range number("PERDURE_KILLS", 10) {
		var all []turn
		for range turns {
			all = append(all, n.turn(kids))
		}
		var wg sync.WaitGroup
		for _, c := range all {
			for _, k := range c.kids[:kids-1] {
				wg.Go(func() { n.completes(k) })
			}
		}
		wg.Wait()
		// Two children end at a time. The kill comes after a random number of acknowledged ends.
		var ended atomic.Int64
		acknowledged := make(chan struct{}, turns)
		for half := range slices.Chunk(all, turns/2) {
			wg.Go(func() {
				for _, c := range half {
					n.completes(c.kids[kids-1])
					ended.Add(1)
					acknowledged <- struct{}{}
				}
			})
		}
		for range rand.IntN(turns + 1) {
			<-acknowledged
		}
		n.kill(syscall.SIGKILL)
		switch ended.Load() {
		case 0:
			none++
		case turns:
			whole++
		default:
			some++
		}
		n.start()
		wg.Wait()
		for _, c := range all {
			n.continuedOnce(c)
		}
	}
	n.sound()
	t.Logf("killed before any end was acknowledged: %d times, between: %d, after all: %d", none, some, whole)
	if some == 0 {
		t.Error("no kill came between two ends, want some: otherwise the test checks nothing")
	}
}

// The last two children of a turn end at two nodes at the same time. One of the nodes has to
// notice.
func TestLastTwoChildrenEndAtTwoNodesAtOnce(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2, pgtest.New(t))
	a, b := f.nodes[0], f.nodes[1]
	a.key, b.key = f.key, f.key
	for range 50 {
		c := a.turn(2)
		var wg sync.WaitGroup
		wg.Go(func() { a.completes(c.kids[0]) })
		wg.Go(func() { b.completes(c.kids[1]) })
		wg.Wait()
		b.continuedOnce(c)
	}
	a.sound()
}

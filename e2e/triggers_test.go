package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/eventually"
)

// The situations that the watchdog's rules are for, in real time: a real server with short
// settings, and workers that disappear.

var hasty = []string{"--policy", "lease=2s", "--policy", "dispatched_retry=200ms", "--policy",
	"dispatched_retry_max=200ms", "--policy", "dispatched_timeout=500ms",
	"--policy", "backoff_base=50ms", "--policy", "active_reap=2500ms", "--policy", "watchdog_interval=100ms",
	"--policy", "gap_after=1s", "--policy", "patrol_every=200ms",
	"--policy", "pending_wakeup=200ms", "--policy", "pending_wakeup_skip=1s", "--policy",
	"inbox_processing_timeout=400ms"}

// A held is a leased run.
type held struct {
	runView
	Kind  string `json:"kind"`
	Inbox []struct {
		Seq     int64           `json:"seq"`
		Type    string          `json:"type"`
		WaitID  string          `json:"wait_id"`
		Outcome string          `json:"outcome"`
		Data    json.RawMessage `json:"data"`
	} `json:"inbox"`
}

// take polls until it gets a run of a kind.
func (n *node) take(t *testing.T, kind string, start bool) held {
	t.Helper()
	var got struct{ Runs []held }
	eventually.True(t, "a run of kind "+kind, func() bool {
		n.insist("POST", "/api/v1/workers/"+kind+"/poll", "",
			obj{"slots": 1, "start": start, "kinds": []string{kind}, "wait": "5s"}, &got)
		return len(got.Runs) == 1
	})
	return got.Runs[0]
}

// say commits for a run.
func (n *node) say(t *testing.T, r held, id string, commit obj) {
	t.Helper()
	commit["commit_id"], commit["run_id"], commit["epoch"] = id, r.RunID, r.Epoch
	if s := n.insist("POST", "/api/v1/workers/"+r.Kind+"/commit", "", obj{"commits": []obj{commit}}, nil); s != 200 {
		t.Fatalf("commit %s of %s: %d", id, r.Kind, s)
	}
}

func (n *node) ends(t *testing.T, id, state string) {
	t.Helper()
	eventually.True(t, "the end of "+id, func() bool {
		switch n.get(id).State {
		case state:
			return true
		case "completed", "failed", "timeout", "cancelled":
			t.Fatalf("%s is %s", id, n.get(id).State)
		}
		return false
	})
}

// A logLine is an event of a run's log.
type logLine struct {
	Type string
	At   time.Time
	Data map[string]any
}

// lines returns a run's log.
func (n *node) lines(id string) []logLine {
	var page struct{ Events []logLine }
	n.insist("GET", "/api/v1/runs/"+id+"/events?limit=1000", "", nil, &page)
	return page.Events
}

func (n *node) count(id, typ string) (c int) {
	for _, l := range n.lines(id) {
		if l.Type == typ {
			c++
		}
	}
	return c
}

// contract checks what belongs to every end by the watchdog: a deliverable, which the last line
// names, and the next run of the thread.
func (n *node) contract(t *testing.T, id, code, next string) {
	t.Helper()
	log := n.lines(id)
	last := log[len(log)-1]
	failure, _ := last.Data["error"].(map[string]any)
	if failure["code"] != code || last.Data["deliverable_id"] == nil {
		t.Errorf("the last line: %s %v", last.Type, last.Data)
	}
	var d obj
	if s := n.insist("GET", "/api/v1/runs/"+id+"/deliverable", "", nil, &d); s != 200 || d["kind"] != "fallback" ||
		!strings.Contains(fmt.Sprint(d["content"]), code) {
		t.Errorf("the deliverable: %d %v", s, d)
	}
	if next != "" {
		n.take(t, next, true)
	}
}

// queue submits two runs on a new thread.
func (n *node) queue(t *testing.T, kind string) (id string) {
	t.Helper()
	var th struct {
		ID string `json:"thread_id"`
	}
	if s := n.insist("POST", "/api/v1/threads", "", obj{}, &th); s != 201 {
		t.Fatalf("a thread: %d", s)
	}
	id = n.submit(obj{"kind": kind, "thread_id": th.ID}).RunID
	n.submit(obj{"kind": kind + "-next", "thread_id": th.ID})
	return id
}

func signalWait(id, timeout string) obj {
	return obj{"id": id, "type": "signal", "name": id, "timeout": timeout}
}

var asleep = obj{"type": "suspend"}

func TestTrigger(t *testing.T) {
	// Only the setting under test is short.
	n := newNode(t, "--policy", "dispatched_retry=200ms")
	for name, test := range map[string]func(t *testing.T){
		"suspended past its resume deadline": func(t *testing.T) {
			id := n.submit(obj{"kind": "sleeper", "class": "agent"}).RunID
			n.say(t, n.take(t, "sleeper", true), "1",
				obj{"waits": []obj{signalWait("a", "200ms"), signalWait("b", "1h")}, "outcome": asleep})
			r := n.take(t, "sleeper", true)
			if len(r.Inbox) != 1 || r.Inbox[0].Type != "timeout" || r.Inbox[0].WaitID != "a" ||
				!strings.Contains(string(r.Inbox[0].Data), "tool_timeout") || r.Attempt != 1 {
				t.Fatalf("run after the timeout = %+v, want a tool_timeout of wait a in attempt 1", r)
			}
			n.say(t, r, "2", obj{"ack": []int64{r.Inbox[0].Seq}, "outcome": asleep}) // the other wait is still open
			n.insist("POST", "/api/v1/runs/"+id+"/signals/b", "", obj{}, nil)
			if r = n.take(t, "sleeper", true); len(r.Inbox) != 1 || r.Inbox[0].WaitID != "b" {
				t.Fatalf("run after the signal = %+v, want the end of wait b", r)
			}
			n.say(t, r, "3", obj{"outcome": obj{"type": "complete"}})
			n.ends(t, id, "completed")
		},
		"dispatched retry": func(t *testing.T) {
			n.submit(obj{"kind": "again"})
			begin := time.Now()
			first := n.take(t, "again", false)
			second := n.take(t, "again", false)
			if second.RunID != first.RunID || second.Epoch != first.Epoch+1 || second.Attempt != 1 ||
				n.get(first.RunID).State != "dispatched" {
				t.Errorf("second grant = %+v, want run %s in attempt 1 under the next epoch", second, first.RunID)
			}
			if took := time.Since(begin); took < 200*time.Millisecond {
				t.Errorf("after %s", took)
			}
		},
		"dispatched timeout": func(t *testing.T) {
			n := newNode(t, hasty...)
			id := n.queue(t, "poison")
			var got struct{ Runs []held }
			eventually.True(t, "its end", func() bool {
				n.insist("POST", "/api/v1/workers/gone/poll", "",
					obj{"slots": 1, "kinds": []string{"poison"}, "wait": "200ms"}, &got)
				return n.get(id).State == "timeout"
			})
			if c := n.count(id, "run:dispatched"); c != 10 || n.count(id, "run:reclaimed") == 0 ||
				n.get(id).Attempt != 1 {
				t.Errorf("%d deliveries", c)
			}
			n.contract(t, id, "dispatch_timeout", "poison-next")
		},
		"Timeout Test": func(t *testing.T) {
			id := n.submit(obj{"kind": "flow", "class": "agent"}).RunID
			n.say(t, n.take(t, "flow", true), "1", obj{"waits": []obj{signalWait("start_task", "300ms")},
				"outcome": asleep})
			r := n.take(t, "flow", true)
			n.say(t, r, "2", obj{"outcome": obj{"type": "fail",
				"error": obj{"code": "wait_timeout", "message": "nobody said start"}}})
			n.ends(t, id, "timeout")
		},
		"Signature Fail Test": func(t *testing.T) {
			id := n.submit(obj{"kind": "forged"}).RunID
			n.say(t, n.take(t, "forged", false), "1",
				obj{"outcome": obj{"type": "reject", "reason": "signature_invalid"}})
			n.ends(t, id, "failed")
			var letter obj
			if s := n.insist("GET", "/api/v1/dlq/"+id, "", nil, &letter); s != 200 ||
				n.count(id, "run:dead_lettered") != 1 || n.count(id, "run:started") != 0 {
				t.Errorf("dead letter of run %s: status %d, %v; want one, of a run that never started", id, s, letter)
			}
		},
		"Heartbeat Test": func(t *testing.T) { heartbeatTest(t) },
		"damage":         func(t *testing.T) { damageTest(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}

// heartbeatTest kills a worker process in the middle of a run.
func heartbeatTest(t *testing.T) {
	n := newNode(t, brief...)
	r := n.submit(obj{"kind": "job"})
	begin := time.Now()
	freeze(t, n).cmd.Process.Kill()
	again := n.take(t, "job", true)
	if took := time.Since(begin); again.RunID != r.RunID || again.Attempt != 2 || took < 3*time.Second {
		t.Errorf("%+v after %s", again, took)
	}
	n.say(t, again, "end", obj{"outcome": obj{"type": "complete"}})
	n.ends(t, r.RunID, "completed")
}

// damageTest changes the store of a stopped server in ways that no operation can, and starts it
// again.
func damageTest(t *testing.T) {
	n := newNode(t, hasty...)
	// A worker has read an item and is gone, and the item is still processing.
	reclaim := n.submit(obj{"kind": "reader", "class": "agent"}).RunID
	n.insist("POST", "/api/v1/runs/"+reclaim+"/signals/a", "", obj{}, nil)
	reader := n.take(t, "reader", true)
	n.say(t, reader, "1",
		obj{"waits": []obj{signalWait("b", "1h")}, "outcome": obj{"type": "suspend", "waits": []string{"b"}}})
	// A child has ended, and its parent is still suspended.
	replay := n.submit(obj{"kind": "parent", "class": "agent"}).RunID
	n.say(t, n.take(t, "parent", true), "1",
		obj{"children": []obj{{"key": "c", "kind": "child"}},
			"waits": []obj{{"id": "j", "type": "children", "keys": []string{"c"}, "timeout": "1h"}}, "outcome": asleep})
	child := n.take(t, "child", true)
	n.say(t, child, "1", obj{"events": []obj{{"type": "x:hello"}}})
	// A pending item satisfies an open wait.
	wake := n.submit(obj{"kind": "deaf", "class": "agent"}).RunID
	n.say(t, n.take(t, "deaf", true), "1", obj{"waits": []obj{signalWait("w", "1h")}, "outcome": asleep})
	n.insist("POST", "/api/v1/runs/"+wake+"/signals/other", "", obj{}, nil)
	// A pending item belongs to an ended run.
	skip := n.submit(obj{"kind": "leaver"}).RunID
	leaver := n.take(t, "leaver", true)
	n.insist("POST", "/api/v1/runs/"+skip+"/signals/a", "", obj{}, nil)
	n.say(t, leaver, "1", obj{"outcome": obj{"type": "complete"}})
	// A queue is gone.
	orphan := n.submit(obj{"kind": "orphan", "queue": "doomed", "class": "agent"}).RunID
	// A run is running without a lease. It is the last, so that its lease does not expire before
	// the server is down.
	reap := n.queue(t, "unleased")
	leaseless := n.take(t, "unleased", true)
	n.say(t, leaseless, "1", obj{"events": []obj{{"type": "x:hello"}}})

	n.kill(syscall.SIGTERM)
	damage(t, n.dir,
		meddling{"UPDATE inbox SET status='processing', epoch=77 WHERE run_id=?", []any{reclaim}},
		meddling{"UPDATE runs SET state='completed', alarm_at=NULL, ready=0, lease_until=0 WHERE id=?",
			[]any{child.RunID}},
		meddling{"UPDATE runs SET lease_until=0 WHERE id=?", []any{reap}},
		meddling{"UPDATE waits SET name='other' WHERE run_id=?", []any{wake}},
		meddling{"DELETE FROM queues WHERE name='doomed'", nil})
	n.start()

	n.ends(t, orphan, "failed")
	n.contract(t, orphan, "orphaned", "")
	if r := n.take(t, "parent", true); r.RunID != replay || r.Attempt != 1 {
		t.Errorf("resume replay: %+v", r)
	}
	if r := n.take(t, "deaf", true); r.RunID != wake || len(r.Inbox) != 1 || r.Inbox[0].WaitID != "w" {
		t.Errorf("pending wake-up: %+v", r)
	}
	n.ends(t, reap, "failed")
	n.contract(t, reap, "timeout_reaped_by_watchdog", "unleased-next")
	var log struct {
		Entries []obj `json:"actions"`
	}
	for _, x := range [][2]string{{"W1", reclaim}, {"W3", replay}, {"W7", reap}, {"W9", wake}, {"W9", skip},
		{"W10", orphan}} {
		eventually.True(t, x[0]+" in the watchdog's log", func() bool {
			n.insist("GET", "/api/admin/watchdog?rule="+x[0]+"&run_id="+x[1], "", nil, &log)
			return len(log.Entries) == 1
		})
	}
	n.insist("POST", "/api/v1/runs/"+reclaim+"/signals/b", "", obj{}, nil)
	if r := n.take(t, "reader", true); len(r.Inbox) != 2 {
		t.Errorf("inbox reclaim: %+v", r)
	}
}

// damage changes a store without the engine.
func damage(t *testing.T, dir string, statements ...meddling) {
	t.Helper()
	s, err := store.Open(store.Options{Path: filepath.Join(dir, "perdure.db")})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	e, err := engine.New(s, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range statements {
		if err := e.Step(s.Now(), x)[0]; err != nil {
			t.Fatal(err)
		}
	}
}

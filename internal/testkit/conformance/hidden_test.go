package conformance

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// A batch of rows that need nothing, or that nothing can be done about, doesn't hide the due row behind it.

// damage is what of a table can't be read, by the ids it belongs to.
type damage struct {
	table string
	ids   map[string]bool
}

// spoiled is a session with damage, as when it is on the disk.
type spoiled struct {
	store.Conn
	*damage
}

func (s spoiled) Query(q string, args []any, row func(func(...any) error) error) error {
	if len(s.ids) > 0 && strings.Contains(q, "FROM "+s.table+" ") {
		for _, a := range args {
			if id, ok := a.(string); ok && s.ids[id] {
				return perdure.Errorf(perdure.CodeInternal, "%s is damaged", id)
			}
		}
	}
	return s.Conn.Query(q, args, row)
}

// crowded is a world in which something can be spoiled.
type crowded struct {
	*World
	damage *damage
}

func (w *crowded) spoil(table string, ids ...string) {
	w.damage.table = table
	for _, id := range ids {
		w.damage.ids[id] = true
	}
}

// many does something n times, in batches.
func (w *crowded) many(n int, op func(i int) kernel.Op) []kernel.Op {
	w.t.Helper()
	all := make([]kernel.Op, n)
	for i := range all {
		all[i] = op(i)
	}
	for i := 0; i < n; i += 200 {
		for _, err := range w.E.Step(w.Now, all[i:min(n, i+200)]...) {
			w.check(err == nil, "%v", err)
		}
	}
	return all
}

// runs submits n runs that are alike, each on a thread of its own if it is asked for.
func (w *crowded) runs(n int, threads bool, s perdure.Submission) (ids []perdure.RunID, on []string) {
	w.t.Helper()
	if threads {
		for _, op := range w.many(n, func(int) kernel.Op { return &life.CreateThread{Tenant: tenant} }) {
			on = append(on, string(op.(*life.CreateThread).Thread.ID))
		}
	}
	for _, op := range w.many(n, func(i int) kernel.Op {
		s := s
		if threads {
			s.ThreadID = perdure.ThreadID(on[i])
		}
		return &life.Submit{Tenant: tenant, Submission: s}
	}) {
		ids = append(ids, op.(*life.Submit).Run.ID)
	}
	return ids, on
}

func (w *crowded) signals(ids []perdure.RunID) {
	w.t.Helper()
	w.many(len(ids), func(i int) kernel.Op { return &life.Signal{Tenant: tenant, RunID: ids[i], Name: "early"} })
}

func (w *crowded) over(id perdure.RunID) func() bool {
	return func() bool { return w.storedState(id) == perdure.TimedOut }
}

const crowd = 600 // more than two batches

// crowds set up what is in front and the row behind it, let time pass, and tell whether the row was acted on.
var crowds = []struct {
	name   string
	passes int // within which it has to be
	set    func(w *crowded) (acted func() bool)
}{
	{"runs that a gap holds back", 3, func(w *crowded) func() bool {
		w.runs(crowd, false, perdure.Submission{Kind: "job", Timeout: perdure.Duration(time.Hour)})
		w.sweep()
		w.check(len(w.poll("w1", crowd)) == crowd, "granted")
		due := w.submit(perdure.Submission{Kind: "due", Timeout: perdure.Duration(10 * time.Minute)})
		w.offline(11 * time.Minute)
		return w.over(due.ID)
	}},
	{"runs that can't be ended", 3, func(w *crowded) func() bool {
		_, on := w.runs(crowd, true, perdure.Submission{Kind: "job", Timeout: perdure.Duration(time.Minute)})
		due := w.submit(perdure.Submission{Kind: "due", Timeout: perdure.Duration(2 * time.Minute)})
		w.spoil("threads", on...)
		w.Now = due.DeadlineAt
		return w.over(due.ID)
	}},
	{"items that nobody waits for", 3, func(w *crowded) func() bool {
		ids, _ := w.runs(crowd, false, perdure.Submission{Kind: "job", Class: perdure.Agent})
		w.signals(ids)
		return w.missed()
	}},
	{"items that can't be looked at", 3, func(w *crowded) func() bool {
		ids, _ := w.runs(crowd, false, perdure.Submission{Kind: "job", Class: perdure.Agent})
		w.signals(ids)
		acted := w.missed()
		for _, id := range ids {
			w.spoil("waits", string(id))
		}
		return acted
	}},
	{"waiters of runs that have ended", 3, func(w *crowded) func() bool {
		ids, _ := w.runs(crowd, false, perdure.Submission{Kind: "job", Timeout: perdure.Duration(time.Second),
			Foreground: true})
		w.many(crowd, func(i int) kernel.Op {
			return &life.Attach{Tenant: tenant, Node: "gone", RunIDs: ids[i : i+1]}
		})
		w.pass(2 * time.Second)
		return w.left()
	}},
	{"waiters of runs that can't be deferred", 3, func(w *crowded) func() bool {
		ids, on := w.runs(crowd, true, perdure.Submission{Kind: "job", Foreground: true})
		w.many(crowd, func(i int) kernel.Op {
			return &life.Attach{Tenant: tenant, Node: "gone", RunIDs: ids[i : i+1]}
		})
		w.Now = w.Now.Add(time.Second)
		w.spoil("threads", on...)
		return w.left()
	}},
	{"groups", 3, func(w *crowded) func() bool {
		// a run has a hundred watchers at most
		ids, _ := w.runs(crowd/50+1, false, perdure.Submission{Kind: "job", Class: perdure.Agent})
		w.many(crowd, func(i int) kernel.Op {
			return &life.CreateGroup{Tenant: tenant, RunIDs: []perdure.RunID{ids[i%len(ids)]},
				Timeout: perdure.Duration(time.Minute)}
		})
		last := w.group(&life.CreateGroup{RunIDs: ids[:1], Timeout: perdure.Duration(2 * time.Minute)})
		w.Now = w.Now.Add(2 * time.Minute)
		return func() bool { return w.gathering(last.ID).State == perdure.GatheringTimedOut }
	}},
	{"workers", 3, func(w *crowded) func() bool {
		w.many(crowd, func(i int) kernel.Op {
			return &dispatch.Claim{Tenant: tenant, Worker: fmt.Sprintf("w%03d", i), Slots: 1}
		})
		w.pass(time.Second)
		w.poll("x", 1)
		w.pass(119*time.Second - time.Microsecond)
		w.Now = w.Now.Add(time.Second + time.Microsecond) // soon enough to be no gap
		return func() (offline bool) {
			w.view(func(v *store.View) error {
				list, err := v.Workers.List(tenant)
				for _, x := range list {
					offline = offline || x.ID == "x" && x.Offline
				}
				return err
			})
			return offline
		}
	}},
	{"keys of runs that live", 2, func(w *crowded) func() bool {
		w.many(2*crowd, func(i int) kernel.Op {
			return &life.Submit{Tenant: tenant, Key: fmt.Sprint("k", i), Submission: perdure.Submission{Kind: "job",
				Class: perdure.Agent, Timeout: perdure.Duration(72 * time.Hour)}}
		})
		w.Now = w.Now.Add(time.Second)
		w.do(&life.Submit{Tenant: tenant, Key: "over", Submission: perdure.Submission{Kind: "short",
			Timeout: perdure.Duration(time.Second)}})
		w.pass(time.Second)
		w.Now = w.Now.Add(24 * time.Hour)
		return func() bool {
			n := 0
			w.view(func(v *store.View) error {
				return v.Rows("SELECT count(*) FROM idempotency WHERE key LIKE '%over'", nil,
					func(scan func(...any) error) error { return scan(&n) })
			})
			return n == 0
		}
	}},
	{"ended runs that have no children left", 3, func(w *crowded) func() bool {
		w.runs(40, false, perdure.Submission{Kind: "job", Timeout: perdure.Duration(time.Second)})
		w.pass(time.Second)
		w.do(corrupt{"UPDATE runs SET cascade=1, version=version+1", nil})
		w.submit(perdure.Submission{Kind: "parent"})
		g := w.takeKind("parent")
		spawns, _ := kids(101)
		ans := w.commit(g, perdure.Commit{Children: spawns})
		w.complete(g, `1`)
		return func() bool { return w.storedState(ans.Children[100].RunID) == perdure.Cancelled }
	}},
	{"children that can't be stopped", 24, func(w *crowded) func() bool { // the patrol comes by every tenth time
		w.submit(perdure.Submission{Kind: "parent", Class: perdure.Agent})
		g := w.takeKind("parent")
		spawns, _ := kids(150)
		var on []string
		for i := range spawns {
			spawns[i].Key = fmt.Sprintf("%03d", i)
			if i < 149 {
				spawns[i].ThreadID = w.thread()
				on = append(on, string(spawns[i].ThreadID))
			}
		}
		ans := w.commit(g, perdure.Commit{Children: spawns})
		w.spoil("threads", on...)
		w.complete(g, `1`)
		return func() bool { return w.storedState(ans.Children[149].RunID) == perdure.Cancelled }
	}},
	{"live runs that can't be looked at", 60, func(w *crowded) func() bool {
		w.submit(perdure.Submission{Kind: "job", Queue: "doomed", Class: perdure.Agent})
		_, on := w.runs(crowd, true, perdure.Submission{Kind: "job"})
		w.sweep()
		w.spoil("threads", on...)
		return w.orphaned()
	}},
}

// missed makes a suspended run whose signal is there, and moves time to when that is looked at.
func (w *crowded) missed() (acted func() bool) {
	w.t.Helper()
	w.Now = w.Now.Add(time.Second)
	r := w.submit(perdure.Submission{Kind: "sleeps", Class: perdure.Agent})
	w.commit(w.takeKind("sleeps"), perdure.Commit{Waits: wait(forGo), Outcome: suspend})
	w.do(&life.Signal{Tenant: tenant, RunID: r.ID, Name: "other"})
	w.do(corrupt{"UPDATE waits SET name='other' WHERE run_id=?", []any{string(r.ID)}})
	w.Now = w.Now.Add(10 * time.Second)
	return func() bool { return w.storedState(r.ID) == perdure.Queued }
}

// left makes a run whose last waiter is gone, and moves time to when that is known.
func (w *crowded) left() (acted func() bool) {
	w.t.Helper()
	r := w.submit(perdure.Submission{Kind: "last", Class: perdure.Agent, Foreground: true})
	w.do(&life.Attach{Tenant: tenant, Node: "gone", RunIDs: []perdure.RunID{r.ID}})
	w.Now = w.Now.Add(30 * time.Second)
	return func() bool { return w.get(r.ID).DeferredAt != 0 }
}

// orphaned takes the queue away that a run is in.
func (w *crowded) orphaned() (acted func() bool) {
	w.t.Helper()
	runs, err := w.E.Runs.List(w.ctx(), tenant, store.RunFilter{Queue: "doomed", Limit: 1})
	w.check(err == nil && len(runs) == 1, "%v", err)
	w.do(corrupt{"DELETE FROM queues WHERE name='doomed'", nil})
	return func() bool { return w.storedState(runs[0].ID) == perdure.Failed }
}

// until sweeps until a row is acted on.
func (c *crowded) until(acted func() bool, passes int, between func()) {
	c.t.Helper()
	for range passes {
		c.do(c.W.Pass())
		if acted() {
			return
		}
		c.Now = c.Now.Add(c.E.Policy().WatchdogInterval)
		between()
	}
	c.t.Fatalf("the row behind them was not acted on within %d passes", passes)
}

// inACrowd runs a test on both stores.
func inACrowd(t *testing.T, test func(w *crowded)) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		d := &damage{ids: make(map[string]bool)}
		at.Hooks.Wrap = func(s store.Conn) store.Conn { return spoiled{s, d} }
		w := &crowded{NewWorld(t, storetest.Open(t, at)), d}
		test(w)
		clear(d.ids)
		w.pass(15 * time.Second) // what can be read again is mended
		w.fsck()
	})
}

func TestNothingHidesTheDueRowBehindIt(t *testing.T) {
	for _, c := range crowds {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // they mostly wait for the disk
			inACrowd(t, func(w *crowded) { w.until(c.set(w), c.passes, func() {}) })
		})
	}
}

// Every heartbeat moves the alarm of its run. Many runs at work must not keep the patrol from runs that sleep.
func TestACrowdAtWorkDoesntKeepThePatrolFromASleeper(t *testing.T) {
	inACrowd(t, func(w *crowded) {
		w.submit(perdure.Submission{Kind: "job", Queue: "doomed", Class: perdure.Agent})
		w.runs(crowd, false, perdure.Submission{Kind: "busy", Class: perdure.Agent})
		op := &dispatch.Claim{Tenant: tenant, Worker: "w1", Kinds: []string{"busy"}, Slots: crowd, Start: true}
		w.do(op)
		beats := make([]life.BeatOf, crowd)
		for i, g := range op.Grants {
			beats[i] = life.BeatOf{Lease: lease(g)}
		}
		w.do(&life.Heartbeat{Tenant: tenant, Worker: "w1", Beats: beats})
		w.sweep()
		acted, n := w.orphaned(), 0
		w.until(acted, 100, func() { // everybody every ten seconds
			part := beats[n%20*crowd/20 : (n%20+1)*crowd/20]
			n++
			w.do(&life.Heartbeat{Tenant: tenant, Worker: "w1", Beats: part})
		})
	})
}

// A run ends, whatever the one that waits behind it came with.
func TestAnEndDoesntFailForWhatTheNextRunCameWith(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		w := NewWorld(t, storetest.Open(t, at))
		th := w.thread()
		active := w.on(th, perdure.Submission{Timeout: perdure.Duration(time.Minute)})
		w.on(th, perdure.Submission{Kind: "next", Messages: user(strings.Repeat("word ", store.InlineMax))})
		content := w.blobs()
		w.do(corrupt{"UPDATE blobs SET content='damaged'", nil})
		w.pass(time.Minute)
		w.ended(active.ID, perdure.TimedOut, perdure.CodeDeadline)
		w.takeKind("next")
		said := w.texts(th)
		w.check(len(said) == 2 && strings.Contains(said[1], "can't be read"), "%.300v", said)
		w.do(corrupt{"UPDATE blobs SET content=?", []any{content}})
		w.fsck()
	})
}

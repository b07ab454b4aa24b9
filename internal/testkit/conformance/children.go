package conformance

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/life"
)

func kids(n int) (out []perdure.Spawn, keys []string) {
	for i := range n {
		key := fmt.Sprintf("kid#%d", i+1)
		out = append(out, perdure.Spawn{Key: key, Kind: "kid", Timeout: perdure.Duration(5 * time.Minute)})
		keys = append(keys, key)
	}
	return out, keys
}

// takeKind polls one run of a kind and starts it.
func (w *World) takeKind(kind string) dispatch.Grant {
	w.t.Helper()
	op := &dispatch.Claim{Tenant: tenant, Worker: "w-" + kind, Kinds: []string{kind}, Slots: 1, Start: true}
	w.do(op)
	w.check(len(op.Grants) == 1, "no %s to claim", kind)
	w.beat(op.Grants[0])
	return op.Grants[0]
}

// family creates a running parent with n children, and suspends it on them.
func (w *World) family(n int, mode perdure.Mode) (parent perdure.Run, children []life.ChildOf) {
	w.t.Helper()
	parent = w.submit(perdure.Submission{Kind: "parent", Timeout: perdure.Duration(30 * time.Minute)})
	g := w.takeKind("parent")
	spawns, keys := kids(n)
	ans := w.commit(g, perdure.Commit{Children: spawns,
		Waits:   wait(perdure.WaitSpec{ID: "join", Type: perdure.WaitChildren, Mode: mode, Keys: keys}),
		Outcome: suspend})
	w.check(ans.State == perdure.Suspended, "%s", ans.State)
	return parent, ans.Children
}

var childScenarios = []Scenario{
	{"a child that ends between its parent's spawn and suspend", func(w *World) {
		p := w.submit(perdure.Submission{Kind: "parent"})
		g := w.takeKind("parent")
		spawns, keys := kids(1)
		w.commit(g, perdure.Commit{Children: spawns})
		w.complete(w.takeKind("kid"), `"done"`)
		ans := w.commit(g, perdure.Commit{Waits: wait(perdure.WaitSpec{ID: "join", Type: perdure.WaitChildren,
			Keys: keys}), Outcome: suspend})
		w.check(ans.State == perdure.Queued, "there is no window: %s", ans.State)
		g = w.takeKind("parent")
		var result string
		for _, i := range g.Inbox {
			if i.Type == perdure.ItemChild {
				result = string(i.Data)
			}
		}
		w.check(result == `"done"`, "the result is there: %+v", g.Inbox)
		w.check(w.count(p.ID, "worker:spawned") == 1 && w.count(p.ID, "worker:completed") == 1, "%v", w.types(p.ID))
	}},
	{"two children that end at once, the last two of a join", func(w *World) {
		p, _ := w.family(2, perdure.ModeAll)
		a, b := w.takeKind("kid"), w.takeKind("kid")
		for _, err := range w.E.Step(w.Now, w.commitOf(a, perdure.Commit{Outcome: done(`1`)}),
			w.commitOf(b, perdure.Commit{Outcome: done(`2`)})) {
			w.check(err == nil, "%v", err)
		}
		w.state(p.ID, perdure.Queued)
		w.check(w.count(p.ID, "run:resumed") == 1, "woken once")
		g := w.takeKind("parent")
		w.check(len(g.Inbox) == 3, "two results and the wait: %+v", g.Inbox)
	}},
	{"the modes of a join", func(w *World) {
		end := func(g dispatch.Grant, ok bool) {
			o := failed("no")
			no := false
			o.Retryable = &no
			if ok {
				o = done(`1`)
			}
			w.commit(g, perdure.Commit{Outcome: o})
		}
		for _, c := range []struct {
			mode perdure.Mode
			ends []bool // the children's ends, in order
			n    int    // how many of them wake the parent
		}{
			{perdure.ModeAll, []bool{true, false, true}, 3},
			{perdure.ModeAllOK, []bool{true, true, true}, 3},
			{perdure.ModeAllOK, []bool{true, false, true}, 2},
			{perdure.ModeAny, []bool{false, true, true}, 1},
			{perdure.ModeAnyOK, []bool{false, true, true}, 2},
			{perdure.ModeAnyOK, []bool{false, false, false}, 3},
		} {
			p, _ := w.family(3, c.mode)
			for i, ok := range c.ends {
				if i >= c.n {
					break
				}
				w.state(p.ID, perdure.Suspended)
				end(w.takeKind("kid"), ok)
			}
			w.check(w.get(p.ID).State == perdure.Queued, "%s %v: %s", c.mode, c.ends, w.get(p.ID).State)
			w.complete(w.takeKind("parent"), `1`)
			w.pass(time.Minute) // the remaining children are stopped with their parent
		}
	}},
	{"a hundred children of which a third fail and a third time out", func(w *World) {
		p, _ := w.family(100, perdure.ModeAll)
		op := &dispatch.Claim{Tenant: tenant, Worker: "wk", Kinds: []string{"kid"}, Slots: 100, Start: true}
		w.do(op)
		w.check(len(op.Grants) == 100, "%d", len(op.Grants))
		no := false
		for i, g := range op.Grants {
			switch i % 3 {
			case 0:
				w.complete(g, fmt.Sprint(i))
			case 1:
				o := failed("no")
				o.Retryable = &no
				w.commit(g, perdure.Commit{Outcome: o})
			}
		}
		w.state(p.ID, perdure.Suspended)
		for range 20 {
			var beats []life.BeatOf
			for i, g := range op.Grants {
				if i%3 == 2 {
					beats = append(beats, life.BeatOf{Lease: lease(g)})
				}
			}
			w.do(&life.Heartbeat{Tenant: tenant, Worker: "wk", Beats: beats})
			w.pass(20 * time.Second)
		}
		g := w.takeKind("parent")
		count := map[string]int{}
		for _, i := range g.Inbox {
			count[i.Outcome]++
		}
		w.check(count["completed"] == 34 && count["failed"] == 33 && count["timeout"] == 33 &&
			count["satisfied"] == 1, "%v", count)
	}},
	{"a child is unique by its parent and its key", func(w *World) {
		w.submit(perdure.Submission{Kind: "parent"})
		g := w.takeKind("parent")
		spawns, _ := kids(1)
		first := w.commit(g, perdure.Commit{Children: spawns}).Children[0]
		again := w.commit(g, perdure.Commit{Children: spawns}).Children[0]
		w.check(first == again && w.get(g.Run.ID).Children == 1, "%v %v", first, again)
		spawns[0].Kind = "other"
		w.refuse(perdure.CodeNondeterminism, w.commitOf(g, perdure.Commit{Children: spawns}))
		spawns[0].Kind, spawns[0].Input = "kid", json.RawMessage(`1`)
		w.refuse(perdure.CodeNondeterminism, w.commitOf(g, perdure.Commit{Children: spawns}))
	}},
	{"children end with their parent, unless they may outlive it", func(w *World) {
		w.submit(perdure.Submission{Kind: "parent", Timeout: perdure.Duration(10 * time.Minute)})
		g := w.takeKind("parent")
		ans := w.commit(g, perdure.Commit{Children: []perdure.Spawn{
			{Key: "a", Kind: "kid", Timeout: perdure.Duration(time.Hour)},
			{Key: "b", Kind: "kid2", Timeout: perdure.Duration(time.Hour), OnParentEnd: "continue"},
			{Key: "c", Kind: "kid3"}}})
		a, b, c := ans.Children[0].RunID, ans.Children[1].RunID, ans.Children[2].RunID
		w.check(w.get(a).DeadlineAt == g.Run.DeadlineAt, "a child's deadline is never later than its parent's")
		w.check(w.get(b).DeadlineAt > g.Run.DeadlineAt, "unless it may outlive it")
		running := w.takeKind("kid")
		w.complete(g, `1`)
		w.ended(c, perdure.Cancelled, perdure.CodeCancelled) // not started: at once
		w.check(w.state(a, perdure.Running).Cancel.RequestedAt != 0, "asked to stop")
		w.state(b, perdure.Queued)
		w.commit(running, perdure.Commit{CancelAck: true, Outcome: &perdure.Outcome{Type: perdure.OutcomeCancelled}})
		w.state(a, perdure.Cancelled)
		w.complete(w.takeKind("kid2"), `1`)
	}},
	{"a parent with very many children stops them in batches", func(w *World) {
		w.submit(perdure.Submission{Kind: "parent"})
		g := w.takeKind("parent")
		spawns, _ := kids(700)
		w.commit(g, perdure.Commit{Children: spawns})
		w.complete(g, `1`)
		live := func() int {
			n := 0
			for {
				runs, err := w.E.Runs.List(w.ctx(), tenant, filter("kid", "queued"))
				w.check(err == nil, "%v", err)
				n = len(runs)
				return n
			}
		}
		w.check(live() > 0, "not all at once")
		w.sweep()
		w.check(live() == 0, "%d are left", live())
	}},
	{"a grandchild is told too", func(w *World) {
		w.submit(perdure.Submission{Kind: "parent"})
		g := w.takeKind("parent")
		w.commit(g, perdure.Commit{Children: []perdure.Spawn{{Key: "a", Kind: "kid", Class: perdure.Agent}}})
		k := w.takeKind("kid")
		ans := w.commit(k, perdure.Commit{Children: []perdure.Spawn{{Key: "b", Kind: "grandkid"}},
			Waits: wait(perdure.WaitSpec{ID: "j", Type: perdure.WaitChildren, Keys: []string{"b"}}), Outcome: suspend})
		w.do(&life.Cancel{Tenant: tenant, RunID: g.Run.ID})
		w.commit(g, perdure.Commit{CancelAck: true, Outcome: &perdure.Outcome{Type: perdure.OutcomeCancelled}})
		again := w.takeKind("kid")
		w.check(again.Cancel, "the grant says so")
		w.commit(again, perdure.Commit{CancelAck: true, Outcome: &perdure.Outcome{Type: perdure.OutcomeCancelled}})
		w.ended(ans.Children[0].RunID, perdure.Cancelled, perdure.CodeCancelled)
	}},
	{"a child's timeout wakes its parent like a completion", func(w *World) {
		p, children := w.family(1, perdure.ModeAll)
		w.pass(5*time.Minute + time.Second)
		w.ended(children[0].RunID, perdure.TimedOut, perdure.CodeDeadline)
		w.state(p.ID, perdure.Queued)
		g := w.takeKind("parent")
		w.check(g.Inbox[0].Outcome == "timeout", "%+v", g.Inbox)
		w.check(w.get(children[0].RunID).Attempt == 1, "and is not retried")
	}},
	{"a wait that times out cancels nothing", func(w *World) {
		p := w.submit(perdure.Submission{Kind: "parent", Timeout: perdure.Duration(30 * time.Minute)})
		g := w.takeKind("parent")
		spawns, keys := kids(1)
		w.commit(g, perdure.Commit{Children: spawns,
			Waits: wait(perdure.WaitSpec{ID: "j1", Type: perdure.WaitChildren, Keys: keys,
				Timeout: perdure.Duration(time.Minute)}), Outcome: suspend})
		k := w.takeKind("kid")
		w.pass(30 * time.Second)
		w.beat(k)
		w.pass(31 * time.Second)
		g = w.takeKind("parent")
		w.check(g.Inbox[0].Type == perdure.ItemTimeout, "%+v", g.Inbox)
		w.state(k.Run.ID, perdure.Running)
		w.complete(k, `"after all"`)
		ans := w.commit(g, perdure.Commit{Waits: wait(perdure.WaitSpec{ID: "j2", Type: perdure.WaitChildren,
			Keys: keys}), Outcome: suspend})
		w.check(ans.State == perdure.Queued, "its result is there for a later wait")
		w.state(p.ID, perdure.Queued)
	}},
	{"a stalled child wakes a parent that asked for it", func(w *World) {
		p := w.submit(perdure.Submission{Kind: "parent", Timeout: perdure.Duration(30 * time.Minute)})
		g := w.takeKind("parent")
		spawns, keys := kids(1)
		w.commit(g, perdure.Commit{Children: spawns,
			Waits:   wait(perdure.WaitSpec{ID: "j", Type: perdure.WaitChildren, Keys: keys, OnStall: true}),
			Outcome: suspend})
		k := w.takeKind("kid")
		w.pass(31 * time.Second)
		w.check(w.count(k.Run.ID, "run:slow") == 1, "%v", w.types(k.Run.ID))
		w.state(k.Run.ID, perdure.Running)
		g = w.takeKind("parent")
		w.check(g.Run.ID == p.ID && g.Inbox[0].Outcome == "stalled", "%+v", g.Inbox)
	}},
	{"a child of somebody else can't be waited for", func(w *World) {
		other := w.submit(perdure.Submission{Kind: "other"})
		w.submit(perdure.Submission{Kind: "parent"})
		g := w.takeKind("parent")
		for _, spec := range []perdure.WaitSpec{{ID: "j", Type: perdure.WaitChildren,
			RunIDs: []perdure.RunID{other.ID}},
			{ID: "j", Type: perdure.WaitChildren, Keys: []string{"nobody"}},
			{ID: "j", Type: perdure.WaitChildren, RunIDs: []perdure.RunID{"no-such-run"}}} {
			w.refuse(perdure.CodeInvalid, w.commitOf(g, perdure.Commit{Waits: wait(spec), Outcome: suspend}))
		}
	}},
}

package conformance

import (
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/watchdog"
)

// triggers are the ways to get stuck that a safety net is known by, as they come about by themselves. What mends
// damage has its test with the rules.
var triggers = []Scenario{
	{"inbox reclaim", func(w *World) {
		r := w.task()
		w.do(&life.Signal{Tenant: tenant, RunID: r.ID, Name: "a", Data: []byte(`1`)})
		w.check(len(w.take("crashes").Inbox) == 1 && w.items(r.ID)[0].Status == perdure.ItemProcessing, "in its hands")
		w.pass(60*time.Second - time.Microsecond)
		w.check(w.items(r.ID)[0].Status == perdure.ItemProcessing, "not before its time")
		w.pass(time.Microsecond)
		i := w.items(r.ID)[0]
		w.check(i.Status == perdure.ItemPending && i.Epoch == 0, "back: %+v", i)
		w.pass(2 * time.Second)
		g := w.take("w2")
		w.check(len(g.Inbox) == 1, "and handed over once more")
		w.commit(g, perdure.Commit{Ack: []int64{1}, Outcome: done(`1`)})
		w.check(w.items(r.ID)[0].Status == perdure.ItemDone, "done")
	}},
	{"suspended past its resume deadline", func(w *World) {
		r := w.submit(perdure.Submission{Kind: "job", Class: perdure.Agent})
		g := w.take("w1")
		w.commit(g, perdure.Commit{Waits: []perdure.WaitSpec{{ID: "tool", Type: perdure.WaitCallback,
			Timeout: perdure.Duration(time.Minute)},
			{ID: "human", Type: perdure.WaitSignal, Name: "s", Timeout: perdure.Duration(2 * time.Minute)}},
			Outcome: suspend})
		for i, id := range []string{"tool", "human"} { // each at its own time, by way of the inbox; the run goes on
			w.pass(time.Minute - time.Microsecond)
			w.state(r.ID, perdure.Suspended)
			w.pass(time.Microsecond)
			w.state(r.ID, perdure.Queued)
			g = w.take("w1")
			w.check(len(g.Inbox) == 1 && g.Inbox[0].Type == perdure.ItemTimeout && g.Inbox[0].WaitID == id &&
				strings.Contains(string(g.Inbox[0].Data), "tool_timeout") && g.Run.Attempt == 1,
				"a report for %s alone: %+v", id, g.Inbox)
			ack := perdure.Commit{Ack: []int64{g.Inbox[0].Seq}}
			if i == 0 {
				ack.Outcome = suspend // on what is still open
			}
			w.commit(g, ack)
		}
		w.complete(g, `"without them"`)
		w.check(w.acted("W2") == 2, "%v", w.Acted)
	}},
	{"resume replay", func(w *World) {
		// The server goes away between a child's result and its parent's resume, and is away for long.
		p, _ := w.family(1, perdure.ModeAll)
		w.sweep()
		w.complete(w.takeKind("kid"), `"kept"`)
		w.offline(20 * time.Minute)
		w.sweep()
		w.state(p.ID, perdure.Queued)
		g := w.takeKind("parent")
		w.check(len(g.Inbox) == 2 && string(g.Inbox[0].Data) == `"kept"` && g.Run.Attempt == 1, "%+v", g.Inbox)
		// The one that resumes it crashes: what it was resumed with comes again.
		w.pass(75 * time.Second)
		g = w.takeKind("parent")
		w.check(len(g.Inbox) == 2, "%+v", g.Inbox)
		w.complete(g, `1`)
	}},
	{"dispatched retry", func(w *World) {
		r := w.task()
		epoch := w.poll("gone", 1)[0].Run.Epoch
		for i, after := range []time.Duration{5 * time.Second, 10 * time.Second} {
			w.pass(after - time.Microsecond)
			w.check(len(w.poll("w", 1)) == 0, "not before %s", after)
			w.pass(time.Microsecond)
			w.state(r.ID, perdure.Dispatched)
			g := w.poll("w", 1)
			w.check(len(g) == 1 && g[0].Run.Epoch == epoch+1 && g[0].Run.State == perdure.Dispatched &&
				g[0].Run.Grants == i+2, "%+v", g)
			epoch++
		}
		w.check(w.count(r.ID, "run:dispatched") == 3 && w.count(r.ID, "run:reclaimed") == 0, "%v", w.types(r.ID))
	}},
	{"dispatched timeout", func(w *World) {
		h := w.household(perdure.Spawn{Timeout: perdure.Duration(time.Hour)})
		take := &dispatch.Claim{Tenant: tenant, Worker: "gone", Kinds: []string{"kid"}, Slots: 1}
		w.do(take)
		epoch := take.Grants[0].Run.Epoch
		w.pass(30 * time.Second)
		w.check(w.state(h.run, perdure.Queued).Epoch == epoch+1, "back to the queue first")
		for w.get(h.run).State.Live() {
			epoch = w.get(h.run).Epoch
			w.do(take)
			epoch = max(epoch, w.get(h.run).Epoch)
			w.pass(5 * time.Second)
		}
		w.check(w.count(h.run, "run:dispatched") == 10 && w.get(h.run).Attempt == 1, "%v", w.types(h.run))
		w.contract(h, epoch, perdure.TimedOut, perdure.CodeDispatchTimeout, true)
	}},
	{"active reap", func(w *World) {
		for i := range watchdog.Rules {
			if rule := &watchdog.Rules[i]; rule.Name == "reap" {
				w.springs(rule, trapReap(w))
			}
		}
	}},
	{"pending wake-up", func(w *World) {
		// No doorbell rings here. A poll reads the inbox.
		r := w.submit(perdure.Submission{Kind: "job", Class: perdure.Agent})
		w.commit(w.take("w1"), perdure.Commit{Waits: wait(forGo), Outcome: suspend})
		w.do(&life.Signal{Tenant: tenant, RunID: r.ID, Name: "start_task"})
		w.pass(11 * time.Second)
		w.check(w.items(r.ID)[0].Status == perdure.ItemPending, "looking at it changes nothing")
		g := w.take("w1")
		w.check(len(g.Inbox) == 1 && g.Inbox[0].WaitID == "go", "%+v", g.Inbox)
		// One that nobody is there for any more is given up, with the reason.
		w.do(&life.Signal{Tenant: tenant, RunID: r.ID, Name: "too late"})
		w.commit(g, perdure.Commit{Ack: []int64{1}, Outcome: done(`1`)})
		w.pass(10*time.Minute - time.Microsecond)
		w.check(w.items(r.ID)[1].Status == perdure.ItemPending, "not yet")
		w.pass(time.Microsecond)
		i := w.items(r.ID)[1]
		w.check(i.Status == perdure.ItemSkipped && i.WatchdogError == "run_ended", "%+v", i)
	}},

	{"Timeout Test", func(w *World) {
		r := w.submit(perdure.Submission{Kind: "flow", Class: perdure.Agent})
		w.commit(w.takeKind("flow"), perdure.Commit{Waits: wait(perdure.WaitSpec{ID: "go", Type: perdure.WaitSignal,
			Name: "start_task"}), Outcome: suspend})
		w.pass(5*time.Minute - time.Microsecond)
		w.state(r.ID, perdure.Suspended)
		w.pass(time.Microsecond)
		g := w.takeKind("flow")
		w.check(len(g.Inbox) == 1 && g.Inbox[0].Type == perdure.ItemTimeout, "%+v", g.Inbox)
		w.commit(g, perdure.Commit{Outcome: failed("wait_timeout")}) // which the agent does not handle
		w.ended(r.ID, perdure.TimedOut, perdure.CodeWaitTimeout)
	}},
	{"Heartbeat Test", func(w *World) {
		r := w.task()
		g := w.take("crashes")
		w.pass(30 * time.Second)
		w.beat(g) // the last one
		w.pass(60*time.Second - time.Microsecond)
		w.state(r.ID, perdure.Running)
		w.pass(time.Microsecond)
		w.check(w.state(r.ID, perdure.Queued).Attempt == 2, "queued again")
		w.pass(2 * time.Second)
		w.complete(w.take("w2"), `1`)
	}},
	{"Signature Fail Test", func(w *World) {
		w.signWith("a")
		w.requireSignatures(true)
		h := w.household(perdure.Spawn{Input: []byte(`{"pay":10}`)})
		w.do(corrupt{`UPDATE runs SET input='{"pay":1000}', version=version+1 WHERE id=?`, []any{string(h.run)}})
		op := &dispatch.Claim{Tenant: tenant, Worker: "w", Kinds: []string{"kid"}, Slots: 1}
		w.do(op)
		w.check(len(op.Grants) == 0, "nothing is executed: %+v", op.Grants)
		w.unsigned(h.run)
		w.contract(h, 0, perdure.Failed, perdure.CodeSignatureInvalid, true)
	}},
	{"Orphan Cleanup", func(w *World) {
		const n = 300 // more than the patrol looks at in one go
		ops := make([]kernel.Op, n)
		for i := range ops {
			ops[i] = &life.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "job", Queue: "doomed",
				Class: perdure.Agent}}
		}
		for _, err := range w.E.Step(w.Now, ops...) {
			w.check(err == nil, "%v", err)
		}
		healthy := w.submit(perdure.Submission{Kind: "job", Class: perdure.Agent})
		w.sweep()
		w.do(corrupt{"DELETE FROM queues WHERE name='doomed'", nil})
		w.pass(20 * time.Second)
		for _, op := range ops {
			w.ended(op.(*life.Submit).Run.ID, perdure.Failed, perdure.CodeOrphaned)
		}
		w.state(healthy.ID, perdure.Queued)
		w.check(w.acted("W10") == n, "%d", w.acted("W10"))
	}},
}

func TestTrigger(t *testing.T) {
	for _, s := range triggers {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			alike(t, func(w *World) []string { s.Run(w); w.fsck(); return nil })
		})
	}
}

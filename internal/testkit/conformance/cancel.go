package conformance

import (
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
)

func (w *World) cancel(id perdure.RunID) perdure.Run {
	w.t.Helper()
	op := &life.Cancel{Tenant: tenant, RunID: id, Reason: "not needed"}
	w.do(op)
	return op.Run
}

var stopped = &perdure.Outcome{Type: perdure.OutcomeCancelled}

var cancelScenarios = []Scenario{
	{"cancel before the start ends at once", func(w *World) {
		queued, delayed := w.task(), w.submit(perdure.Submission{Kind: "job", Delay: perdure.Duration(time.Hour)})
		w.check(w.cancel(queued.ID).State == perdure.Cancelled, "queued")
		w.check(w.cancel(delayed.ID).State == perdure.Cancelled, "delayed")
		dispatched := w.task()
		g := w.poll("w1", 1)
		w.check(w.cancel(dispatched.ID).State == perdure.Cancelled, "dispatched")
		w.refuseLease(perdure.CodeStaleEpoch, g[0])
		r := w.ended(dispatched.ID, perdure.Cancelled, perdure.CodeCancelled)
		w.check(r.Cancel.RequestedAt != 0 && r.Cancel.StoppedAt != 0, "with proof: %+v", r.Cancel)
	}},
	{"cancel while running: requested, delivered, acknowledged, stopped", func(w *World) {
		r := w.task()
		g := w.take("w1")
		w.cancel(r.ID)
		w.check(w.state(r.ID, perdure.Running).Cancel.ToldAt == 0, "not delivered yet")
		w.Now = w.Now.Add(time.Second)
		w.check(len(w.beat(g).Cancel) == 1, "the heartbeat says so")
		w.check(len(w.beat(g).Cancel) == 1, "and says it again")
		w.Now = w.Now.Add(time.Second)
		w.do(&life.Heartbeat{Tenant: tenant, Worker: "w1",
			Beats: []life.BeatOf{{Lease: lease(g), CancelAck: true}}})
		w.check(len(w.beat(g).Cancel) == 0, "until it is acknowledged")
		for range 20 { // it cleans up, longer than the grace
			w.pass(20 * time.Second)
			w.beat(g)
		}
		w.state(r.ID, perdure.Running)
		w.commit(g, perdure.Commit{Outcome: stopped})
		c := w.ended(r.ID, perdure.Cancelled, perdure.CodeCancelled).Cancel
		w.check(c.RequestedAt < c.ToldAt && c.ToldAt < c.AckedAt && c.AckedAt < c.StoppedAt, "%+v", c)
	}},
	{"a clean-up that takes too long is ended", func(w *World) {
		r := w.submit(perdure.Submission{Kind: "job", Timeout: perdure.Duration(time.Hour)})
		g := w.take("w1")
		w.cancel(r.ID)
		w.do(&life.Heartbeat{Tenant: tenant, Worker: "w1",
			Beats: []life.BeatOf{{Lease: lease(g), CancelAck: true}}})
		for range 31 {
			w.pass(20 * time.Second)
			w.beat(g)
		}
		w.state(r.ID, perdure.Cancelled)
	}},
	{"a worker that ignores a cancel is fenced", func(w *World) {
		r := w.task()
		g := w.take("w1")
		w.cancel(r.ID)
		w.pass(29 * time.Second)
		w.beat(g)
		w.state(r.ID, perdure.Running)
		w.pass(2 * time.Second)
		w.ended(r.ID, perdure.Cancelled, perdure.CodeCancelled)
		late := w.commitOf(g, perdure.Commit{Outcome: done(`1`)})
		w.do(late)
		w.check(late.Refused != nil && len(w.lates(r.ID)) == 1, "its result is kept")
	}},
	{"cancel of a suspended run: told first, then it cleans up", func(w *World) {
		r := w.task()
		g := w.take("w1")
		w.commit(g, perdure.Commit{Waits: wait(forGo), Outcome: suspend})
		w.submit(perdure.Submission{Kind: "job"})
		w.cancel(r.ID)
		w.state(r.ID, perdure.Queued)
		g = w.take("w1")
		w.check(g.Run.ID == r.ID && g.Cancel, "it goes first, marked: %+v", g.Cancel)
		w.refuse(perdure.CodeCancelRequested, w.commitOf(g, perdure.Commit{Outcome: suspend}))
		w.commit(g, perdure.Commit{Outcome: stopped})
		w.state(r.ID, perdure.Cancelled)
	}},
	{"cancel of a run that waits for its retry", func(w *World) {
		r := w.task()
		w.commit(w.take("w1"), perdure.Commit{Outcome: failed("x")})
		w.check(len(w.poll("w1", 1)) == 0, "backing off")
		w.cancel(r.ID)
		g := w.take("w1")
		w.check(g.Cancel, "told")
		w.commit(g, perdure.Commit{Outcome: stopped})
		w.state(r.ID, perdure.Cancelled)
	}},
	{"a cancelled run that nobody takes ends after the grace", func(w *World) {
		r := w.task()
		w.commit(w.take("w1"), perdure.Commit{Outcome: failed("x")})
		w.cancel(r.ID)
		w.pass(31 * time.Second)
		w.ended(r.ID, perdure.Cancelled, perdure.CodeCancelled)
	}},
	{"complete wins over a cancel request, fail ends failed", func(w *World) {
		a := w.task()
		g := w.take("w1")
		w.cancel(a.ID)
		w.complete(g, `1`)
		w.state(a.ID, perdure.Completed)
		b := w.task()
		g = w.take("w1")
		w.cancel(b.ID)
		w.commit(g, perdure.Commit{Outcome: failed("x")})
		w.ended(b.ID, perdure.Failed, "x")
	}},
	{"complete and cancel in one batch, in both orders", func(w *World) {
		for _, cancelFirst := range []bool{true, false} {
			r := w.task()
			g := w.take("w1")
			ops := []kernel.Op{w.commitOf(g, perdure.Commit{Outcome: done(`1`)}), &life.Cancel{Tenant: tenant,
				RunID: r.ID}}
			if cancelFirst {
				ops[0], ops[1] = ops[1], ops[0]
			}
			for _, err := range w.E.Step(w.Now, ops...) {
				w.check(err == nil, "%v", err)
			}
			w.state(r.ID, perdure.Completed)
		}
	}},
	{"under a request a lost lease, a lost dispatch and a release end cancelled", func(w *World) {
		lost := w.task()
		w.take("dies")
		w.cancel(lost.ID)
		w.do(&life.Heartbeat{Tenant: tenant, Worker: "dies",
			Beats: []life.BeatOf{{Lease: life.Lease{RunID: lost.ID, Epoch: 1}, CancelAck: true}}})
		w.pass(62 * time.Second)
		w.state(lost.ID, perdure.Cancelled)

		released := w.task()
		g := w.take("leaves")
		w.cancel(released.ID)
		w.do(&life.Release{Tenant: tenant, Worker: "leaves", Leases: []life.Lease{lease(g)}})
		w.state(released.ID, perdure.Cancelled)
		w.check(w.get(released.ID).Attempt == 1, "never requeued")
	}},
	{"cancelled without a request is refused", func(w *World) {
		w.task()
		w.refuse(perdure.CodeOutcome, w.commitOf(w.take("w1"), perdure.Commit{Outcome: stopped}))
	}},
	{"cancelling again, and cancelling an ended run, is no error", func(w *World) {
		r := w.task()
		w.take("w1")
		first := w.cancel(r.ID)
		w.Now = w.Now.Add(time.Second)
		again := w.cancel(r.ID)
		w.check(first.Cancel == again.Cancel && w.count(r.ID, "run:cancel_requested") == 1, "one request")
		done := w.task()
		g := w.take("w2")
		w.complete(g, `1`)
		w.check(w.cancel(done.ID).State == perdure.Completed, "a terminal state is final")
	}},
	{"a process can't suspend, and its lease is not judged", func(w *World) {
		r := w.submit(perdure.Submission{Kind: "job", Class: perdure.Process})
		g := w.take("w1")
		w.refuse(perdure.CodeOutcome, w.commitOf(g, perdure.Commit{Waits: wait(forGo), Outcome: suspend}))
		w.pass(5 * time.Minute)
		w.state(r.ID, perdure.Running)
		w.complete(g, `1`)
	}},
}

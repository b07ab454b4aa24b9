package conformance

import (
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/life"
)

// shortenGraces sets grace periods of seconds, so that the table of cancel requests takes little
// time.
func (w *World) shortenGraces() {
	p := w.E.Policy()
	p.CancelGrace, p.CleanupGrace, p.Lease = 10*time.Second, 40*time.Second, 20*time.Second
	w.widenGap()
}

// A place is the state of a run, and its holder if there is one.
type place struct {
	name string
	make func(w *World) (perdure.Run, *dispatch.Grant)
}

// unstarted are the places of a run that has not started.
var unstarted = []place{
	{"queued", func(w *World) (perdure.Run, *dispatch.Grant) { return w.task(), nil }},
	{"delayed", func(w *World) (perdure.Run, *dispatch.Grant) {
		return w.submit(perdure.Submission{Kind: "job", Delay: perdure.Duration(time.Hour)}), nil
	}},
	{"dispatched", func(w *World) (perdure.Run, *dispatch.Grant) {
		r := w.task()
		return r, &w.poll("w1", 1)[0]
	}},
	{"back in the queue after a lost dispatch", func(w *World) (perdure.Run, *dispatch.Grant) {
		r := w.task()
		g := w.poll("w1", 1)[0]
		w.pass(31 * time.Second)
		return r, &g
	}},
	{"behind another on its thread", func(w *World) (perdure.Run, *dispatch.Grant) {
		th := w.thread()
		w.on(th, perdure.Submission{Kind: "first"})
		return w.on(th, perdure.Submission{Kind: "second"}), nil
	}},
	{"deferred", func(w *World) (perdure.Run, *dispatch.Grant) {
		r := w.task()
		w.do(&life.Defer{Tenant: tenant, RunID: r.ID, Reason: "detached"})
		return r, nil
	}},
}

// begun are the places of a run that has started.
var begun = []place{
	{"running", func(w *World) (perdure.Run, *dispatch.Grant) {
		r, g := w.task(), w.take("w1")
		return r, &g
	}},
	{"running and deferred", func(w *World) (perdure.Run, *dispatch.Grant) {
		r, g := w.task(), w.take("w1")
		w.do(&life.Defer{Tenant: tenant, RunID: r.ID, Reason: "timeout"})
		return r, &g
	}},
	{"backing off", func(w *World) (perdure.Run, *dispatch.Grant) {
		r := w.task()
		w.commit(w.take("w1"), perdure.Commit{Outcome: failed("first")})
		return r, nil
	}},
	{"granted once more, and not begun", func(w *World) (perdure.Run, *dispatch.Grant) {
		r, g := w.task(), w.take("w1")
		w.do(&life.Release{Tenant: tenant, Worker: "w1", Leases: []life.Lease{lease(g)}})
		return r, &w.poll("w1", 1)[0]
	}},
	{"released", func(w *World) (perdure.Run, *dispatch.Grant) {
		r, g := w.task(), w.take("w1")
		w.do(&life.Release{Tenant: tenant, Worker: "w1", Leases: []life.Lease{lease(g)}})
		return r, nil
	}},
	{"suspended", func(w *World) (perdure.Run, *dispatch.Grant) {
		r := w.task()
		w.commit(w.take("w1"), perdure.Commit{Waits: wait(forGo), Outcome: suspend})
		return r, nil
	}},
	{"suspended on a thread, with one behind it", func(w *World) (perdure.Run, *dispatch.Grant) {
		th := w.thread()
		r := w.on(th, perdure.Submission{Kind: "job"})
		w.on(th, perdure.Submission{Kind: "next"})
		w.commit(w.takeKind("job"), perdure.Commit{Waits: wait(forGo), Outcome: suspend})
		return r, nil
	}},
}

// afterCancel lists everything that can follow a cancel request of which the holder knows, and its
// result.
var afterCancel = []struct {
	name string
	do   func(w *World, g dispatch.Grant)
	want perdure.State
	code perdure.Code // of the end
	kept bool         // its holder's result is refused, and kept
}{
	{"it completes", func(w *World, g dispatch.Grant) { w.complete(g, `1`) }, perdure.Completed, "", false},
	{"it fails", func(w *World, g dispatch.Grant) { w.commit(g, perdure.Commit{Outcome: failed("broke")}) },
		perdure.Failed, "broke", false},
	{"it fails for good", func(w *World, g dispatch.Grant) {
		no := false
		o := failed("broke")
		o.Retryable = &no
		w.commit(g, perdure.Commit{Outcome: o})
	}, perdure.Failed, "broke", false},
	{"it rejects", func(w *World, g dispatch.Grant) {
		w.commit(g, perdure.Commit{Outcome: &perdure.Outcome{Type: perdure.OutcomeReject, Reason: "no"}})
	}, perdure.Failed, perdure.CodeRejected, false},
	{"it says cancelled", func(w *World, g dispatch.Grant) { w.commit(g, perdure.Commit{Outcome: stopped}) },
		perdure.Cancelled, perdure.CodeCancelled, false},
	{"it acknowledges in a commit, cleans up, and says cancelled", func(w *World, g dispatch.Grant) {
		ans := w.commit(g, perdure.Commit{CancelAck: true})
		w.check(!ans.Cancel, "the request is not repeated")
		for range 2 {
			w.pass(12 * time.Second)
			w.beat(g)
		}
		w.commit(g, perdure.Commit{Outcome: stopped})
	}, perdure.Cancelled, perdure.CodeCancelled, false},
	{"it wants to suspend", func(w *World, g dispatch.Grant) {
		w.refuse(perdure.CodeCancelRequested,
			w.commitOf(g, perdure.Commit{Waits: wait(perdure.WaitSpec{ID: "more", Type: perdure.WaitSignal,
				Name: "s"}), Outcome: suspend}))
		w.commit(g, perdure.Commit{Outcome: stopped})
	}, perdure.Cancelled, perdure.CodeCancelled, false},
	{"it is released", func(w *World, g dispatch.Grant) {
		w.do(&life.Release{Tenant: tenant, Worker: g.Run.Worker, Leases: []life.Lease{lease(g)}})
	}, perdure.Cancelled, perdure.CodeCancelled, true},
	{"it is ignored", func(w *World, g dispatch.Grant) {
		w.pass(9 * time.Second)
		w.check(len(w.beat(g).Cancel) == 1, "the request is repeated")
		w.pass(2 * time.Second)
	}, perdure.Cancelled, perdure.CodeCancelled, true},
	{"it is acknowledged, and its holder is lost", func(w *World, g dispatch.Grant) {
		w.do(&life.Heartbeat{Tenant: tenant, Worker: g.Run.Worker,
			Beats: []life.BeatOf{{Lease: lease(g), CancelAck: true}}})
		w.pass(21 * time.Second)
	}, perdure.Cancelled, perdure.CodeCancelled, true},
	{"its clean-up takes too long", func(w *World, g dispatch.Grant) {
		w.do(&life.Heartbeat{Tenant: tenant, Worker: g.Run.Worker,
			Beats: []life.BeatOf{{Lease: lease(g), CancelAck: true}}})
		for range 3 {
			w.pass(13 * time.Second)
			w.beat(g)
		}
		w.state(g.Run.ID, perdure.Running)
		w.pass(2 * time.Second)
	}, perdure.Cancelled, perdure.CodeCancelled, true},
	{"it is asked again", func(w *World, g dispatch.Grant) {
		before := w.get(g.Run.ID).Cancel
		w.pass(time.Second)
		w.cancel(g.Run.ID)
		after := w.get(g.Run.ID).Cancel
		w.check(before.RequestedAt == after.RequestedAt && w.count(g.Run.ID, "run:cancel_requested") == 1,
			"one request: %+v", after)
		w.commit(g, perdure.Commit{Outcome: stopped})
	}, perdure.Cancelled, perdure.CodeCancelled, false},
	{"a wait of it times out unhandled", func(w *World, g dispatch.Grant) {
		w.commit(g, perdure.Commit{Outcome: failed("wait_timeout")})
	}, perdure.TimedOut, perdure.CodeWaitTimeout, false},
}

// checkCancelProof checks the recorded proof of a run's cancel request.
func (w *World) checkCancelProof(r *perdure.Run, name string) {
	w.t.Helper()
	c := r.Cancel
	w.check(c.RequestedAt != 0 && c.Reason == "not needed" && c.StoppedAt == r.FinishedAt,
		"%s: %+v, finished at %s", name, c, r.FinishedAt)
	for _, at := range []perdure.Instant{c.ToldAt, c.AckedAt} {
		w.check(at == 0 || at >= c.RequestedAt && at <= c.StoppedAt, "%s: %+v", name, c)
	}
	w.check(c.AckedAt == 0 || c.ToldAt != 0 && c.ToldAt <= c.AckedAt,
		"%s: acknowledged before it was delivered: %+v", name, c)
}

var cancelTable = []Scenario{
	{"cancelling what has not started ends it at once, wherever it is", func(w *World) {
		for _, place := range unstarted {
			name := place.name
			r, g := place.make(w)
			got := w.cancel(r.ID)
			w.check(got.State == perdure.Cancelled && got.Cancel.ToldAt == 0, "%s: %s, %+v", name,
				got.State, got.Cancel)
			w.checkCancelProof(&got, name)
			if g != nil {
				w.refuseLease(perdure.CodeStaleEpoch, *g)
			}
			w.checkNotGranted(r.ID, name)
		}
	}},
	{"cancelling what has started: every place, and everything that can follow", func(w *World) {
		w.shortenGraces()
		for _, place := range begun {
			for _, next := range afterCancel {
				name := place.name + ", then " + next.name
				r, g := place.make(w)
				before := w.get(r.ID)
				w.pass(time.Second)
				w.check(w.cancel(r.ID).State.Live(), "%s: it ended at once", name)
				if g == nil { // it goes first, and whoever gets it is told
					w.do(&life.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "job",
						Metadata: map[string]string{"other": "1"}}})
					got := w.take("w2")
					w.check(got.Run.ID == r.ID && got.Cancel && got.Run.Cancel.ToldAt == w.Now,
						"%s: granted %+v", name, got.Run.Cancel)
					g = &got
				} else {
					w.check(len(w.beat(*g).Cancel) == 1, "%s: the heartbeat says so", name)
				}
				next.do(w, *g)
				after := w.get(r.ID).Run
				w.check(after.State == next.want && (next.code == "" || after.Failure.Code == next.code),
					"%s: %s, %+v", name, after.State, after.Failure)
				w.checkCancelProof(&after, name)
				w.check(after.Attempt == before.Attempt, "%s: another attempt", name)
				w.checkNotGranted(r.ID, name)
				if next.kept {
					late := w.commitOf(*g, perdure.Commit{Outcome: done(`"late"`)})
					w.do(late)
					w.check(late.Refused != nil && late.Refused.Code == perdure.CodeStaleEpoch &&
						len(w.lates(r.ID)) == 1, "%s: %v", name, late.Refused)
					w.state(r.ID, next.want)
				}
				w.drain()
			}
		}
	}},
	{"a cancel request that nobody comes for is enforced, in every place", func(w *World) {
		w.shortenGraces()
		for _, place := range begun {
			r, _ := place.make(w)
			w.cancel(r.ID)
			w.pass(9 * time.Second)
			w.check(w.get(r.ID).State.Live(), "%s: too early", place.name)
			w.pass(2 * time.Second)
			ended := w.ended(r.ID, perdure.Cancelled, perdure.CodeCancelled)
			w.checkCancelProof(&ended, place.name)
			w.drain()
		}
	}},
	{"whoever is to be told that it is cancelled goes before those who have waited longer", func(w *World) {
		w.submit(perdure.Submission{Kind: "job", Delay: perdure.Duration(time.Second)})
		r := w.task()
		g := w.take("w1")
		w.do(&life.Release{Tenant: tenant, Worker: "w1", Leases: []life.Lease{lease(g)}})
		w.pass(2 * time.Second)
		w.cancel(r.ID)
		g = w.take("w1")
		w.check(g.Run.ID == r.ID && g.Cancel, "%+v", g.Run)
		w.commit(g, perdure.Commit{Outcome: stopped})
	}},
	{"clean-up ends with the deadline at the latest", func(w *World) {
		r := w.submit(perdure.Submission{Kind: "job", Timeout: perdure.Duration(time.Minute)})
		g := w.take("w1")
		w.pass(30 * time.Second)
		w.cancel(r.ID)
		w.do(&life.Heartbeat{Tenant: tenant, Worker: "w1",
			Beats: []life.BeatOf{{Lease: lease(g), CancelAck: true}}})
		w.pass(31 * time.Second)
		ended := w.ended(r.ID, perdure.TimedOut, perdure.CodeDeadline)
		w.checkCancelProof(&ended, "deadline")
	}},
	{"a lost grant of a cancelled run ends it", func(w *World) {
		r := w.task()
		w.commit(w.take("w1"), perdure.Commit{Outcome: failed("x")})
		w.E.Policy().CancelGrace = time.Hour
		w.cancel(r.ID)
		w.check(len(w.poll("gone", 1)) == 1, "granted")
		w.pass(31 * time.Second)
		w.ended(r.ID, perdure.Cancelled, perdure.CodeCancelled)
	}},
	{"the end of a cancelled run is passed on to its children, and theirs to theirs", func(w *World) {
		p, kids := w.family(2, perdure.ModeAll)
		g := w.takeKind("kid")
		deep := w.commit(g, perdure.Commit{Children: []perdure.Spawn{{Key: "deep", Kind: "deep"},
			{Key: "free", Kind: "free", OnParentEnd: perdure.DispositionContinue}}}).Children
		w.takeKind("deep")
		w.cancel(p.ID)
		w.check(w.get(kids[0].RunID).Cancel.RequestedAt == 0, "not before its parent has ended")
		w.commit(w.takeKind("parent"), perdure.Commit{Outcome: stopped})
		w.check(w.get(g.Run.ID).Cancel.Reason == "its parent ended", "%+v", w.get(g.Run.ID).Cancel)
		for _, k := range kids { // the one that nobody had begun is gone, the other is told
			if k.RunID != g.Run.ID {
				w.state(k.RunID, perdure.Cancelled)
			}
		}
		w.check(len(w.beat(g).Cancel) == 1, "told")
		w.commit(g, perdure.Commit{Outcome: stopped})
		w.check(w.get(deep[0].RunID).Cancel.RequestedAt != 0, "and so on")
		w.check(w.get(deep[1].RunID).Cancel.RequestedAt == 0, "but for who may outlive its parent")
		w.pass(31 * time.Second)
		w.state(deep[0].RunID, perdure.Cancelled)
		w.state(deep[1].RunID, perdure.Queued)
	}},
}

// checkNotGranted checks that no poll gets a run.
func (w *World) checkNotGranted(id perdure.RunID, name string) {
	w.t.Helper()
	for _, g := range w.poll("any", 100) {
		w.check(g.Run.ID != id, "%s: it is granted again", name)
	}
}

// drain ends all runs that have not started.
func (w *World) drain() {
	w.t.Helper()
	f := filter("", "")
	f.Live = true
	runs, err := w.E.Runs.List(w.ctx(), tenant, f)
	w.check(err == nil, "%v", err)
	for _, r := range runs {
		w.check(w.cancel(r.ID).State == perdure.Cancelled, "%s is left", r.Kind)
	}
}

package conformance

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/upkeep"
	"github.com/perdure/perdure/internal/server/store"
)

// lateOf creates a run that has timed out, and a late result of it.
func (w *World) lateOf(result string) perdure.Run {
	w.t.Helper()
	r := w.submit(perdure.Submission{Kind: "job", Timeout: perdure.Duration(time.Minute)})
	g := w.take("slow")
	w.pass(30 * time.Second)
	w.beat(g)
	w.pass(31 * time.Second)
	w.ended(r.ID, perdure.TimedOut, perdure.CodeDeadline)
	op := w.commitOf(g, perdure.Commit{Outcome: done(result)})
	w.do(op)
	w.check(op.Refused != nil, "refused")
	return r
}

var lateScenarios = []Scenario{
	{"a late result of an ended run is adopted", func(w *World) {
		r := w.lateOf(`{"answer":42}`)
		w.check(w.get(r.ID).ResultText == "", "not by itself")
		w.do(&life.Adopt{Tenant: tenant, RunID: r.ID, N: 1})
		d := w.get(r.ID)
		w.check(d.State == perdure.TimedOut && string(d.ResultText) == `{"answer":42}`,
			"the state is final, the deliverable is there: %+v", d)
		w.do(&life.Adopt{Tenant: tenant, RunID: r.ID, N: 1})
		w.refuse(perdure.CodeWrongState, &life.Adopt{Tenant: tenant, RunID: r.ID, N: 1, Discard: true})
		w.refuse(perdure.CodeNotFound, &life.Adopt{Tenant: tenant, RunID: r.ID, N: 2})
		w.refuse(perdure.CodeNotFound, &life.Adopt{Tenant: "other", RunID: r.ID, N: 1})
	}},
	{"a late result is discarded", func(w *World) {
		r := w.lateOf(`1`)
		w.do(&life.Adopt{Tenant: tenant, RunID: r.ID, N: 1, Discard: true})
		w.check(w.lates(r.ID)[0].State == perdure.LateDiscarded, "discarded")
		w.refuse(perdure.CodeWrongState, &life.Adopt{Tenant: tenant, RunID: r.ID, N: 1})
	}},
	{"late results are listed with the attempt and the worker that they come from", func(w *World) {
		r := w.submit(perdure.Submission{Kind: "job", Timeout: perdure.Duration(time.Hour), MaxAttempts: 5})
		var held []dispatch.Grant
		for i := range 3 { // an attempt with a resume, and many lines, each
			g := w.take(fmt.Sprint("w", i))
			w.commit(g, perdure.Commit{Waits: wait(perdure.WaitSpec{ID: fmt.Sprint(i), Type: perdure.WaitTimer,
				Timeout: perdure.Duration(time.Second)}), Outcome: suspend})
			w.pass(2 * time.Second)
			g = w.take(fmt.Sprint("w", i))
			for range 7 * i {
				w.commit(g, perdure.Commit{Events: []perdure.Emitted{{Type: "x:a", Data: json.RawMessage(`1`)}}})
			}
			held = append(held, g)
			w.pass(65 * time.Second)
		}
		w.complete(w.take("last"), `"done"`)
		for _, g := range held {
			w.do(w.commitOf(g, perdure.Commit{Outcome: &perdure.Outcome{Type: perdure.OutcomeComplete,
				Result: json.RawMessage(`1`), Summary: "late"}}))
		}
		forged := held[0]
		forged.Run.Epoch++ // an epoch that nobody ever had: the one that took the lease away
		w.do(w.commitOf(forged, perdure.Commit{Outcome: done(`2`)}))
		lates := w.lates(r.ID)
		w.check(len(lates) == 4, "%+v", lates)
		for i, g := range held {
			l := lates[i]
			w.check(l.N == i+1 && l.Epoch == g.Run.Epoch && l.Attempt == g.Run.Attempt &&
				l.Worker == fmt.Sprint("w", i) && l.Summary == "late", "%+v of %+v", l, g.Run)
		}
		w.check(lates[0].Attempt == 1 && lates[2].Attempt > lates[1].Attempt, "%+v", lates)
		w.do(&life.Adopt{Tenant: tenant, RunID: r.ID, N: 2, Discard: true})
		w.do(&life.Adopt{Tenant: tenant, RunID: r.ID, N: 2, Discard: true})
		w.check(w.count(r.ID, perdure.LineLateResult) == 5, "discarded once, and in the log: %v", w.types(r.ID))
	}},
	{"a late result completes a live run", func(w *World) {
		r := w.task()
		frozen := w.take("frozen")
		w.pass(65 * time.Second)
		g := w.take("healthy")
		w.do(w.commitOf(frozen, perdure.Commit{Outcome: done(`"late"`)}))
		w.do(&life.Adopt{Tenant: tenant, RunID: r.ID, N: 1})
		w.check(string(w.get(r.ID).ResultText) == `"late"`, "adopted")
		w.state(r.ID, perdure.Completed)
		w.refuseLease(perdure.CodeStaleEpoch, g)
	}},
	{"a live parent is told of an adopted result, and no children wait is satisfied by it", func(w *World) {
		p := w.submit(perdure.Submission{Kind: "parent", Timeout: perdure.Duration(time.Hour)})
		g := w.takeKind("parent")
		ans := w.commit(g, perdure.Commit{Children: []perdure.Spawn{{Key: "kid", Kind: "kid",
			Timeout: perdure.Duration(20 * time.Second)}, {Key: "kid2", Kind: "kid2",
			Timeout: perdure.Duration(time.Hour)}},
			Waits: wait(perdure.WaitSpec{ID: "j", Type: perdure.WaitChildren, Keys: []string{"kid", "kid2"},
				Timeout: perdure.Never}), Outcome: suspend})
		k := w.takeKind("kid")
		w.pass(21 * time.Second)
		w.state(k.Run.ID, perdure.TimedOut)
		w.do(w.commitOf(k, perdure.Commit{Outcome: done(`"late"`)}))
		w.do(&life.Adopt{Tenant: tenant, RunID: ans.Children[0].RunID, N: 1})
		w.state(p.ID, perdure.Suspended)
		w.complete(w.takeKind("kid2"), `2`)
		g = w.takeKind("parent")
		types := ""
		for _, i := range g.Inbox {
			types += i.Type + " "
		}
		w.check(types == "child late_result child wait ", "%s", types)
	}},
	{"at most sixteen late results are kept of a run", func(w *World) {
		r := w.task()
		g := w.take("w1")
		w.complete(g, `0`)
		for i := range 20 {
			op := w.commitOf(g, perdure.Commit{ID: fmt.Sprintf("late-%d", i), Outcome: done(`1`)})
			w.do(op)
			w.check(op.Refused != nil, "refused")
		}
		w.check(len(w.lates(r.ID)) == perdure.MaxLate, "%d", len(w.lates(r.ID)))
	}},
	{"retry makes a new run whose result is a late result of the first", func(w *World) {
		r := w.submit(perdure.Submission{Kind: "job", Input: json.RawMessage(`{"n":7}`),
			Timeout: perdure.Duration(time.Minute)})
		w.refuse(perdure.CodeWrongState, &life.Retry{Tenant: tenant, RunID: r.ID})
		w.pass(61 * time.Second)
		op := &life.Retry{Tenant: tenant, RunID: r.ID, Key: "k"}
		w.do(op)
		again := op.Run
		w.check(op.Created && again.RetryOf == r.ID && again.ID != r.ID && again.DeadlineAt > w.Now, "%+v", again)
		w.do(op)
		w.check(!op.Created && op.Run.ID == again.ID, "once per key")
		g := w.take("w1")
		w.check(string(g.Input) == `{"n":7}`, "the same input")
		w.complete(g, `"second try"`)
		lates := w.lates(r.ID)
		w.check(len(lates) == 1 && lates[0].FromRun == again.ID && string(lates[0].Result) == `"second try"`,
			"%+v", lates)
		w.state(r.ID, perdure.TimedOut)
	}},
	{"a dead letter is redriven once, or discarded, and expires", func(w *World) {
		dead := func() perdure.Run {
			r := w.task()
			w.commit(w.take("w1"), perdure.Commit{Outcome: &perdure.Outcome{Type: perdure.OutcomeReject, Reason: "no"}})
			return r
		}
		a := dead()
		op := &upkeep.Redrive{Tenant: tenant, RunID: a.ID}
		w.do(op)
		made := op.Run.ID
		w.do(op)
		w.check(!op.Created && op.Run.ID == made && w.get(made).RetryOf == a.ID, "once")
		w.complete(w.take("w1"), `1`)
		b := dead()
		w.do(&upkeep.DropDeadLetter{Tenant: tenant, RunID: b.ID})
		w.refuse(perdure.CodeNotFound, &upkeep.Redrive{Tenant: tenant, RunID: b.ID})
		w.state(b.ID, perdure.Failed)
		count := func() (n int) {
			w.view(func(v *store.View) error {
				list, err := v.DeadLetters.List(tenant, store.LetterFilter{Limit: 10})
				n = len(list)
				return err
			})
			return n
		}
		w.check(count() == 1, "%d", count())
		w.Now = w.Now.Add(25 * time.Hour)
		w.sweep()
		w.check(count() == 0, "expired")
	}},
}

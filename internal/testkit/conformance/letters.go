package conformance

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/upkeep"
	"github.com/perdure/perdure/internal/server/store"
)

// deadLetter creates a dead letter of a kind and a cause.
func (w *World) deadLetter(kind, cause string) perdure.Run {
	w.t.Helper()
	r := w.submit(perdure.Submission{Kind: kind, MaxAttempts: 1, Input: json.RawMessage(`{"n":1}`)})
	w.commit(w.takeKind(kind), perdure.Commit{Outcome: failed(cause)})
	return r
}

func (w *World) letters(f store.LetterFilter) (ids []perdure.RunID) {
	w.t.Helper()
	if f.Limit == 0 {
		f.Limit = 1000
	}
	w.view(func(v *store.View) error {
		list, err := v.DeadLetters.List(tenant, f)
		for _, d := range list {
			ids = append(ids, d.RunID)
		}
		return err
	})
	return ids
}

var letterScenarios = []Scenario{
	{"dead letters are found by cause, kind and queue, and counted", func(w *World) {
		a, b, c := w.deadLetter("job", "broken"), w.deadLetter("job", "broken"), w.deadLetter("mail", "broken")
		w.Now = w.Now.Add(time.Second)
		d := w.deadLetter("job", "lost")
		all := w.letters(store.LetterFilter{})
		w.check(fmt.Sprint(all) == fmt.Sprint([]perdure.RunID{d.ID, c.ID, b.ID, a.ID}), "newest first: %v", all)
		w.check(fmt.Sprint(w.letters(store.LetterFilter{Cause: "broken",
			Kind: "job"})) == fmt.Sprint([]perdure.RunID{b.ID, a.ID}), "by cause and kind")
		w.check(fmt.Sprint(w.letters(store.LetterFilter{Queue: "default", Before: c.ID,
			Limit: 1})) == fmt.Sprint([]perdure.RunID{b.ID}), "page by page")
		w.check(len(w.letters(store.LetterFilter{Queue: "none"})) == 0, "of another queue")
		w.do(&upkeep.Redrive{Tenant: tenant, RunID: a.ID})
		w.check(fmt.Sprint(w.letters(store.LetterFilter{Cause: "broken", Open: true,
			Oldest: true})) == fmt.Sprint([]perdure.RunID{b.ID, c.ID}), "those that nobody has redriven")
		w.view(func(v *store.View) error {
			g, err := v.DeadLetters.Groups(tenant, store.LetterFilter{Limit: 10})
			w.check(len(g) == 3 && g[0].Cause == "broken" && g[0].Kind == "job" && g[0].Count == 2 &&
				g[0].Redriven == 1 && g[0].Example == b.ID && g[0].Message == "it broke" &&
				g[1].Kind == "mail" && g[2].Cause == "lost" && g[2].Oldest == w.Now && g[2].Newest == w.Now, "%+v", g)
			none, err2 := v.DeadLetters.Groups("other", store.LetterFilter{Limit: 10})
			w.check(len(none) == 0, "of another tenant: %+v", none)
			if err == nil {
				err = err2
			}
			return err
		})
	}},
	{"a dead letter tells what led to it", func(w *World) {
		p := w.submit(perdure.Submission{Kind: "parent", Timeout: perdure.Duration(time.Hour)})
		kid := w.commit(w.takeKind("parent"),
			perdure.Commit{Children: []perdure.Spawn{{Key: "k", Kind: "job",
				Timeout: perdure.Duration(50 * time.Minute)}},
				Waits: wait(perdure.WaitSpec{ID: "j", Type: perdure.WaitChildren, Keys: []string{"k"},
					Timeout: perdure.Never}), Outcome: suspend}).Children[0].RunID
		g := w.takeKind("job")
		w.commit(g, perdure.Commit{Waits: wait(perdure.WaitSpec{ID: "s", Type: perdure.WaitTimer,
			Timeout: perdure.Duration(time.Second)}), Outcome: suspend})
		w.pass(2 * time.Second)
		w.commit(w.takeKind("job"), perdure.Commit{Outcome: failed("broken")})
		w.pass(10 * time.Second)
		w.takeKind("job") // and is never heard from again
		w.pass(2 * time.Minute)
		last := w.takeKind("job")
		w.do(&life.Heartbeat{Tenant: tenant, Worker: "w1",
			Beats: []life.BeatOf{{Lease: lease(last), Activity: "thinking"}}})
		w.commit(last, perdure.Commit{Outcome: failed("again")})
		w.ended(kid, perdure.Failed, "again")
		l, err := w.E.DeadLetters.Get(w.ctx(), tenant, kid)
		w.check(err == nil && l.Kept && l.Run.Activity == "thinking" && l.Parent.ID == p.ID &&
			l.Cause == "again", "%+v %v", l, err)
		w.check(len(l.Attempts) == 3, "%+v", l.Attempts)
		for i, want := range []perdure.Attempt{{N: 1, Outcome: "failed", Resumed: 1,
			Error: &perdure.Failure{Code: "broken"}}, {N: 2, Outcome: "lease_lost"},
			{N: 3, Outcome: "failed", Error: &perdure.Failure{Code: "again"}}} {
			a := l.Attempts[i]
			w.check(a.N == want.N && a.Outcome == want.Outcome && a.Resumed == want.Resumed &&
				a.WorkerID != "" && a.StartedAt >= a.GrantedAt && a.EndedAt > 0 &&
				(want.Error == nil || a.Error.Code == want.Error.Code), "attempt %d: %+v", i+1, a)
		}
		w.check(l.Events[len(l.Events)-1].Type == perdure.LineFailed && len(l.Events) == 20, "%d events", len(l.Events))
		_, err = w.E.DeadLetters.Get(w.ctx(), "other", kid)
		w.check(perdure.CodeOf(err) == perdure.CodeNotFound, "of another tenant: %v", err)
	}},
	{"a call for many dead letters is about the same ones each time", func(w *World) {
		a, b, c := w.deadLetter("job", "broken"), w.deadLetter("job", "broken"), w.deadLetter("job", "broken")
		pick := func(key string) *upkeep.PickLetters {
			found, err := w.E.DeadLetters.Find(w.ctx(), tenant, store.LetterFilter{Cause: "broken", Open: true,
				Oldest: true, Limit: 2})
			w.check(err == nil, "finding letters: %v", err)
			return &upkeep.PickLetters{Tenant: tenant, What: "redrive", Found: found, Asked: "x", Key: key}
		}
		op := pick("k")
		w.do(op)
		w.check(!op.Again && fmt.Sprint(op.Picked) == fmt.Sprint([]perdure.RunID{a.ID, b.ID}), "%v", op.Picked)
		for _, id := range op.Picked {
			w.do(&upkeep.Redrive{Tenant: tenant, RunID: id})
		}
		w.do(op)
		w.check(op.Again && fmt.Sprint(op.Picked) == fmt.Sprint([]perdure.RunID{a.ID, b.ID}), "%v", op.Picked)
		op = pick("")
		w.do(op)
		w.check(fmt.Sprint(op.Picked) == fmt.Sprint([]perdure.RunID{c.ID}), "%v", op.Picked)
		other := pick("k")
		other.Asked = "y"
		w.refuse(perdure.CodeReused, other)
	}},
	{"a letter that is discarded and redriven at once is one or the other", func(w *World) {
		a := w.deadLetter("job", "broken")
		errs := w.E.Step(w.Now, &upkeep.DropDeadLetter{Tenant: tenant, RunID: a.ID},
			&upkeep.Redrive{Tenant: tenant, RunID: a.ID}, &upkeep.DropDeadLetter{Tenant: tenant, RunID: a.ID})
		w.check(errs[0] == nil && perdure.CodeOf(errs[1]) == perdure.CodeNotFound &&
			perdure.CodeOf(errs[2]) == perdure.CodeNotFound, "%v", errs)
		w.check(len(w.letters(store.LetterFilter{})) == 0, "it is gone")
	}},
	{"a letter whose redriven run was deleted is redriven again", func(w *World) {
		a := w.deadLetter("job", "broken")
		op := &upkeep.Redrive{Tenant: tenant, RunID: a.ID}
		w.do(op)
		first := op.Run.ID
		w.complete(w.takeKind("job"), `1`)
		w.do(&upkeep.DeleteRun{Tenant: tenant, RunID: first})
		w.do(op)
		w.check(op.Created && op.Run.ID != first && op.Run.RetryOf == a.ID, "a new one: %+v", op.Run)
		second := op.Run.ID
		w.do(op)
		w.check(!op.Created && op.Run.ID == second, "and once: %+v", op.Run)
	}},
	{"dead letters are kept for a day", func(w *World) {
		a := w.deadLetter("job", "broken")
		w.do(&upkeep.Redrive{Tenant: tenant, RunID: a.ID})
		w.Now = w.Now.Add(w.E.Policy().DeadLetterTTL - time.Millisecond)
		w.sweep()
		w.check(len(w.letters(store.LetterFilter{})) == 1, "it is there")
		w.Now = w.Now.Add(time.Millisecond)
		w.sweep()
		w.check(len(w.letters(store.LetterFilter{})) == 0, "it has expired")
		w.refuse(perdure.CodeNotFound, &upkeep.Redrive{Tenant: tenant, RunID: a.ID})
		w.state(a.ID, perdure.Failed)
	}},
}

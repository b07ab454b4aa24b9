package conformance

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/reads"
	"github.com/perdure/perdure/internal/server/engine/upkeep"
	"github.com/perdure/perdure/internal/server/store"
)

// chord creates a run on a thread that completes with continue_on over n children.
func (w *World) chord(th perdure.ThreadID, n int) (orig perdure.Run, children []life.ChildOf) {
	w.t.Helper()
	orig = w.on(th, perdure.Submission{Kind: "boss"})
	g := w.takeKind("boss")
	spawns, keys := kids(n)
	o := done(`"still working, I'll tell you"`)
	o.ContinueOn = keys
	ans := w.commit(g, perdure.Commit{Children: spawns, Outcome: o})
	w.check(ans.State == perdure.Completed, "%s", ans.State)
	return orig, ans.Children
}

func (w *World) gathering(id perdure.GroupID) (g perdure.Gathering) {
	w.t.Helper()
	w.view(func(v *store.View) (err error) { g, _, err = v.Groups.GetFull(tenant, id); return err })
	return g
}

func (w *World) group(op *life.CreateGroup) perdure.Gathering {
	w.t.Helper()
	op.Tenant = tenant
	w.do(op)
	return op.Group
}

var gatheringScenarios = []Scenario{
	{"a chord makes one continuation when all have ended, however", func(w *World) {
		th := w.thread()
		orig, children := w.chord(th, 3)
		w.complete(w.takeKind("kid"), `{"disk":"45%"}`)
		no := false
		o := failed("boom")
		o.Retryable = &no
		w.commit(w.takeKind("kid"), perdure.Commit{Outcome: o})
		w.check(w.get(orig.ID).ContinuedBy == "", "not yet")
		last := w.state(children[2].RunID, perdure.Queued)
		w.check(last.MayOutlive(), "the children outlive it")
		w.complete(w.takeKind("kid"), `3`)
		made := w.get(orig.ID).ContinuedBy
		w.check(made != "" && w.count(orig.ID, "run:continued") == 1, "%v", w.types(orig.ID))
		c := w.get(made)
		w.check(c.ContinuationOf == orig.ID && c.ThreadID == th && c.ParentID == "" &&
			c.RootID == orig.RootID && c.Kind == "boss", "%+v", c.Run)
		got := w.texts(th)
		w.check(len(got) == 3 && strings.HasPrefix(got[0], `tool {"run_id":"`+string(children[0].RunID)) &&
			strings.Contains(got[0], "45%") &&
			strings.Contains(got[1], "boom"), "each result, in child order: %v", got)
		w.check(w.takeKind("boss").Run.ID == made, "it is claimable")
	}},
	{"two children that end at once, the last two of a chord", func(w *World) {
		th := w.thread()
		orig, _ := w.chord(th, 2)
		a, b := w.takeKind("kid"), w.takeKind("kid")
		for _, err := range w.E.Step(w.Now, w.commitOf(a, perdure.Commit{Outcome: done(`1`)}),
			w.commitOf(b, perdure.Commit{Outcome: done(`2`)})) {
			w.check(err == nil, "%v", err)
		}
		runs, err := w.E.Runs.List(w.ctx(), tenant, store.RunFilter{ThreadID: th, Limit: 10})
		w.check(err == nil && len(runs) == 2 && w.count(orig.ID, "run:continued") == 1,
			"one continuation: %d runs", len(runs))
	}},
	{"a chord whose children have ended already", func(w *World) {
		th := w.thread()
		orig := w.on(th, perdure.Submission{Kind: "boss"})
		w.Now = w.Now.Add(time.Second)
		waiting := w.on(th, perdure.Submission{Kind: "boss"})
		g := w.takeKind("boss")
		spawns, keys := kids(1)
		w.commit(g, perdure.Commit{Children: spawns})
		w.complete(w.takeKind("kid"), `1`)
		o := done(`1`)
		o.ContinueOn = keys
		w.commit(g, perdure.Commit{Outcome: o})
		next := w.takeKind("boss")
		w.check(next.Run.ContinuationOf == orig.ID, "continuations go first on their thread")
		w.complete(next, `1`)
		w.check(w.takeKind("boss").Run.ID == waiting.ID, "then who waited")
	}},
	{"cancelling an ended run drops its chord and stops the runs of it", func(w *World) {
		th := w.thread()
		orig, children := w.chord(th, 2)
		running := w.takeKind("kid")
		w.check(w.cancel(orig.ID).State == perdure.Completed, "its end is final")
		w.check(w.gathering(perdure.GroupID(orig.ID)).State == perdure.GatheringDropped, "dropped")
		w.state(children[1].RunID, perdure.Cancelled)
		w.check(len(w.beat(running).Cancel) == 1, "told")
		w.complete(running, `1`)
		w.check(w.get(orig.ID).ContinuedBy == "", "no continuation")
	}},
	{"what a chord can't be made of", func(w *World) {
		w.submit(perdure.Submission{Kind: "boss"})
		g := w.takeKind("boss")
		spawns, keys := kids(1)
		o := done(`1`)
		o.ContinueOn = keys
		w.refuse(perdure.CodeInvalid, w.commitOf(g, perdure.Commit{Children: spawns, Outcome: o})) // no thread
		th := w.thread()
		stranger := w.task()
		w.on(th, perdure.Submission{Kind: "boss2"})
		g = w.takeKind("boss2")
		o.ContinueOn = []string{string(stranger.ID)}
		w.refuse(perdure.CodeInvalid, w.commitOf(g, perdure.Commit{Outcome: o}))
	}},
	{"work outside continues a run that has ended, once per job", func(w *World) {
		th := w.thread()
		r := w.on(th, perdure.Submission{Kind: "boss"})
		w.complete(w.takeKind("boss"), `1`)
		op := &life.Continue{Tenant: tenant, RunID: r.ID, Trigger: "worker_complete", JobID: "2",
			Status: "success", Summary: "Disk check complete"}
		w.do(op)
		made := op.Made
		w.check(op.Created && made != "", "made")
		w.do(op)
		w.check(!op.Created && op.Made == made, "the same run after that")
		w.check(w.get(made).ContinuationOf == r.ID && strings.Contains(w.texts(th)[0], "Disk check"), "%v", w.texts(th))
	}},
	{"work outside continues no command: nobody could tell it what has happened", func(w *World) {
		for _, queue := range []string{"default", perdure.LocalQueue} {
			th := w.thread()
			r := w.on(th, perdure.Submission{Kind: perdure.ExecKind, Class: perdure.Process, Queue: queue,
				MaxAttempts: 1, Input: json.RawMessage(`{"command":["true"]}`)})
			claim := &dispatch.Claim{Tenant: tenant, Worker: "runner", Runs: []perdure.RunID{r.ID}, Slots: 1,
				Start: true}
			w.do(claim)
			g := claim.Grants[0]
			op := &life.Continue{Tenant: tenant, RunID: r.ID, Trigger: "ci", JobID: "1", Status: "success"}
			w.refuse(perdure.CodeNotContinuable, op)
			w.complete(g, `1`)
			w.refuse(perdure.CodeNotContinuable, op)
			w.check(w.get(r.ID).ContinuedBy == "" && len(w.texts(th)) == 0, "nothing was made, and nothing was said")
			w.do(inTx(func(tx *kernel.Tx) error { // as an older release has accepted it
				tx.DB.Idempotency.Put(store.IdempotencyRow{Tenant: tenant, Key: "continue:" + string(r.ID) + ":2",
					Ref: string(r.ID), ExpiresAt: tx.Now.Add(time.Hour)})
				return nil
			}))
			op.JobID = "2"
			w.do(op)
			w.check(!op.Created && op.Made == "", "the repeated call has the first answer")
		}
	}},
	{"work outside for a run whose thread was deleted is refused, and its key is not spent", func(w *World) {
		th := w.thread()
		r := w.on(th, perdure.Submission{Kind: "boss"})
		w.complete(w.takeKind("boss"), `1`)
		before := &life.Continue{Tenant: tenant, RunID: r.ID, JobID: "1"}
		w.do(before)
		w.complete(w.takeKind("boss"), `1`)
		w.do(&upkeep.DeleteThread{Tenant: tenant, ThreadID: th})
		w.refuse(perdure.CodeRunEnded, &life.Continue{Tenant: tenant, RunID: r.ID, JobID: "2"})
		again := &life.Continue{Tenant: tenant, RunID: r.ID, JobID: "1"}
		w.do(again)
		w.check(!again.Created && again.Made == before.Made, "%+v", again) // it was said while there was one
	}},
	{"work outside that ends while the run lives", func(w *World) {
		th := w.thread()
		for _, ack := range []bool{true, false} {
			r := w.on(th, perdure.Submission{Kind: "boss"})
			g := w.takeKind("boss")
			op := &life.Continue{Tenant: tenant, RunID: r.ID, JobID: "7", Status: "success"}
			w.do(op)
			w.check(op.Created && op.Made == "", "an inbox item instead")
			in := &life.Inbox{Tenant: tenant, RunID: r.ID, Epoch: g.Run.Epoch}
			w.do(in)
			w.check(len(in.Page) == 1 && in.Page[0].Type == perdure.ItemContinue, "%+v", in.Page)
			c := perdure.Commit{Outcome: done(`1`)}
			if ack {
				c.Ack = []int64{in.Page[0].Seq}
			}
			w.commit(g, c)
			made := w.get(r.ID).ContinuedBy
			w.check((made == "") == ack, "a run that ends without acknowledging it is continued")
			w.do(op)
			w.check(!op.Created && op.Made == made, "and saying it again tells which")
		}
		w.complete(w.takeKind("boss"), `1`)
	}},
	{"groups in four modes, over runs that have ended and runs that live", func(w *World) {
		finish := func(r perdure.Run, ok bool) {
			op := &dispatch.Claim{Tenant: tenant, Worker: "w", Kinds: []string{r.Kind}, Slots: 1, Start: true}
			w.do(op)
			o := done(`1`)
			if !ok {
				no := false
				o = failed("no")
				o.Retryable = &no
			}
			w.commit(op.Grants[0], perdure.Commit{Outcome: o})
		}
		for i, c := range []struct {
			mode  perdure.Mode
			first bool
			after []perdure.GatheringState // the group's state after each end
		}{
			{perdure.ModeAll, true, []perdure.GatheringState{"open", "open", "satisfied"}},
			{perdure.ModeAllOK, false, []perdure.GatheringState{"satisfied"}},
			{perdure.ModeAny, false, []perdure.GatheringState{"satisfied"}},
			{perdure.ModeAnyOK, false, []perdure.GatheringState{"open", "satisfied"}},
		} {
			var runs []perdure.Run
			var ids []perdure.RunID
			for k := range 3 {
				r := w.submit(perdure.Submission{Kind: "m" + string(rune('a'+i)) + string(rune('a'+k))})
				runs, ids = append(runs, r), append(ids, r.ID)
			}
			g := w.group(&life.CreateGroup{Mode: c.mode, RunIDs: ids})
			w.check(g.State == perdure.GatheringOpen, "%s: %s", c.mode, g.State)
			for k, want := range c.after {
				finish(runs[k], k > 0 || c.first)
				w.check(w.gathering(g.ID).State == want, "%s after %d: %s", c.mode, k+1, w.gathering(g.ID).State)
			}
			again := w.group(&life.CreateGroup{Mode: c.mode, RunIDs: ids})
			w.check(again.State == w.gathering(g.ID).State, "a group over ended runs: %s", again.State)
			for k := len(c.after); k < 3; k++ {
				finish(runs[k], true) // losers go on
			}
		}
	}},
	{"groups are listed newest first, without chords and those of others", func(w *World) {
		w.chord(w.thread(), 2)
		r := w.submit(perdure.Submission{Kind: "m"})
		var groups []perdure.GroupID
		for i := range 5 {
			op := &life.CreateGroup{RunIDs: []perdure.RunID{r.ID}}
			if i%2 == 1 {
				op.Timeout = perdure.Duration(time.Minute)
			}
			groups = append(groups, w.group(op).ID)
			w.pass(time.Second)
		}
		w.chord(w.thread(), 1)
		list := func(f reads.GroupFilter) (out []perdure.GroupID) {
			for pages := 0; pages < 20; pages++ {
				p, err := w.E.Runs.Groups(w.ctx(), tenant, f)
				w.check(err == nil, "groups of %+v: %v", f, err)
				for _, g := range p.Groups {
					w.check(g.Total == 1 && g.Members == nil && g.Kind == perdure.GatheringGroup, "%+v", g)
					out = append(out, g.ID)
				}
				if f.Before = p.Next; f.Before == "" {
					slices.Reverse(out)
					return out
				}
			}
			w.check(false, "the list of groups of %+v has no end", f)
			return nil
		}
		want := func(f reads.GroupFilter, which ...int) {
			var ids []perdure.GroupID
			for _, i := range which {
				ids = append(ids, groups[i])
			}
			for _, f.Rows = range []int{0, 1, 3} {
				got := list(f)
				w.check(slices.Equal(got, ids), "groups of %+v: %v, want %v", f, got, ids)
			}
		}
		want(reads.GroupFilter{Limit: 50}, 0, 1, 2, 3, 4)
		want(reads.GroupFilter{Limit: 2}, 0, 1, 2, 3, 4)
		w.pass(time.Minute)
		want(reads.GroupFilter{Limit: 50, State: perdure.GatheringTimedOut}, 1, 3)
		w.complete(w.takeKind("m"), `1`)
		want(reads.GroupFilter{Limit: 50, State: perdure.GatheringOpen})
		want(reads.GroupFilter{Limit: 1, State: perdure.GatheringSatisfied}, 0, 2, 4)
		want(reads.GroupFilter{Limit: 3, State: perdure.GroupEnded}, 0, 1, 2, 3, 4)
		p, err := w.E.Runs.Groups(w.ctx(), "other", reads.GroupFilter{Limit: 50})
		w.check(err == nil && len(p.Groups) == 0 && p.Next == "", "another tenant's groups: %+v, %v", p, err)
	}},
	{"a group's losers, deadline and bad input", func(w *World) {
		a, b := w.submit(perdure.Submission{Kind: "a"}), w.submit(perdure.Submission{Kind: "b"})
		g := w.group(&life.CreateGroup{Mode: perdure.ModeAny, RunIDs: []perdure.RunID{a.ID, b.ID, a.ID},
			OnLosers: "cancel"})
		w.check(g.Total == 2, "each counts once")
		w.complete(w.takeKind("a"), `1`)
		w.check(w.gathering(g.ID).State == perdure.GatheringSatisfied, "satisfied")
		w.state(b.ID, perdure.Cancelled)

		c := w.submit(perdure.Submission{Kind: "c"})
		late := w.group(&life.CreateGroup{RunIDs: []perdure.RunID{c.ID},
			Timeout: perdure.Duration(time.Minute), OnLosers: "cancel"})
		w.pass(61 * time.Second)
		w.check(w.gathering(late.ID).State == perdure.GatheringTimedOut, "timed out")
		w.state(c.ID, perdure.Queued) // a timeout stops waiting, not working
		w.complete(w.takeKind("c"), `1`)
		w.check(w.gathering(late.ID).State == perdure.GatheringTimedOut, "once")

		for _, bad := range []*life.CreateGroup{{Mode: "some", RunIDs: []perdure.RunID{a.ID}}, {},
			{RunIDs: []perdure.RunID{a.ID}, OnLosers: "weep"},
			{RunIDs: []perdure.RunID{a.ID}, Timeout: perdure.Never}} {
			bad.Tenant = tenant
			w.refuse(perdure.CodeInvalid, bad)
		}
		w.refuse(perdure.CodeNotFound, &life.CreateGroup{Tenant: tenant, RunIDs: []perdure.RunID{"nobody"}})
		w.refuse(perdure.CodeNotFound, &life.CreateGroup{Tenant: "other", RunIDs: []perdure.RunID{a.ID}})
	}},
}

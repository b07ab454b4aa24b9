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

// anew is the outcome of a run that goes on as a new one.
func anew(result, input string) *perdure.Outcome {
	o := done(result)
	o.ContinueWith = &perdure.ContinueWith{Input: json.RawMessage(input)}
	return o
}

// signal sends a signal to a run.
func (w *World) signal(id perdure.RunID, name, data string) {
	w.t.Helper()
	w.do(&life.Signal{Tenant: tenant, RunID: id, Name: name, Data: json.RawMessage(data)})
}

var anewScenarios = []Scenario{
	{"a run goes on as one new run, with what it had", func(w *World) {
		r := w.submit(perdure.Submission{Kind: "keeper", Class: perdure.Agent, Priority: 7,
			Timeout: perdure.Duration(time.Hour), Metadata: map[string]string{"team": "a"},
			Input: json.RawMessage(`{"n":1}`), MaxAttempts: 5})
		w.Now = w.Now.Add(10 * time.Minute)
		g := w.takeKind("keeper")
		c := w.commitOf(g, perdure.Commit{Journal: []perdure.JournalEntry{{Key: "a", Value: json.RawMessage(`1`)}},
			Outcome: anew(`"first"`, `{"n":2}`)})
		w.do(c)
		w.do(c) // the same commit again
		first := w.state(r.ID, perdure.Completed)
		w.check(string(first.Result) == `"first"` && first.ContinuedBy != "" &&
			w.count(r.ID, perdure.LineContinued) == 1, "%v", w.types(r.ID))
		next := w.get(first.ContinuedBy)
		w.check(next.ContinuationOf == r.ID && next.RootID == next.ID && next.ParentID == "" &&
			next.Kind == "keeper" && next.Class == perdure.Agent && next.Queue == r.Queue && next.Priority == 7 &&
			next.MaxAttempts == 5 && next.Metadata == first.Metadata && next.JournalSeq == 0, "%+v", next.Run)
		w.check(next.DeadlineAt == w.Now.Add(time.Hour), "a fresh timeout: %v at %v", next.DeadlineAt, w.Now)
		runs, err := w.E.Runs.List(w.ctx(), tenant, store.RunFilter{Limit: 10})
		w.check(err == nil && len(runs) == 2, "%d runs, %v", len(runs), err)
		again := w.takeKind("keeper")
		w.check(again.Run.ID == next.ID && string(again.Input) == `{"n":2}` && len(again.Journal) == 0, "%+v", again)
		w.cancel(r.ID)
		w.check(w.get(next.ID).Cancel.RequestedAt == 0, "a cancel of the first does not reach it")
		w.do(&upkeep.DeleteRun{Tenant: tenant, RunID: r.ID}) // it is not needed any more
	}},
	{"signals that were not taken go with a run that goes on anew", func(w *World) {
		r := w.submit(perdure.Submission{Kind: "keeper", Class: perdure.Agent})
		g := w.takeKind("keeper")
		w.signal(r.ID, "a", `1`)
		w.signal(r.ID, "b", `2`)
		w.signal(r.ID, "a", `3`)
		w.commit(g, perdure.Commit{Waits: wait(forSignal("w", "b"))}) // it ends at once, and nobody looks
		w.do(&life.Inbox{Tenant: tenant, RunID: r.ID, Epoch: g.Run.Epoch})
		w.commit(g, perdure.Commit{Ack: []int64{1}, Outcome: anew(`1`, `2`)})
		next := w.get(r.ID).ContinuedBy
		w.check(w.get(r.ID).InboxOpen == 0, "the first has %d left", w.get(r.ID).InboxOpen)
		got := ""
		for _, i := range w.items(next) {
			got += fmt.Sprintf("%d %s %s%s %s; ", i.Seq, i.Name, i.Data, i.WaitID, i.Status)
		}
		w.check(got == "1 b 2 pending; 2 a 3 pending; ", "%s", got)
		w.signal(next, "a", `4`)
		w.check(w.get(next).InboxSeq == 3 && w.get(next).InboxOpen == 3, "%+v", w.get(next).Run)
		op := &life.Signal{Tenant: tenant, RunID: r.ID, Name: "a"}
		err, _ := w.E.Step(w.Now, op)[0].(*perdure.Error)
		w.check(err != nil && err.Code == perdure.CodeRunEnded && err.ContinuedBy == next, "%v", err)
		g = w.takeKind("keeper")
		w.check(len(g.Inbox) == 3, "%v", g.Inbox)
		w.complete(g, `1`)
	}},
	{"a run that goes on anew keeps its place on the thread, and its messages", func(w *World) {
		th := w.thread()
		r := w.on(th, perdure.Submission{Kind: "keeper"})
		waiting := w.on(th, perdure.Submission{Kind: "keeper"})
		g := w.takeKind("keeper")
		w.say(th, "one")
		w.say(th, "two")
		w.commit(g, perdure.Commit{Waits: wait(forMessage("m"))})
		w.do(&life.Inbox{Tenant: tenant, RunID: r.ID, Epoch: g.Run.Epoch})
		w.commit(g, perdure.Commit{Ack: []int64{1}, Outcome: anew(`1`, `2`)})
		g = w.takeKind("keeper")
		w.check(g.Run.ContinuationOf == r.ID, "it comes before run %s, which waits", waiting.ID)
		w.commit(g, perdure.Commit{Waits: wait(forMessage("m"))})
		items := w.items(g.Run.ID)
		w.check(len(items) == 1 && items[0].MessageSeq == 2 && items[0].WaitID == "m", "the second message: %+v", items)
		w.complete(g, `1`)
		w.check(w.takeKind("keeper").Run.ID == waiting.ID, "then the run that waited")
	}},
	{"work outside of a run that goes on anew is told to the new run, once", func(w *World) {
		th := w.thread()
		r := w.on(th, perdure.Submission{Kind: "keeper"})
		g := w.takeKind("keeper")
		op := &life.Continue{Tenant: tenant, RunID: r.ID, Trigger: "ci", JobID: "1", Status: "success"}
		w.do(op)
		w.commit(g, perdure.Commit{Outcome: anew(`1`, `2`)})
		next := w.get(r.ID).ContinuedBy
		w.do(op)
		w.check(!op.Created && op.Made == next, "the report is known: %s", op.Made)
		w.check(w.count(r.ID, perdure.LineContinued) == 1 && len(w.items(next)) == 1, "%v", w.types(r.ID))
		op = &life.Continue{Tenant: tenant, RunID: r.ID, Trigger: "ci", JobID: "2", Status: "success"}
		w.refuse(perdure.CodeRunEnded, op)
		w.check(w.get(r.ID).ContinuedBy == next, "there is one continuation")
	}},
	{"runs that can't go on anew", func(w *World) {
		w.submit(perdure.Submission{Kind: "keeper"})
		g := w.takeKind("keeper")
		spawns, keys := kids(2)
		spawns[1].OnParentEnd = perdure.DispositionContinue
		ans := w.commit(g, perdure.Commit{Children: spawns})
		bound, free := w.takeKind("kid"), w.takeKind("kid")
		w.refuse(perdure.CodeNotContinuable, w.commitOf(bound, perdure.Commit{Outcome: anew(`1`, `2`)}))
		w.commit(free, perdure.Commit{Outcome: anew(`"first"`, `2`)})
		w.check(w.get(ans.Children[1].RunID).ContinuedBy != "", "a child that outlives its parent goes on")
		both := anew(`1`, `2`)
		both.ContinueOn = keys
		w.refuse(perdure.CodeInvalid, w.commitOf(g, perdure.Commit{Outcome: both}))
		fails := failed("broken")
		fails.ContinueWith = &perdure.ContinueWith{}
		w.refuse(perdure.CodeInvalid, w.commitOf(g, perdure.Commit{Outcome: fails}))
		w.cancel(g.Run.ID)
		w.refuse(perdure.CodeCancelRequested, w.commitOf(g, perdure.Commit{Outcome: anew(`1`, `2`)}))
	}},
	{"a run with a thousand signals that it has not taken does not go on anew with more", func(w *World) {
		r := w.submit(perdure.Submission{Kind: "keeper"})
		g := w.takeKind("keeper")
		w.signals(r.ID, perdure.MaxList+1)
		w.refuse(perdure.CodeOverBound, w.commitOf(g, perdure.Commit{Outcome: anew(`1`, `2`)}))
		w.do(&life.Inbox{Tenant: tenant, RunID: r.ID, Epoch: g.Run.Epoch})
		w.commit(g, perdure.Commit{Ack: []int64{1}, Outcome: anew(`1`, `2`)})
		w.check(w.get(w.get(r.ID).ContinuedBy).InboxOpen == perdure.MaxList, "all of them went with it")
	}},
}

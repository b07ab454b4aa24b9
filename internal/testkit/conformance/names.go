package conformance

import (
	"encoding/json"
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/upkeep"
)

// submitNamed is a submission with a name.
func submitNamed(name, kind string) *life.Submit {
	return &life.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: kind, Name: name}}
}

// runNamed gives the run that has a name.
func (w *World) runNamed(name string) (perdure.RunID, int64) {
	w.t.Helper()
	id, from, err := w.E.Runs.ByName(w.ctx(), tenant, name)
	w.check(err == nil, "run %q: %v", name, err)
	return id, from
}

var nameScenarios = []Scenario{
	{"the same submission under a name is one run, as long as the run is stored", func(w *World) {
		first := submitNamed("agent/7", "job")
		w.do(first)
		w.complete(w.take("w"), `1`)
		w.Now = w.Now.Add(2 * w.E.Policy().IdempotencyTTL)
		w.retire()
		again := submitNamed("agent/7", "job")
		w.do(again)
		w.check(first.Created && !again.Created && again.Run.ID == first.Run.ID,
			"the second submission made the run %s", again.Run.ID)
	}},
	{"a name that is taken refuses another submission, and a deleted run gives it back", func(w *World) {
		first := submitNamed("n", "job")
		w.do(first)
		w.refuse(perdure.CodeNameTaken, submitNamed("n", "another"))
		keyed := submitNamed("n", "job")
		keyed.Key = "k"
		w.do(keyed)
		w.check(!keyed.Created && keyed.Run.ID == first.Run.ID, "with a key: another run")
		other := &life.Submit{Tenant: "other", Submission: perdure.Submission{Kind: "job", Name: "n"}}
		w.do(other)
		w.check(other.Created, "another tenant has names of its own")
		id, from := w.runNamed("n")
		w.check(id == first.Run.ID && from == 0, "the name stands for %s from %d", id, from)
		w.complete(w.take("w"), `1`)
		// The row of the name is still there after the first step.
		w.do(&upkeep.DeleteRun{Tenant: tenant, RunID: first.Run.ID})
		w.refuse(perdure.CodeNotFound, &life.NameRun{Tenant: tenant, RunID: first.Run.ID, Name: "x"})
		second := submitNamed("n", "another")
		w.do(second)
		w.check(second.Created, "the name of a deleted run is taken")
		w.retire()
		id, _ = w.runNamed("n")
		w.check(id == second.Run.ID && len(w.rowsAbout(string(first.Run.ID), "idempotency", "watchdog_log")) == 0,
			"the removal took the name of another run, or left its own")
	}},
	{"a run and a thread have at most eight names, and each is given once", func(w *World) {
		r := w.task()
		th := w.thread()
		for i := range perdure.MaxNames {
			name := fmt.Sprintf("é %d", i)
			run := &life.NameRun{Tenant: tenant, RunID: r.ID, Name: name, FromSeq: int64(i % 2)}
			w.do(run)
			w.check(run.Created, "%q was there", name)
			w.do(run)
			w.check(!run.Created, "%q was given twice", name)
			thread := &life.NameThread{Tenant: tenant, ThreadID: th, Name: name}
			w.do(thread)
			w.do(thread)
			w.check(!thread.Created, "%q was given twice", name)
		}
		w.refuse(perdure.CodeOverBound, &life.NameRun{Tenant: tenant, RunID: r.ID, Name: "nine"})
		w.refuse(perdure.CodeOverBound, &life.NameThread{Tenant: tenant, ThreadID: th, Name: "nine"})
		w.refuse(perdure.CodeNameTaken, &life.NameRun{Tenant: tenant, RunID: r.ID, Name: "é 1"})
		w.refuse(perdure.CodeNameTaken, &life.NameRun{Tenant: tenant, RunID: w.task().ID, Name: "é 1"})
		w.refuse(perdure.CodeInvalid, &life.NameRun{Tenant: tenant, RunID: r.ID, Name: "x", FromSeq: 9})
		w.refuse(perdure.CodeInvalid, &life.NameRun{Tenant: tenant, RunID: r.ID, Name: "a\x00"})
		w.refuse(perdure.CodeNotFound, &life.NameThread{Tenant: "other", ThreadID: th, Name: "x"})
		_, from := w.runNamed("é 1")
		w.check(from == 1, "the name begins at %d", from)
		w.restart()
		_, from = w.runNamed("é 1")
		w.check(from == 1, "after a restart the name begins at %d", from)
	}},
	{"a thread of a known name is that thread, and a deleted one gives its names back", func(w *World) {
		first := &life.CreateThread{Tenant: tenant, Name: "t", Metadata: json.RawMessage(`{"a":1}`), Key: "k"}
		w.do(first)
		again := &life.CreateThread{Tenant: tenant, Name: "t"}
		w.do(again)
		w.check(first.Created && !again.Created && again.Thread.ID == first.Thread.ID, "a second thread %s",
			again.Thread.ID)
		w.do(&life.NameThread{Tenant: tenant, ThreadID: first.Thread.ID, Name: "t2"})
		w.check(w.E.Delete(w.ctx(), &upkeep.DeleteThread{Tenant: tenant, ThreadID: first.Thread.ID}) == nil, "refused")
		_, err := w.E.Threads.ByName(w.ctx(), tenant, "t2")
		w.check(perdure.CodeOf(err) == perdure.CodeNotFound && w.rows("names") == 0, "names of the deleted thread: %v",
			err)
		next := &life.CreateThread{Tenant: tenant, Name: "t"}
		w.do(next)
		w.check(next.Created, "the name of a deleted thread is taken")
	}},
}

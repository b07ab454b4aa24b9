package conformance

import (
	"fmt"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/life"
)

// asksBelow has a run two levels below a root ask n questions, and gives the root and the run that asks.
func (w *World) asksBelow(n int) (root perdure.Run, asks perdure.RunID) {
	w.t.Helper()
	join := wait(perdure.WaitSpec{ID: "join", Type: perdure.WaitChildren, Keys: []string{"c"}})
	root = w.submit(perdure.Submission{Kind: "root", Class: perdure.Agent})
	child := []perdure.Spawn{{Key: "c", Kind: "middle", Class: perdure.Agent}}
	w.commit(w.takeKind("root"), perdure.Commit{Children: child, Waits: join, Outcome: suspend})
	child = []perdure.Spawn{{Key: "c", Kind: "low", Class: perdure.Agent}}
	asks = w.commit(w.takeKind("middle"), perdure.Commit{Children: child, Waits: join,
		Outcome: suspend}).Children[0].RunID
	var waits []perdure.WaitSpec
	for i := range n {
		waits = append(waits, forYes(fmt.Sprintf("ok%04d", i)))
	}
	w.commit(w.takeKind("low"), perdure.Commit{Waits: waits, Outcome: suspend})
	return root, asks
}

var questionScenarios = []Scenario{
	{"the log of a root tells what a run two levels below asks, and that it is answered", func(w *World) {
		root, asks := w.asksBelow(1)
		id := perdure.IDOfApproval(tenant, asks, "ok0000")
		want := fmt.Sprintf(`{"run_id":%q,"kind":"low","wait_id":"ok0000","approval_id":%q,"title":"Push to main?",`+
			`"approvers":"tenant"}`, asks, id)
		w.check(w.lastLine(root.ID, perdure.LineWorkerAsks) == want, "worker:asks = %s, want %s",
			w.lastLine(root.ID, perdure.LineWorkerAsks), want)
		w.do(w.decide(id, ada, yes()))
		w.do(w.decide(id, ada, yes())) // the same again
		want = fmt.Sprintf(`{"run_id":%q,"kind":"low","wait_id":"ok0000","approval_id":%q,"outcome":"approved"}`,
			asks, id)
		w.check(w.lastLine(root.ID, perdure.LineWorkerAnswered) == want &&
			w.count(root.ID, perdure.LineWorkerAnswered) == 1, "worker:answered = %s, want once %s",
			w.lastLine(root.ID, perdure.LineWorkerAnswered), want)
		w.check(w.count(asks, perdure.LineWorkerAsks) == 0, "the run that asks has told itself")
	}},
	{"a commit of many questions below is a hundred lines, and the rest a count", func(w *World) {
		const n = 130
		root, asks := w.asksBelow(n)
		w.check(w.count(root.ID, perdure.LineWorkerAsks) == perdure.MaxQuestionLines+1, "%d lines",
			w.count(root.ID, perdure.LineWorkerAsks))
		w.check(strings.HasSuffix(w.lastLine(root.ID, perdure.LineWorkerAsks), `,"count":30}`), "the rest: %s",
			w.lastLine(root.ID, perdure.LineWorkerAsks))
		w.pass(11 * time.Minute) // their timeout
		w.check(w.count(root.ID, perdure.LineWorkerAnswered) == perdure.MaxQuestionLines+1 &&
			strings.HasSuffix(w.lastLine(root.ID, perdure.LineWorkerAnswered), `,"count":30}`),
			"after the timeout: %d lines, the last %s",
			w.count(root.ID, perdure.LineWorkerAnswered), w.lastLine(root.ID, perdure.LineWorkerAnswered))
		w.state(asks, perdure.Queued)
	}},
	{"a question ends with its run, and a root that has ended is told nothing", func(w *World) {
		root, asks := w.asksBelow(2)
		w.do(&life.Cancel{Tenant: tenant, RunID: asks})
		w.commit(w.takeKind("low"), perdure.Commit{Outcome: &perdure.Outcome{Type: perdure.OutcomeCancelled}})
		w.check(strings.HasSuffix(w.lastLine(root.ID, perdure.LineWorkerAnswered), `"outcome":"closed"}`) &&
			w.count(root.ID, perdure.LineWorkerAnswered) == 2, "%v", w.types(root.ID))
		w.complete(w.takeKind("middle"), `1`)
		w.complete(w.takeKind("root"), `1`)
		other, _ := w.asksBelow(1)
		w.do(&life.Cancel{Tenant: tenant, RunID: other.ID})
		w.pass(time.Minute)
		w.ended(other.ID, perdure.Cancelled, perdure.CodeCancelled)
		last := w.types(other.ID)
		w.check(!strings.HasPrefix(last[len(last)-1], "worker:"), "after its end: %v", last)
	}},
	{"after the root's end, the continuation is told what the runs below it ask", func(w *World) {
		th := w.thread()
		orig, _ := w.chord(th, 1)
		w.complete(w.takeKind("kid"), `1`)
		next := w.state(orig.ID, perdure.Completed).ContinuedBy
		g := w.take("w")
		w.check(g.Run.ID == next, "granted %s, want the continuation %s", g.Run.ID, next)
		child := []perdure.Spawn{{Key: "c", Kind: "low", Class: perdure.Agent}}
		w.commit(g, perdure.Commit{Children: child, Outcome: suspend,
			Waits: wait(perdure.WaitSpec{ID: "join", Type: perdure.WaitChildren, Keys: []string{"c"}})})
		w.commit(w.takeKind("low"), perdure.Commit{Waits: wait(forYes("ok")), Outcome: suspend})
		w.check(w.count(next, perdure.LineWorkerAsks) == 1 && w.count(orig.ID, perdure.LineWorkerAsks) == 0,
			"continuation: %v, original: %v", w.types(next), w.types(orig.ID))
	}},
}

package conformance

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/life"
)

func wait(spec perdure.WaitSpec) []perdure.WaitSpec { return []perdure.WaitSpec{spec} }

var forGo = perdure.WaitSpec{ID: "go", Type: perdure.WaitSignal, Name: "start_task",
	Timeout: perdure.Duration(5 * time.Minute)}

var waitScenarios = []Scenario{
	{"a signal before, during and after anybody waits for it", func(w *World) {
		// Before: it stays in the inbox and satisfies the next wait.
		r := w.task()
		w.do(&life.Signal{Tenant: tenant, RunID: r.ID, Name: "start_task", Data: json.RawMessage(`"early"`)})
		g := w.take("w1")
		ans := w.commit(g, perdure.Commit{Waits: wait(forGo), Outcome: suspend})
		w.check(ans.State == perdure.Queued, "already satisfied: queued in that commit, got %s", ans.State)
		g = w.take("w1")
		w.check(len(g.Inbox) == 1 && g.Inbox[0].WaitID == "go" && string(g.Inbox[0].Data) == `"early"`,
			"the item bears the wait: %+v", g.Inbox)
		w.check(g.Run.Attempt == 1, "a resume costs no attempt")
		// During.
		two := forGo
		two.ID = "go2"
		w.commit(g, perdure.Commit{Ack: []int64{g.Inbox[0].Seq}, Waits: wait(two), Outcome: suspend})
		w.state(r.ID, perdure.Suspended)
		w.do(&life.Signal{Tenant: tenant, RunID: r.ID, Name: "other"})
		w.state(r.ID, perdure.Suspended)
		w.do(&life.Signal{Tenant: tenant, RunID: r.ID, Name: "start_task", Data: json.RawMessage(`2`)})
		w.state(r.ID, perdure.Queued)
		g = w.take("w1")
		w.check(len(g.Inbox) == 2 && g.Inbox[1].WaitID == "go2", "%+v", g.Inbox)
		// After.
		w.complete(g, `1`)
		w.refuse(perdure.CodeRunEnded, &life.Signal{Tenant: tenant, RunID: r.ID, Name: "start_task"})
	}},
	{"a signal counts once per key, and one wait takes one", func(w *World) {
		r := w.task()
		g := w.take("w1")
		for range 3 {
			w.do(&life.Signal{Tenant: tenant, RunID: r.ID, Name: "s", Data: json.RawMessage(`1`), Key: "k1"})
		}
		w.refuse(perdure.CodeReused, &life.Signal{Tenant: tenant, RunID: r.ID, Name: "s",
			Data: json.RawMessage(`2`), Key: "k1"})
		w.do(&life.Signal{Tenant: tenant, RunID: r.ID, Name: "s", Data: json.RawMessage(`2`)})
		for i, want := range []string{"1", "2"} {
			ans := w.commit(g, perdure.Commit{Waits: wait(perdure.WaitSpec{ID: fmt.Sprint("w", i),
				Type: perdure.WaitSignal, Name: "s"}), Outcome: suspend})
			w.check(ans.State == perdure.Queued, "there is one more")
			g = w.take("w1")
			for _, item := range g.Inbox {
				if item.WaitID == fmt.Sprint("w", i) {
					w.check(string(item.Data) == want, "first in, first out: %s", item.Data)
				}
			}
		}
		ans := w.commit(g, perdure.Commit{Waits: wait(perdure.WaitSpec{ID: "w2", Type: perdure.WaitSignal,
			Name: "s"}), Outcome: suspend})
		w.check(ans.State == perdure.Suspended, "each was taken once")
	}},
	{"a wait that nobody answers", func(w *World) {
		r := w.submit(perdure.Submission{Kind: "job", Timeout: perdure.Duration(time.Hour)})
		g := w.take("w1")
		w.commit(g, perdure.Commit{Waits: wait(forGo), Outcome: suspend})
		w.pass(299 * time.Second)
		w.state(r.ID, perdure.Suspended)
		w.pass(2 * time.Second)
		w.state(r.ID, perdure.Queued)
		g = w.take("w1")
		w.check(len(g.Inbox) == 1 && g.Inbox[0].Type == perdure.ItemTimeout && g.Inbox[0].WaitID == "go",
			"a report: %+v", g.Inbox)
		// A signal that comes now is kept for a later wait.
		w.do(&life.Signal{Tenant: tenant, RunID: r.ID, Name: "start_task"})
		w.commit(g, perdure.Commit{Outcome: failed("wait_timeout")})
		w.ended(r.ID, perdure.TimedOut, perdure.CodeWaitTimeout)
	}},
	{"waits without a timeout, and without end", func(w *World) {
		r := w.submit(perdure.Submission{Kind: "job", Class: perdure.Agent})
		g := w.take("w1")
		w.commit(g, perdure.Commit{Waits: []perdure.WaitSpec{{ID: "a", Type: perdure.WaitSignal, Name: "a"}},
			Outcome: suspend})
		w.pass(601 * time.Second)
		w.state(r.ID, perdure.Queued)
		g = w.take("w1")
		w.commit(g, perdure.Commit{Waits: []perdure.WaitSpec{{ID: "b", Type: perdure.WaitSignal, Name: "b",
			Timeout: perdure.Never}}, Outcome: suspend})
		w.passQuietly(2 * time.Hour)
		w.state(r.ID, perdure.Suspended)
		w.Now = r.DeadlineAt
		w.sweep()
		w.ended(r.ID, perdure.TimedOut, perdure.CodeDeadline)
	}},
	{"a timer", func(w *World) {
		r := w.task()
		g := w.take("w1")
		w.commit(g, perdure.Commit{Waits: wait(perdure.WaitSpec{ID: "nap", Type: perdure.WaitTimer,
			Timeout: perdure.Duration(90 * time.Second)}), Outcome: suspend})
		w.pass(89 * time.Second)
		w.state(r.ID, perdure.Suspended)
		w.pass(2 * time.Second)
		g = w.take("w1")
		w.check(g.Inbox[0].Type == perdure.ItemTimer && g.Inbox[0].WaitID == "nap", "%+v", g.Inbox)
	}},
	{"a callback answers one wait, once", func(w *World) {
		r := w.task()
		g := w.take("w1")
		ans := w.commit(g, perdure.Commit{Waits: []perdure.WaitSpec{{ID: "pay", Type: perdure.WaitCallback},
			{ID: "ship", Type: perdure.WaitCallback}}, Outcome: suspend})
		token := ans.Callbacks[0].Token
		flipped := []byte(token)
		flipped[len(flipped)-3] ^= 1
		for _, bad := range []string{"", "cb_", "cb_AAAA", string(flipped), token[:len(token)-4], token[3:]} {
			w.refuse(perdure.CodeNotFound, &life.Callback{Token: bad, Result: json.RawMessage(`1`)})
		}
		w.do(&life.Callback{Token: token, Result: json.RawMessage(`{"paid":true}`)})
		w.state(r.ID, perdure.Queued)
		before := w.fingerprint()
		w.do(&life.Callback{Token: token, Result: json.RawMessage(`{"paid":true}`)})
		w.check(w.fingerprint() == before, "the same again changes nothing")
		w.refuse(perdure.CodeReused, &life.Callback{Token: token, Result: json.RawMessage(`{"paid":false}`)})
		g = w.take("w1")
		w.check(g.Inbox[0].WaitID == "pay" && string(g.Inbox[0].Data) == `{"result":{"paid":true}}`, "%+v", g.Inbox)
		w.complete(g, `1`)
		for range 2 { // after its wait: refused, kept in the log once
			op := &life.Callback{Token: ans.Callbacks[1].Token, Result: json.RawMessage(`1`)}
			err := w.E.Step(w.Now, op)[0]
			w.check(perdure.CodeOf(err) == perdure.CodeWaitClosed || op.Refused != nil &&
				op.Refused.Code == perdure.CodeWaitClosed, "%v %v", err, op.Refused)
		}
		w.check(w.count(r.ID, "wait:closed") == 1, "kept once: %v", w.types(r.ID))
	}},
	{"suspend without an open wait", func(w *World) {
		w.task()
		g := w.take("w1")
		w.refuse(perdure.CodeNothingToWaitFor, w.commitOf(g, perdure.Commit{Outcome: suspend}))
		w.refuse(perdure.CodeInvalid, w.commitOf(g, perdure.Commit{Outcome: &perdure.Outcome{Type: "suspend",
			Waits: []string{"nope"}}}))
		w.commit(g, perdure.Commit{Waits: wait(forGo)})
		w.commit(g, perdure.Commit{Close: []string{"go"}})
		w.refuse(perdure.CodeNothingToWaitFor, w.commitOf(g, perdure.Commit{Outcome: suspend}))
	}},
	{"only the named waits queue the run", func(w *World) {
		r := w.task()
		g := w.take("w1")
		w.commit(g, perdure.Commit{Waits: []perdure.WaitSpec{
			{ID: "a", Type: perdure.WaitSignal, Name: "a"}, {ID: "b", Type: perdure.WaitSignal, Name: "b",
				Timeout: perdure.Duration(time.Minute)}},
			Outcome: &perdure.Outcome{Type: "suspend", Waits: []string{"a"}}})
		w.do(&life.Signal{Tenant: tenant, RunID: r.ID, Name: "b"})
		w.state(r.ID, perdure.Suspended)
		w.pass(2 * time.Minute)
		w.state(r.ID, perdure.Suspended)
		w.do(&life.Signal{Tenant: tenant, RunID: r.ID, Name: "a"})
		w.state(r.ID, perdure.Queued)
		g = w.take("w1")
		w.check(len(g.Inbox) == 2, "both are there: %+v", g.Inbox)
	}},
	{"what ended a wait while the run was running is not slept through", func(w *World) {
		r := w.task()
		g := w.take("w1")
		w.commit(g, perdure.Commit{Waits: []perdure.WaitSpec{{ID: "a", Type: perdure.WaitSignal, Name: "a"},
			{ID: "b", Type: perdure.WaitSignal, Name: "b"}}})
		w.do(&life.Signal{Tenant: tenant, RunID: r.ID, Name: "a"})
		w.state(r.ID, perdure.Running)
		ans := w.commit(g, perdure.Commit{Outcome: suspend})
		w.check(ans.State == perdure.Queued, "the worker has not been told of a: %s", ans.State)
		// Told, by asking: then it may sleep on b.
		g = w.take("w1")
		w.check(len(g.Inbox) == 1, "%+v", g.Inbox)
		ans = w.commit(g, perdure.Commit{Outcome: suspend})
		w.check(ans.State == perdure.Suspended, "%s", ans.State)
	}},
	{"a timeout that passed while the run was running", func(w *World) {
		w.submit(perdure.Submission{Kind: "job", Timeout: perdure.Duration(time.Hour)})
		g := w.take("w1")
		w.commit(g, perdure.Commit{Waits: wait(perdure.WaitSpec{ID: "nap", Type: perdure.WaitTimer,
			Timeout: perdure.Duration(10 * time.Second)})})
		w.pass(20 * time.Second)
		ans := w.commit(g, perdure.Commit{Outcome: suspend})
		w.check(ans.State == perdure.Queued, "%s", ans.State)
	}},
	{"the same epoch writes nothing more after a suspend", func(w *World) {
		w.task()
		g := w.take("w1")
		w.commit(g, perdure.Commit{Waits: wait(forGo), Outcome: suspend})
		w.refuse(perdure.CodeWrongState, w.commitOf(g, perdure.Commit{Outcome: done(`1`)}))
		w.check(len(w.lates(g.Run.ID)) == 0, "and nothing is late about it")
	}},
	{"items that were not acknowledged come back with the next lease", func(w *World) {
		r := w.task()
		g := w.take("w1")
		w.do(&life.Signal{Tenant: tenant, RunID: r.ID, Name: "a", Data: json.RawMessage(`1`)})
		w.do(&life.Signal{Tenant: tenant, RunID: r.ID, Name: "b", Data: json.RawMessage(`2`)})
		in := &life.Inbox{Tenant: tenant, RunID: r.ID, Epoch: g.Run.Epoch}
		w.do(in)
		w.check(len(in.Page) == 2, "%+v", in.Page)
		w.commit(g, perdure.Commit{Ack: []int64{1}})
		w.refuse(perdure.CodeInvalid, w.commitOf(g, perdure.Commit{Ack: []int64{7}}))
		w.pass(75 * time.Second)
		g = w.take("w2")
		w.check(len(g.Inbox) == 1 && g.Inbox[0].Seq == 2, "the second one alone: %+v", g.Inbox)
	}},
	{"a signal in hand that satisfies a new wait may be acknowledged either way", func(w *World) {
		r := w.task()
		w.do(&life.Signal{Tenant: tenant, RunID: r.ID, Name: "a", Data: json.RawMessage(`1`)})
		g := w.take("w1")
		w.check(len(g.Inbox) == 1 && g.Inbox[0].WaitID == "", "%+v", g.Inbox)
		w.commit(g, perdure.Commit{Waits: wait(perdure.WaitSpec{ID: "w", Type: perdure.WaitSignal, Name: "a"})})
		w.commit(g, perdure.Commit{Ack: []int64{1}})
		w.check(w.get(r.ID).InboxOpen == 0, "done")
	}},
	{"a wait is opened once, and as one thing", func(w *World) {
		w.task()
		g := w.take("w1")
		w.commit(g, perdure.Commit{Waits: wait(forGo)})
		before := w.count(g.Run.ID, "wait:opened")
		w.commit(g, perdure.Commit{Waits: wait(forGo)})
		w.check(w.count(g.Run.ID, "wait:opened") == before, "a replay opens it again for nothing")
		other := forGo
		other.Name = "another"
		w.refuse(perdure.CodeNondeterminism, w.commitOf(g, perdure.Commit{Waits: wait(other)}))
	}},
	{"a step is recorded once, with one value", func(w *World) {
		w.task()
		g := w.take("w1")
		w.commit(g, perdure.Commit{Journal: []perdure.JournalEntry{{Key: "a", Value: json.RawMessage(`1`)}}})
		w.commit(g, perdure.Commit{Journal: []perdure.JournalEntry{{Key: "a", Value: json.RawMessage(`1`)},
			{Key: "b", Value: json.RawMessage(`2`)}}})
		w.refuse(perdure.CodeNondeterminism,
			w.commitOf(g, perdure.Commit{Journal: []perdure.JournalEntry{{Key: "a", Value: json.RawMessage(`3`)}}}))
		w.check(w.get(g.Run.ID).JournalSeq == 2, "two entries")
	}},
}

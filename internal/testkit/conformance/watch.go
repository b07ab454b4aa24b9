package conformance

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/store"
)

// corrupt changes the store directly, to test that the watchdog repairs what the engine never does.
type corrupt struct {
	text string
	args []any
}

func (corrupt) Needs() []store.Ref { return nil }

func (b corrupt) Do(tx *kernel.Tx) error {
	tx.DB.Stage(b.text, b.args...)
	return nil
}

// acted counts the actions of a rule.
func (w *World) acted(rule string) (n int) {
	for _, a := range w.Acted {
		if a.Rule == rule {
			n++
		}
	}
	return n
}

var watchdogScenarios = []Scenario{
	{"W1: an item in nobody's hands goes back", func(w *World) {
		r := w.submit(perdure.Submission{Kind: "job", Timeout: perdure.Duration(time.Hour)})
		g := w.take("w1")
		w.do(&life.Signal{Tenant: tenant, RunID: r.ID, Name: "a"})
		w.do(corrupt{"UPDATE inbox SET status='processing', epoch=77 WHERE run_id=?", []any{string(r.ID)}})
		w.pass(15 * time.Second)
		w.check(w.acted("W1") == 1, "%v", w.Acted)
		in := &life.Inbox{Tenant: tenant, RunID: r.ID, Epoch: g.Run.Epoch}
		w.do(in)
		w.check(len(in.Page) == 1, "handed over again")
	}},
	{"W3: a join whose count is wrong, and a chord", func(w *World) {
		p, _ := w.family(2, perdure.ModeAll)
		w.complete(w.takeKind("kid"), `1`)
		w.do(corrupt{"UPDATE waits SET ended=0, ok=0 WHERE run_id=?", []any{string(p.ID)}})
		w.complete(w.takeKind("kid"), `1`)
		w.state(p.ID, perdure.Suspended)
		w.pass(12 * time.Second)
		w.state(p.ID, perdure.Queued)
		w.complete(w.takeKind("parent"), `1`)

		orig, _ := w.chord(w.thread(), 2)
		w.complete(w.takeKind("kid"), `1`)
		w.do(corrupt{"UPDATE gatherings SET ended=0 WHERE id=?", []any{string(orig.ID)}})
		w.complete(w.takeKind("kid"), `1`)
		w.check(w.get(orig.ID).ContinuedBy == "", "missed")
		w.pass(12 * time.Second)
		w.check(w.get(orig.ID).ContinuedBy != "" && w.acted("W3") == 2, "%v", w.Acted)
	}},
	{"W9: an item that satisfies a wait, and items that nobody will read", func(w *World) {
		r := w.submit(perdure.Submission{Kind: "job", Timeout: perdure.Duration(time.Hour)})
		g := w.take("w1")
		w.commit(g, perdure.Commit{Waits: wait(forGo), Outcome: suspend})
		w.do(&life.Signal{Tenant: tenant, RunID: r.ID, Name: "other"})
		w.do(corrupt{"UPDATE waits SET name='other' WHERE run_id=?", []any{string(r.ID)}})
		w.pass(11 * time.Second)
		w.state(r.ID, perdure.Queued)
		w.check(w.acted("W9") == 1, "%v", w.Acted)
		g = w.take("w1")
		w.complete(g, `1`) // without acknowledging it
		w.pass(11 * time.Minute)
		w.view(func(v *store.View) error {
			items, err := v.Inbox.List(tenant, r.ID)
			last := w.Acted[len(w.Acted)-1]
			w.check(last.Name == "pending-wakeup" && last.Run == r.ID,
				"the last action is %+v, want the skipped item of run %s", last, r.ID)
			w.check(items[0].Status == perdure.ItemSkipped && items[0].WatchdogError == "run_ended" &&
				items[0].WatchdogAt == last.At,
				"items %+v, want the first one skipped at %s", items, last.At)
			return err
		})
	}},
	{"W9: a signal that nobody waits for yet is kept", func(w *World) {
		r := w.submit(perdure.Submission{Kind: "job", Class: perdure.Agent})
		w.do(&life.Signal{Tenant: tenant, RunID: r.ID, Name: "go"})
		w.passQuietly(3 * time.Hour)
		g := w.take("w1")
		w.check(len(g.Inbox) == 1, "%+v", g.Inbox)
	}},
	{"W10: whatever a run lives in is gone", func(w *World) {
		queue := w.submit(perdure.Submission{Kind: "job", Queue: "doomed"})
		th := w.thread()
		thread := w.on(th, perdure.Submission{Kind: "chat"})
		p, children := w.family(1, perdure.ModeAll)
		w.do(corrupt{"DELETE FROM queues WHERE name='doomed'", nil})
		w.do(corrupt{"DELETE FROM threads WHERE id=?", []any{string(th)}})
		w.do(corrupt{"UPDATE waits SET targets=targets||'x' WHERE run_id=?", []any{string(p.ID)}})
		w.pass(12 * time.Second)
		w.ended(queue.ID, perdure.Failed, perdure.CodeOrphaned)
		w.ended(thread.ID, perdure.Failed, perdure.CodeOrphaned)
		g := w.takeKind("parent")
		w.check(g.Inbox[0].Outcome == "orphaned", "%+v", g.Inbox)
		w.state(children[0].RunID, perdure.Queued)
		w.complete(g, `1`)
		w.do(corrupt{"UPDATE waits SET targets='' WHERE run_id=?", []any{string(p.ID)}})
	}},
	{"W11 and W13: alerts, never a kill", func(w *World) {
		r := w.submit(perdure.Submission{Kind: "job", Timeout: perdure.Duration(time.Hour)})
		w.pass(12 * time.Minute)
		w.check(w.count(r.ID, "run:slow") == 1, "queued for too long, said once: %v", w.types(r.ID))
		g := w.take("w1")
		w.pass(31 * time.Second)
		w.check(w.count(r.ID, "run:slow") == 2, "silent")
		w.pass(20 * time.Second)
		w.check(w.count(r.ID, "run:slow") == 2, "once per silence")
		for range 70 { // twelve minutes of silent thinking kill nothing
			w.do(&life.Heartbeat{Tenant: tenant, Worker: "w1",
				Beats: []life.BeatOf{{Lease: lease(g), Activity: "llm_thinking"}}})
			w.pass(10 * time.Second)
		}
		w.check(w.count(r.ID, "run:slow") == 3, "no progress: %v", w.types(r.ID))
		w.complete(g, `1`)
		w.check(w.state(r.ID, perdure.Completed).Attempt == 1, "the first attempt")
	}},
	{"W14: a silent worker is offline, and back with its next word", func(w *World) {
		w.poll("w1", 1)
		workers := func() (list []perdure.Worker) {
			w.view(func(v *store.View) (err error) { list, err = v.Workers.List(tenant); return err })
			return list
		}
		w.pass(3 * time.Minute)
		w.check(len(workers()) == 1 && workers()[0].Offline, "%+v", workers())
		w.poll("w1", 1)
		w.check(!workers()[0].Offline, "%+v", workers())
	}},
	{"a batch of rows that need nothing doesn't hide the due row behind it", func(w *World) {
		// More runs than a sweep takes, whose alarms all ring and are held back by a gap …
		const n = 700
		ops := make([]kernel.Op, n)
		for i := range ops {
			ops[i] = &life.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "job",
				Timeout: perdure.Duration(time.Hour)}}
		}
		w.E.Step(w.Now, ops...)
		w.sweep()
		op := &dispatch.Claim{Tenant: tenant, Worker: "w1", Slots: n}
		w.do(op)
		w.check(len(op.Grants) == n, "%d", len(op.Grants))
		due := w.submit(perdure.Submission{Kind: "due", Timeout: perdure.Duration(10 * time.Minute)})
		w.offline(11 * time.Minute)
		// … and one whose deadline has passed.
		w.sweep()
		w.ended(due.ID, perdure.TimedOut, perdure.CodeDeadline)
		w.check(w.acted("W5") == 0 && w.acted("W4") == 0, "held back")
		w.pass(61 * time.Second)
		w.check(w.acted("W5") == n, "%d acted on after the hold", w.acted("W5"))
	}},
	{"a hundred thousand microseconds late is late: deadlines are exact", func(w *World) {
		r := w.submit(perdure.Submission{Kind: "job", Timeout: perdure.Duration(1500 * time.Millisecond)})
		w.Now = r.DeadlineAt - 1
		w.sweep()
		w.state(r.ID, perdure.Queued)
		w.Now = r.DeadlineAt
		w.sweep()
		w.ended(r.ID, perdure.TimedOut, perdure.CodeDeadline)
	}},
	{"ends come before wait timeouts", func(w *World) {
		r := w.submit(perdure.Submission{Kind: "job", Timeout: perdure.Duration(time.Minute)})
		g := w.take("w1")
		w.commit(g, perdure.Commit{Waits: wait(perdure.WaitSpec{ID: "t", Type: perdure.WaitSignal, Name: "s",
			Timeout: perdure.Duration(30 * time.Second)}), Outcome: suspend})
		w.Now = w.Now.Add(2 * time.Minute)
		w.sweep()
		w.ended(r.ID, perdure.TimedOut, perdure.CodeDeadline)
		w.check(w.count(r.ID, "wait:timed_out") == 0, "%v", w.types(r.ID))
	}},
	{"the output contract of an end that the watchdog writes", func(w *World) {
		th := w.thread()
		p := w.submit(perdure.Submission{Kind: "parent", Timeout: perdure.Duration(time.Hour)})
		g := w.takeKind("parent")
		ans := w.commit(g, perdure.Commit{Children: []perdure.Spawn{{Key: "c", Kind: "kid", ThreadID: th,
			Timeout: perdure.Duration(time.Minute)}},
			Waits: wait(perdure.WaitSpec{ID: "j", Type: perdure.WaitChildren, Keys: []string{"c"}}), Outcome: suspend})
		child := ans.Children[0].RunID
		next := w.on(th, perdure.Submission{Kind: "next"})
		k := w.takeKind("kid")
		w.do(&life.Heartbeat{Tenant: tenant, Worker: "w",
			Beats: []life.BeatOf{{Lease: lease(k), Activity: "tool_executing",
				Progress: json.RawMessage(`{"found":3}`)}}})
		w.pass(40 * time.Second)
		w.beat(k)
		w.pass(21 * time.Second)
		d := w.get(child)
		w.check(d.State == perdure.TimedOut && d.Epoch > k.Run.Epoch, "epoch raised")
		want := `{"reason":"deadline_exceeded","message":"the run was not done by its deadline",` +
			`"activity":"tool_executing","partial":{"found":3},"attempts":1,"journal_entries":0,"seen_at":` +
			instant(d.SeenAt) + `,"deadline_at":` + instant(d.DeadlineAt) + `}`
		w.check(string(d.Fallback) == want, "the fallback: %s", d.Fallback)
		lines := w.lines(child)
		last := lines[len(lines)-1]
		var data map[string]any
		w.check(json.Unmarshal([]byte(last.Data), &data) == nil &&
			data["deliverable_id"] == d.DeliverableID() && data["parent_run_id"] == string(p.ID) &&
			data["deadline_at"] != nil && data["started_at"] != nil, "the last line: %s", last.Data)
		w.check(len(w.messages(th)) == 1, "a readable message: %v", w.texts(th))
		w.state(p.ID, perdure.Queued)
		w.check(w.takeKind("next").Run.ID == next.ID, "the thread's next run is claimable")
	}},
	{"a delayed run is claimable when its time has come", func(w *World) {
		r := w.submit(perdure.Submission{Kind: "job", Class: perdure.Task, Delay: perdure.Duration(time.Minute)})
		w.check(r.DeadlineAt == w.Now.Add(11*time.Minute), "its timeout counts from then")
		w.check(len(w.poll("w1", 1)) == 0, "not yet")
		w.pass(time.Minute)
		w.check(len(w.poll("w1", 1)) == 1, "now")
	}},
	{"two watchdogs that sweep at once do everything once", func(w *World) {
		var ids []perdure.RunID
		for i := range 20 {
			ids = append(ids, w.submit(perdure.Submission{Kind: fmt.Sprint("k", i),
				Timeout: perdure.Duration(time.Minute)}).ID)
		}
		w.Now = w.Now.Add(2 * time.Minute)
		a, b := w.W.Pass(), w.W.Pass()
		for _, err := range w.E.Step(w.Now, a, b) {
			w.check(err == nil, "%v", err)
		}
		w.check(len(a.Actions) == 20 && len(b.Actions) == 0, "%d and %d", len(a.Actions), len(b.Actions))
		for _, id := range ids {
			w.check(w.count(id, "run:timed_out") == 1, "once")
		}
	}},
}

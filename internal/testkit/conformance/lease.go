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

var leaseScenarios = []Scenario{
	{"a frozen worker completes after its run was taken over", func(w *World) {
		r := w.task()
		frozen := w.take("frozen")
		w.pass(61 * time.Second)
		w.check(w.state(r.ID, perdure.Queued).Attempt == 2, "the lost lease costs an attempt")
		w.pass(2 * time.Second)
		g := w.take("healthy")
		w.check(g.Run.Epoch > frozen.Run.Epoch, "a higher epoch")

		late := w.commitOf(frozen, perdure.Commit{Outcome: done(`"late"`)})
		w.do(late)
		w.check(late.Refused != nil && late.Refused.Code == perdure.CodeStaleEpoch, "refused as stale: %v",
			late.Refused)
		w.state(r.ID, perdure.Running)
		w.do(w.commitOf(frozen, late.Commit)) // sent again: kept once
		w.check(len(w.lates(r.ID)) == 1 && w.count(r.ID, "run:late_result") == 1, "kept once")

		w.complete(g, `"fresh"`)
		d := w.get(r.ID)
		w.check(string(d.ResultText) == `"fresh"`, "the new result stands: %s", d.ResultText)
		late = w.commitOf(frozen, perdure.Commit{Outcome: done(`"later"`)})
		w.do(late)
		w.check(late.Refused != nil && len(w.lates(r.ID)) == 2, "kept for an ended run too")
	}},
	{"a commit sent again after a lost response", func(w *World) {
		w.task()
		g := w.take("w1")
		op := w.commitOf(g, perdure.Commit{ID: "same", Journal: []perdure.JournalEntry{{Key: "step#1",
			Value: json.RawMessage(`1`)}},
			Children: []perdure.Spawn{{Key: "kid#1", Kind: "kid"}}, Events: []perdure.Emitted{{Type: "x:note"}},
			Waits: []perdure.WaitSpec{{ID: "w", Type: perdure.WaitCallback}}})
		w.do(op)
		first, before := op.Answer, w.fingerprint()
		w.do(op)
		w.check(fmt.Sprint(op.Answer) == fmt.Sprint(first), "the same answer: %+v, %+v", op.Answer, first)
		w.check(w.fingerprint() == before, "no second child, no second event")
		other := w.commitOf(g, perdure.Commit{ID: "same"})
		w.refuse(perdure.CodeReused, other)

		end := w.commitOf(g, perdure.Commit{ID: "end", Outcome: done(`1`)})
		w.do(end)
		before = w.fingerprint()
		w.do(end)
		w.check(end.Refused == nil && end.Answer.OK && w.fingerprint() == before,
			"the end is answered as the first time")
	}},
	{"a commit with a long answer sent again, at once and later", func(w *World) {
		w.task()
		g := w.take("w1")
		var kids []perdure.Spawn
		for i := range 30 {
			kids = append(kids, perdure.Spawn{Key: fmt.Sprintf("kid#%d", i), Kind: "kid"})
		}
		short, long := w.commitOf(g, perdure.Commit{ID: "short"}),
			w.commitOf(g, perdure.Commit{ID: "long", Children: kids})
		after := w.commitOf(g, perdure.Commit{ID: "after", Outcome: done(`1`)})
		var first []string
		for _, op := range []*life.Commit{short, long, after} {
			w.do(op)
			first = append(first, fmt.Sprint(op.Answer))
			before := w.fingerprint()
			w.do(op)
			w.check(fmt.Sprint(op.Answer) == first[len(first)-1] && w.fingerprint() == before,
				"the same answer at once: %+v", op.Answer)
		}
		before := w.fingerprint()
		for i, op := range []*life.Commit{short, long, after} {
			w.do(op)
			w.check(fmt.Sprint(op.Answer) == first[i] && w.fingerprint() == before,
				"the same answer later: %+v", op.Answer)
		}
		w.refuse(perdure.CodeReused, w.commitOf(g, perdure.Commit{ID: "long"}))
	}},
	{"progress that a heartbeat and a commit both tell", func(w *World) {
		r := w.task()
		g := w.take("w1")
		note := func(p string) perdure.Emitted {
			return perdure.Emitted{Type: perdure.LineProgress, Data: json.RawMessage(p)}
		}
		w.do(&life.Heartbeat{Tenant: tenant, Worker: "w1",
			Beats: []life.BeatOf{{Lease: lease(g), Progress: json.RawMessage(`{"percent":100}`)}}})
		w.commit(g, perdure.Commit{Events: []perdure.Emitted{note(`{"percent":100}`)}, Outcome: done(`1`)})
		w.check(w.count(r.ID, perdure.LineProgress) == 1, "it is one line")
		w.check(string(w.get(r.ID).Progress) == `{"percent":100}`, "and stands")

		r = w.task()
		g = w.take("w1")
		for range 2 {
			w.commit(g, perdure.Commit{Events: []perdure.Emitted{note(`1`)}})
		}
		w.commit(g, perdure.Commit{Events: []perdure.Emitted{note(`2`)}, Outcome: done(`1`)})
		w.check(w.count(r.ID, perdure.LineProgress) == 3,
			"what a worker commits on its way is told as often as it says so: %d",
			w.count(r.ID, perdure.LineProgress))
	}},
	{"progress that two attempts tell alike", func(w *World) {
		half := func(g dispatch.Grant) {
			for range 2 {
				w.do(&life.Heartbeat{Tenant: tenant, Worker: g.Run.Worker,
					Beats: []life.BeatOf{{Lease: lease(g), Progress: json.RawMessage(`{"percent":50}`)}}})
			}
		}
		again := func(r perdure.Run) dispatch.Grant {
			w.pass(time.Minute + 2*time.Second)
			w.state(r.ID, perdure.Queued)
			return w.take("w2")
		}
		r := w.task()
		half(w.take("w1"))
		g := again(r)
		half(g)
		w.check(w.count(r.ID, perdure.LineProgress) == 2, "each attempt tells once how far it got: %d",
			w.count(r.ID, perdure.LineProgress))
		w.complete(g, `1`)

		r = w.task()
		half(w.take("w1"))
		g = again(r)
		w.commit(g, perdure.Commit{Events: []perdure.Emitted{{Type: perdure.LineProgress,
			Data: json.RawMessage(`{"percent":50}`)}}, Outcome: done(`1`)})
		w.check(w.count(r.ID, perdure.LineProgress) == 2, "with its last word too: %d",
			w.count(r.ID, perdure.LineProgress))

		r = w.task()
		g = w.take("w1")
		half(g)
		w.commit(g, perdure.Commit{Waits: wait(perdure.WaitSpec{ID: "s", Type: perdure.WaitSignal, Name: "go"}),
			Outcome: suspend})
		w.do(&life.Signal{Tenant: tenant, RunID: r.ID, Name: "go"})
		half(w.take("w2"))
		w.check(w.count(r.ID, perdure.LineProgress) == 1, "who was resumed goes on where it was: %d",
			w.count(r.ID, perdure.LineProgress))
	}},
	{"a worker that vanishes after its poll", func(w *World) {
		r := w.task()
		g1 := w.poll("gone", 1)
		w.pass(4 * time.Second)
		w.check(len(w.poll("w2", 1)) == 0, "not granted again before dispatched_retry")
		w.pass(2 * time.Second)
		g2 := w.poll("w2", 1)
		w.check(len(g2) == 1 && g2[0].Run.Epoch == g1[0].Run.Epoch+1 && g2[0].Run.State == perdure.Dispatched,
			"granted again: %+v", g2)
		w.refuseLease(perdure.CodeStaleEpoch, g1[0])
		w.do(&life.Start{Tenant: tenant, Worker: "w2", Leases: []life.Lease{lease(g2[0])}})
		w.complete(g2[0], `1`)
		w.check(w.state(r.ID, perdure.Completed).Attempt == 1, "a lost dispatch costs no attempt")
	}},
	{"a lost poll answer with start:true is redelivered as freely", func(w *World) {
		r := w.task()
		op := &dispatch.Claim{Tenant: tenant, Worker: "gone", Slots: 1, Start: true}
		w.do(op)
		w.pass(6 * time.Second)
		g := w.take("w2")
		w.complete(g, `1`)
		w.check(w.state(r.ID, perdure.Completed).Attempt == 1, "no attempt")
	}},
	{"a dispatch that nobody starts goes back to the queue", func(w *World) {
		r := w.task()
		w.poll("gone", 1)
		w.pass(31 * time.Second)
		got := w.state(r.ID, perdure.Queued)
		w.check(got.Attempt == 1 && got.Grants == 1, "queued, no attempt spent: %+v", got)
	}},
	{"a poison run is a dead letter after ten deliveries", func(w *World) {
		r := w.submit(perdure.Submission{Kind: "job", Timeout: perdure.Duration(time.Hour)})
		n := 0
		for range 2000 {
			n += len(w.poll("dies", 1))
			if w.get(r.ID).State.Terminal() {
				break
			}
			w.pass(2 * time.Second)
		}
		w.check(n == 10, "%d deliveries", n)
		w.ended(r.ID, perdure.TimedOut, perdure.CodeDispatchTimeout)
		w.view(func(v *store.View) error {
			dead, err := v.DeadLetters.List(tenant, store.LetterFilter{Limit: 10})
			w.check(len(dead) == 1 && dead[0].RunID == r.ID &&
				dead[0].Cause == string(perdure.CodeDispatchTimeout), "a dead letter: %+v", dead)
			return err
		})
	}},
	{"ten thousand poison runs don't delay a healthy one", func(w *World) {
		// Submit in batches, as a group commit does.
		const n = 10000
		for range n / 250 {
			ops := make([]kernel.Op, 250)
			for i := range ops {
				ops[i] = &life.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "poison",
					Timeout: perdure.Duration(time.Hour)}}
			}
			for _, err := range w.E.Step(w.Now, ops...) {
				w.check(err == nil, "%v", err)
			}
		}
		healthy := w.submit(perdure.Submission{Kind: "job"})
		// A worker takes poisonous runs and dies. The backlog does not delay the worker of the
		// healthy run …
		w.poll("dies", 500)
		op := &dispatch.Claim{Tenant: tenant, Worker: "w2", Kinds: []string{"job"}, Slots: 1, Start: true}
		w.do(op)
		w.check(len(op.Grants) == 1 && op.Grants[0].Run.ID == healthy.ID, "the healthy run is granted at once")
		w.complete(op.Grants[0], `1`)
		// … and its deadlines and those of the poison are honoured in one pass of time.
		due := w.submit(perdure.Submission{Kind: "job", Timeout: perdure.Duration(20 * time.Second)})
		w.pass(20 * time.Second)
		w.ended(due.ID, perdure.TimedOut, perdure.CodeDeadline)
		w.check(w.get(due.ID).FinishedAt.Sub(due.DeadlineAt) < 2*time.Second, "within a sweep")
	}},
	{"a lost lease is retried until the attempts are used up", func(w *World) {
		r := w.task()
		for i := range 3 {
			g := w.take("dies")
			w.check(g.Run.Attempt == i+1, "attempt %d", g.Run.Attempt)
			w.pass(75 * time.Second)
		}
		got := w.ended(r.ID, perdure.Failed, perdure.CodeAttemptsExhausted)
		w.check(got.Fallback != "", "a fallback deliverable")
		w.view(func(v *store.View) error {
			dead, err := v.DeadLetters.List(tenant, store.LetterFilter{Limit: 10})
			w.check(len(dead) == 1, "a dead letter")
			return err
		})
	}},
	{"progress clears the count of lost attempts", func(w *World) {
		r := w.submit(perdure.Submission{Kind: "job", Timeout: perdure.Duration(time.Hour)})
		for i := range 6 {
			g := w.take("dies")
			w.commit(g, perdure.Commit{Journal: []perdure.JournalEntry{{Key: fmt.Sprintf("s#%d", i),
				Value: json.RawMessage(`1`)}}})
			w.pass(75 * time.Second)
		}
		got := w.state(r.ID, perdure.Queued)
		w.check(got.Attempt == 7, "an agent that makes progress doesn't die at its third deploy: attempt %d",
			got.Attempt)
	}},
	{"a failure is retried with backoff, then a dead letter with its own code", func(w *World) {
		r := w.task()
		for range 3 {
			g := w.take("w1")
			w.commit(g, perdure.Commit{Outcome: failed("model_down")})
			w.pass(10 * time.Second)
		}
		w.ended(r.ID, perdure.Failed, "model_down")
		w.check(w.count(r.ID, "run:retrying") == 2 && w.count(r.ID, "run:dead_lettered") == 1, "lines: %v",
			w.types(r.ID))
		last := w.lines(r.ID)
		w.check(last[len(last)-1].Type == "run:failed", "the last line is the end: %v", w.types(r.ID))
	}},
	{"a failure that is not retryable ends at once, without a dead letter", func(w *World) {
		r := w.task()
		no := false
		o := failed("bad_input")
		o.Retryable = &no
		w.commit(w.take("w1"), perdure.Commit{Outcome: o})
		w.ended(r.ID, perdure.Failed, "bad_input")
		w.view(func(v *store.View) error {
			dead, err := v.DeadLetters.List(tenant, store.LetterFilter{Limit: 10})
			w.check(len(dead) == 0, "no dead letter")
			return err
		})
	}},
	{"reject before and after the start", func(w *World) {
		for _, start := range []bool{false, true} {
			r := w.task()
			op := &dispatch.Claim{Tenant: tenant, Worker: "w", Slots: 1, Start: start}
			w.do(op)
			w.commit(op.Grants[0], perdure.Commit{Outcome: &perdure.Outcome{Type: perdure.OutcomeReject,
				Reason: "signature_invalid"}})
			w.ended(r.ID, perdure.Failed, perdure.CodeSignatureInvalid)
			w.check(w.count(r.ID, "run:dead_lettered") == 1, "a dead letter")
		}
	}},
	{"release costs no attempt", func(w *World) {
		r := w.task()
		for range 5 {
			g := w.take("leaving")
			op := &life.Release{Tenant: tenant, Worker: "leaving", Leases: []life.Lease{lease(g)}}
			w.do(op)
			w.check(op.Results[0].OK, "released: %+v", op.Results)
			w.refuseLease(perdure.CodeStaleEpoch, g)
		}
		w.check(w.state(r.ID, perdure.Queued).Attempt == 1, "no attempt")
	}},
	{"a heartbeat keeps a lease, says what is lost and what is to stop", func(w *World) {
		r := w.task()
		g := w.take("w1")
		for range 12 {
			w.pass(20 * time.Second)
			w.check(len(w.beat(g).Lost) == 0, "held")
		}
		w.check(w.state(r.ID, perdure.Running).Attempt == 1, "still the first attempt")
		w.do(&life.Cancel{Tenant: tenant, RunID: r.ID, Reason: "enough"})
		w.check(len(w.beat(g).Cancel) == 1, "told to stop")
		w.pass(31 * time.Second)
		lost := w.beat(g).Lost
		w.check(len(lost) == 1 && lost[0].Error.Code == perdure.CodeStaleEpoch, "lost: %+v", lost)
	}},
	{"heartbeats don't make the log grow with time alone", func(w *World) {
		r := w.submit(perdure.Submission{Kind: "job", Timeout: perdure.Duration(time.Hour)})
		g := w.take("w1")
		before := len(w.lines(r.ID))
		for range 60 {
			w.pass(10 * time.Second)
			w.do(&life.Heartbeat{Tenant: tenant, Worker: "w1",
				Beats: []life.BeatOf{{Lease: lease(g), Activity: "llm_thinking"}}})
		}
		n := w.count(r.ID, "run:heartbeat")
		w.check(n >= 9 && n <= 12, "%d heartbeat lines in ten minutes", n)
		w.check(len(w.lines(r.ID)) < before+14, "%v", w.types(r.ID))
	}},
	{"a server that is away for three hours while workers live", func(w *World) {
		r := w.submit(perdure.Submission{Kind: "job", Class: perdure.Agent})
		short := w.submit(perdure.Submission{Kind: "job", Timeout: perdure.Duration(time.Hour)})
		lost := w.submit(perdure.Submission{Kind: "job", Class: perdure.Agent})
		w.sweep()
		a, b := w.take("w1"), w.take("w2")
		c := w.take("dead")
		w.check(a.Run.ID == r.ID && b.Run.ID == short.ID && c.Run.ID == lost.ID, "granted in order")
		w.pass(5 * time.Second)
		w.offline(3 * time.Hour)
		w.sweep()
		w.state(r.ID, perdure.Running)
		w.state(lost.ID, perdure.Running)
		// The worker's last report is accepted within the spare time, even past the deadline.
		w.Now = w.Now.Add(10 * time.Second)
		w.sweep()
		w.complete(b, `"kept"`)
		w.state(short.ID, perdure.Completed)
		w.beat(a)
		w.pass(40 * time.Second)
		w.beat(a)
		w.check(w.state(r.ID, perdure.Running).Attempt == 1, "the restart costs no attempt")
		w.pass(40 * time.Second)
		w.check(w.get(lost.ID).Attempt == 2, "whoever did not come back is replaced after one lease")
		w.complete(a, `1`)
	}},
	{"an absence costs nobody anything but their deadline", func(w *World) {
		past := w.submit(perdure.Submission{Kind: "job", Timeout: perdure.Duration(time.Hour)})
		w.sweep()
		w.offline(3 * time.Hour)
		w.sweep()
		w.ended(past.ID, perdure.TimedOut, perdure.CodeDeadline)
	}},
	{"absences one after the other put a deadline off once", func(w *World) {
		r := w.submit(perdure.Submission{Kind: "job", Timeout: perdure.Duration(time.Minute)})
		w.sweep()
		g := w.take("w1")
		w.pass(50 * time.Second)
		w.beat(g)
		w.offline(20 * time.Second)
		w.sweep()
		w.beat(g)
		w.state(r.ID, perdure.Running) // it is spared
		w.offline(6 * time.Second)
		w.sweep()
		w.ended(r.ID, perdure.TimedOut, perdure.CodeDeadline)
	}},
	{"a commit and a heartbeat on a dispatched run start it", func(w *World) {
		a, b := w.task(), w.task()
		g := w.poll("w1", 2)
		w.commit(g[0], perdure.Commit{Events: []perdure.Emitted{{Type: "x:hello"}}})
		w.beat(g[1])
		w.state(a.ID, perdure.Running)
		w.state(b.ID, perdure.Running)
	}},
	{"an agent with ten thousand journal entries", func(w *World) {
		w.submit(perdure.Submission{Kind: "job", Class: perdure.Agent})
		g := w.take("w1")
		value := json.RawMessage(`"` + string(make200()) + `"`)
		for i := range 20 {
			var part []perdure.JournalEntry
			for k := range 500 {
				part = append(part, perdure.JournalEntry{Key: fmt.Sprintf("step#%d", i*500+k), Value: value})
			}
			w.commit(g, perdure.Commit{Journal: part})
		}
		w.do(&life.Release{Tenant: tenant, Worker: "w1", Leases: []life.Lease{lease(g)}})
		g = w.take("w2")
		size := 0
		for _, j := range g.Journal {
			size += len(j.Key) + len(j.Value)
		}
		w.check(size <= life.GrantMax && size > life.GrantMax*9/10 && g.JournalNext > 0,
			"the grant has %d bytes, more after %d", size, g.JournalNext)
		have, next := len(g.Journal), g.JournalNext
		for next > 0 {
			op := &life.Journal{Tenant: tenant, RunID: g.Run.ID, Epoch: g.Run.Epoch, After: next}
			w.do(op)
			w.check(op.Page[0].Seq == next+1, "no gap")
			have, next = have+len(op.Page), op.Next
		}
		w.check(have == 10000, "%d entries in all", have)
		w.complete(g, `1`)
	}},
	{"one poll takes the first by priority, then those that slept, then age", func(w *World) {
		old := w.submit(perdure.Submission{Kind: "job"})
		w.Now = w.Now.Add(time.Second)
		urgent := w.submit(perdure.Submission{Kind: "job", Priority: 5})
		w.Now = w.Now.Add(time.Second)
		newer := w.submit(perdure.Submission{Kind: "other"})
		g := w.poll("w1", 3)
		w.check(g[0].Run.ID == urgent.ID && g[1].Run.ID == old.ID && g[2].Run.ID == newer.ID, "order")
	}},
	{"a poll names its kinds and queues, and other tenants' runs stay theirs", func(w *World) {
		w.submit(perdure.Submission{Kind: "a"})
		w.submit(perdure.Submission{Kind: "b", Queue: "slow"})
		poll := func(op *dispatch.Claim) int {
			op.Worker, op.Slots = "w", 10
			w.do(op)
			return len(op.Grants)
		}
		w.check(poll(&dispatch.Claim{Tenant: "other"}) == 0, "another tenant")
		w.check(poll(&dispatch.Claim{Tenant: tenant, Kinds: []string{"c"}}) == 0, "another kind")
		w.check(poll(&dispatch.Claim{Tenant: tenant, Queues: []string{"slow"}, Kinds: []string{"a"}}) == 0,
			"another queue")
		w.check(poll(&dispatch.Claim{Tenant: tenant, Queues: []string{"slow"}}) == 1, "its queue")
		w.check(poll(&dispatch.Claim{Tenant: "platform", AnyTenant: true}) == 1, "a worker of the platform")
	}},
}

func make200() []byte {
	b := make([]byte, 200)
	for i := range b {
		b[i] = 'a' + byte(i%26)
	}
	return b
}

// refuseLease checks that every call of a worker refuses a lease that no longer holds.
func (w *World) refuseLease(code perdure.Code, g dispatch.Grant) {
	w.t.Helper()
	w.refuse(code, w.commitOf(g, perdure.Commit{Journal: []perdure.JournalEntry{{Key: "late",
		Value: json.RawMessage(`1`)}}}))
	w.refuse(code, &life.Inbox{Tenant: tenant, RunID: g.Run.ID, Epoch: g.Run.Epoch})
	before := w.fingerprint()
	start := &life.Start{Tenant: tenant, Worker: "x", Leases: []life.Lease{lease(g)}}
	w.do(start)
	w.check(start.Results[0].Error != nil && start.Results[0].Error.Code == code, "start: %+v", start.Results)
	beat := w.beat(g)
	w.check(len(beat.Lost) == 1 && beat.Lost[0].Error.Code == code, "heartbeat: %+v", beat.Lost)
	release := &life.Release{Tenant: tenant, Worker: "x", Leases: []life.Lease{lease(g)}}
	w.do(release)
	w.check(release.Results[0].Error != nil, "release: %+v", release.Results)
	w.check(w.fingerprint() == before, "nothing changed")
}

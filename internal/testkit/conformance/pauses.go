package conformance

import (
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/reads"
	"github.com/perdure/perdure/internal/server/engine/rules"
)

// pause pauses a queue until it is resumed.
func (w *World) pause(queue, reason string) perdure.QueuePause {
	w.t.Helper()
	op := &rules.PauseQueue{Tenant: tenant, Queue: queue, Reason: reason}
	w.do(op)
	return op.Paused
}

func (w *World) resume(queue string) {
	w.t.Helper()
	w.do(&rules.ResumeQueue{Tenant: tenant, Queue: queue})
}

// pauseOf reads the pause of a queue as a list of queues shows it.
func (w *World) pauseOf(queue string) *perdure.QueuePause {
	w.t.Helper()
	list, _, err := w.E.Queues(w.ctx(), tenant, kernel.Page{Limit: 1000})
	w.check(err == nil, "queues: %v", err)
	for _, q := range list {
		if q.Name == queue {
			return q.Paused
		}
	}
	w.t.Fatalf("no queue %s", queue)
	return nil
}

// waitsFor checks why a run waits, wherever that is said.
func (w *World) waitsFor(id perdure.RunID, want perdure.WaitReason) *perdure.WaitingFor {
	w.t.Helper()
	d := w.get(id)
	a, err := w.E.Runs.Activity(w.ctx(), tenant, id)
	w.check(err == nil, "activity: %v", err)
	page, err := w.E.Runs.Page(w.ctx(), tenant, reads.RunFilter{Limit: 100})
	w.check(err == nil, "list: %v", err)
	var listed *perdure.WaitingFor
	for i := range page.Runs {
		if page.Runs[i].ID == id {
			listed = page.WaitingFor[i]
		}
	}
	for _, why := range []*perdure.WaitingFor{d.WaitingFor, a.WaitingFor, listed} {
		got := perdure.WaitReason("")
		if why != nil {
			got = why.Reason
		}
		w.check(got == want, "run, activity and list: %+v, %+v, %+v, want %q", d.WaitingFor, a.WaitingFor, listed, want)
	}
	return d.WaitingFor
}

var pauseScenarios = []Scenario{
	{"a queued run says why it waits, by the rules of the grants", func(w *World) {
		r := w.submit(perdure.Submission{Kind: "job"})
		w.waitsFor(r.ID, perdure.WaitingUnserved)
		w.pause(perdure.DefaultQueue, "a bad deploy")
		why := w.waitsFor(r.ID, perdure.WaitingQueuePaused)
		w.check(why.Since == w.Now && why.Until == 0, "paused: %+v", why)
		w.restart()
		w.waitsFor(r.ID, perdure.WaitingQueuePaused)
		w.resume(perdure.DefaultQueue)
		w.waitsFor(r.ID, perdure.WaitingUnserved)
		g := w.take("w")
		w.waitsFor(r.ID, "")

		second := w.submit(perdure.Submission{Kind: "job"})
		why = w.waitsFor(second.ID, perdure.WaitingNoFreeSlot)
		w.check(why.Since == second.ReadyAt, "no free slot: %+v", why)
		w.commit(g, perdure.Commit{Outcome: &perdure.Outcome{Type: perdure.OutcomeFail,
			Error: &perdure.Failure{Code: "busy"}}})
		why = w.waitsFor(r.ID, perdure.WaitingNotBefore)
		w.check(why.Until > w.Now, "tried again: %+v", why)
		later := w.submit(perdure.Submission{Kind: "job", Delay: minutes(10)})
		why = w.waitsFor(later.ID, perdure.WaitingNotBefore)
		w.check(why.Until == w.Now.Add(10*time.Minute), "started for later: %+v", why)

		th := w.thread()
		w.on(th, perdure.Submission{Kind: "job"})
		w.waitsFor(w.on(th, perdure.Submission{Kind: "job"}).ID, perdure.WaitingThreadBusy)
	}},
	{"a pause holds alerts up whatever else a run waits for", func(w *World) {
		w.signWith("a")
		w.requireSignatures(true)
		r := w.submit(perdure.Submission{Kind: "job"})
		w.pause(perdure.DefaultQueue, "a bad deploy")
		w.signWith("")
		w.waitsFor(r.ID, perdure.WaitingQueuePaused)
		w.pass(w.E.Policy().QueuedAlert + time.Minute)
		w.check(w.lastLine(r.ID, perdure.LineSlow) == "", "a run of a paused queue was alerted: %s",
			w.lastLine(r.ID, perdure.LineSlow))
		w.resume(perdure.DefaultQueue)
		w.pass(w.E.Policy().QueuedAlert + 2*time.Hour)
		w.check(w.lastLine(r.ID, perdure.LineSlow) != "", "a run that nobody takes was not alerted after the pause")
	}},
	{"a held run says which build has a defect", func(w *World) {
		r := w.agentRun()
		w.hold("7")
		why := w.waitsFor(r.ID, perdure.WaitingHeld)
		w.check(strings.Contains(why.Text, "build 7") && why.Until > w.Now, "held: %+v", why)
		w.do(&life.ReleaseHold{Tenant: tenant, RunID: r.ID})
		w.waitsFor(r.ID, perdure.WaitingNoFreeSlot)
		w.takeAs("8")
		w.waitsFor(r.ID, "")
	}},
	{"a run that this server can't verify says so", func(w *World) {
		w.signWith("a")
		w.requireSignatures(true)
		r := w.submit(perdure.Submission{Kind: "job"})
		w.waitsFor(r.ID, perdure.WaitingUnserved)
		w.signWith("")
		w.waitsFor(r.ID, perdure.WaitingNoSigner)
		w.refuse(perdure.CodeNoSigner, &dispatch.Claim{Tenant: tenant, Worker: "w", Slots: 1})
		w.refuse(perdure.CodeNoSigner, &dispatch.Claim{Tenant: tenant, Worker: "w", Slots: 1,
			Runs: []perdure.RunID{r.ID}})
		w.signWith("a")
		w.check(w.take("w").Run.ID == r.ID, "with the key it is granted")
	}},
	{"a paused queue accepts runs, keeps those that run, and grants none", func(w *World) {
		held := w.submit(perdure.Submission{Kind: "job"})
		running := w.take("w")
		p := w.pause(perdure.DefaultQueue, "a bad deploy")
		w.check(p.At == w.Now && p.Until == 0 && p.Reason == "a bad deploy", "paused: %+v", p)
		waits := w.submit(perdure.Submission{Kind: "job"})
		other := w.submit(perdure.Submission{Kind: "job", Queue: "other"})
		theirs := &life.Submit{Tenant: "theirs", Submission: perdure.Submission{Kind: "job"}}
		w.do(theirs)

		granted := func(op *dispatch.Claim) (ids []perdure.RunID) {
			w.do(op)
			for _, g := range op.Grants {
				ids = append(ids, g.Run.ID)
			}
			return ids
		}
		both := []string{perdure.DefaultQueue, "other"}
		for range 2 { // also after a restart
			for _, x := range []struct {
				name string
				op   *dispatch.Claim
			}{
				{"a poll", &dispatch.Claim{Tenant: tenant, Worker: "w", Slots: 9}},
				{"a poll for its kind", &dispatch.Claim{Tenant: tenant, Worker: "w", Slots: 9, Kinds: []string{"job"}}},
				{"a poll of another build", &dispatch.Claim{Tenant: tenant, Worker: "w", Slots: 9, Build: "2"}},
				{"a poll for this run", &dispatch.Claim{Tenant: tenant, Worker: "w", Slots: 9,
					Runs: []perdure.RunID{waits.ID}}},
			} {
				ids := granted(x.op)
				w.check(len(ids) == 0, "%s got %v from a paused queue", x.name, ids)
			}
			w.restart()
		}
		ids := granted(&dispatch.Claim{Tenant: tenant, Worker: "w", Slots: 9, Queues: both})
		w.check(len(ids) == 1 && ids[0] == other.ID, "a poll for both queues got %v, want %s", ids, other.ID)
		ids = granted(&dispatch.Claim{Tenant: "ops", AnyTenant: true, Worker: "p", Slots: 9})
		w.check(len(ids) == 1 && ids[0] == theirs.Run.ID, "a poll for all tenants got %v, want %s", ids, theirs.Run.ID)
		w.complete(running, `1`)
		w.state(held.ID, perdure.Completed)

		a, err := w.E.Runs.Activity(w.ctx(), tenant, waits.ID)
		w.check(err == nil && a.Paused != nil && a.Paused.Reason == "a bad deploy", "activity: %+v, %v", a.Paused, err)
		w.check(w.pauseOf(perdure.DefaultQueue) != nil && w.pauseOf("other") == nil, "the list of queues")

		w.resume(perdure.DefaultQueue)
		w.check(w.pauseOf(perdure.DefaultQueue) == nil, "a queue that was resumed is paused")
		ids = granted(&dispatch.Claim{Tenant: tenant, Worker: "w", Slots: 9})
		w.check(len(ids) == 1 && ids[0] == waits.ID, "after the pause a poll got %v, want %s", ids, waits.ID)
	}},
	{"a run that a pause has passed by is granted to no poll that stands by", func(w *World) {
		w.pause(perdure.DefaultQueue, "")
		claim := &dispatch.Claim{Tenant: tenant, Worker: "w", Slots: 1}
		w.do(claim)
		s := w.E.StandBy(claim)
		r := w.task()
		grants := s.End()
		w.check(len(grants) == 0, "a poll that stands by got a run of a paused queue")
		w.resume(perdure.DefaultQueue)
		w.check(w.take("w").Run.ID == r.ID, "after the pause")

		w.do(claim)
		s = w.E.StandBy(claim)
		r = w.task()
		grants = s.End()
		w.check(len(grants) == 1 && grants[0].Run.ID == r.ID, "a poll that stands by got %d runs after the pause",
			len(grants))
	}},
	{"a pause counts for the operations behind it in its batch", func(w *World) {
		r := w.task()
		claim := &dispatch.Claim{Tenant: tenant, Worker: "w", Slots: 1}
		claimOf := func() *dispatch.Claim { return &dispatch.Claim{Tenant: tenant, Worker: "w", Slots: 1} }
		last := claimOf()
		ops := []kernel.Op{&rules.PauseQueue{Tenant: tenant, Queue: r.Queue}, claim,
			&rules.ResumeQueue{Tenant: tenant, Queue: r.Queue}, &rules.PauseQueue{Tenant: tenant, Queue: r.Queue},
			claimOf(), &rules.ResumeQueue{Tenant: tenant, Queue: r.Queue}, last}
		for i, err := range w.E.Step(w.Now, ops...) {
			w.check(err == nil, "operation %d: %v", i, err)
		}
		w.check(len(claim.Grants) == 0 && len(last.Grants) == 1, "granted %d while paused, %d after", len(claim.Grants),
			len(last.Grants))
	}},
	{"a pause with an end is over by itself", func(w *World) {
		w.do(&rules.PauseQueue{Tenant: tenant, Queue: perdure.DefaultQueue, For: time.Minute})
		r := w.task()
		w.pass(59 * time.Second)
		w.check(len(w.poll("w", 1)) == 0, "granted before the end of the pause")
		w.pass(time.Second)
		w.check(w.take("w").Run.ID == r.ID, "after the end of the pause")
		w.passQuietly(2 * time.Hour)
		w.retire()
		w.check(w.rows("queue_pauses") == 0, "%d rows of pauses that are over", w.rows("queue_pauses"))
	}},
	{"deadlines count in a paused queue, and nobody is alerted about runs that wait there", func(w *World) {
		w.pause(perdure.DefaultQueue, "")
		r := w.submit(perdure.Submission{Kind: "job", Timeout: minutes(30)})
		late := w.submit(perdure.Submission{Kind: "job", Class: perdure.Agent, Timeout: minutes(300)})
		w.passQuietly(30*time.Minute + time.Second)
		ended := w.ended(r.ID, perdure.TimedOut, perdure.CodeDeadline)
		w.check(strings.Contains(ended.Failure.Message, "queue default has been paused since"),
			"the deadline's error: %q", ended.Failure.Message)
		slow := func() (n int) {
			for _, l := range w.lines(late.ID) {
				if l.Type == perdure.LineSlow {
					n++
				}
			}
			return n
		}
		w.check(slow() == 0, "an alert about a run of a paused queue")
		w.resume(perdure.DefaultQueue)
		w.passQuietly(time.Hour + time.Minute)
		w.check(slow() == 1, "%d alerts about a run that nobody takes, want 1", slow())
	}},
	{"a queue can be paused before it has runs, again, and with a key once", func(w *World) {
		w.pause("new", "one")
		first := w.Now
		w.Now = w.Now.Add(time.Minute)
		w.check(w.pause("new", "two").At == first && w.pauseOf("new").Reason == "two", "paused again: %+v",
			w.pauseOf("new"))
		w.resume("new")
		w.resume("new")
		w.resume("never")
		op := func() *rules.PauseQueue {
			return &rules.PauseQueue{Tenant: tenant, Queue: "new", Reason: "three", Key: "k"}
		}
		w.do(op())
		w.resume("new")
		w.do(op()) // an answer that was lost and comes again
		w.submit(perdure.Submission{Kind: "job", Queue: "new"})
		claim := &dispatch.Claim{Tenant: tenant, Worker: "w", Queues: []string{"new"}, Slots: 1}
		w.do(claim)
		w.check(len(claim.Grants) == 1, "a key has paused the queue twice")
		w.refuse(perdure.CodeReused, &rules.PauseQueue{Tenant: tenant, Queue: "new", Key: "k"})
	}},
	{"a pause that makes no sense is refused, and a tenant has a bounded number", func(w *World) {
		for _, bad := range []rules.PauseQueue{
			{Queue: ""}, {Queue: "../x"}, {Queue: "q", Reason: "\x00"},
			{Queue: "q", Until: w.Now}, {Queue: "q", Until: w.Now.Add(10 * perdure.MaxPause)},
			{Queue: "q", For: -1}, {Queue: "q", For: 2 * perdure.MaxPause},
			{Queue: "q", For: time.Second, Until: w.Now.Add(time.Second)},
		} {
			bad.Tenant = tenant
			w.refuse(perdure.CodeInvalid, &bad)
		}
		w.refuse(perdure.CodeInvalid, &rules.ResumeQueue{Tenant: tenant, Queue: "\x00"})
		var ops []kernel.Op
		for i := range perdure.MaxPauses {
			ops = append(ops, &rules.PauseQueue{Tenant: tenant,
				Queue: "q" + string(rune('A'+i/26)) + string(rune('a'+i%26))})
		}
		for i, err := range w.E.Step(w.Now, ops...) {
			w.check(err == nil, "pause %d: %v", i, err)
		}
		w.refuse(perdure.CodeQuota, &rules.PauseQueue{Tenant: tenant, Queue: "more"})
		w.do(&rules.PauseQueue{Tenant: "theirs", Queue: "more"})
		w.resume("qAa")
		w.pause("more", "")
	}},
}

package conformance

import (
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/rules"
)

// single submits a run with one attempt.
func (w *World) single(class perdure.Class) perdure.Run {
	w.t.Helper()
	return w.submit(perdure.Submission{Kind: "job", Class: class, MaxAttempts: 1,
		Timeout: perdure.Duration(time.Hour)})
}

// ask polls for one run. promise says that the worker begins a single attempt after an answer only.
func (w *World) ask(worker string, start, promise bool) []dispatch.Grant {
	w.t.Helper()
	op := &dispatch.Claim{Tenant: tenant, Worker: worker, Slots: 1, Start: start, Confirms: promise}
	w.do(op)
	return op.Grants
}

// nobodyGets checks for some time that no poll gets a run.
func (w *World) nobodyGets(d time.Duration) {
	w.t.Helper()
	for end := w.Now.Add(d); w.Now < end; {
		w.pass(min(3*time.Second, end.Sub(w.Now)))
		for _, promise := range []bool{true, false} {
			w.check(len(w.ask("other", true, promise)) == 0, "a single attempt is granted a second time at %s", w.Now)
		}
	}
}

var classes = []perdure.Class{perdure.Task, perdure.Agent, perdure.Process}

var singleScenarios = []Scenario{
	{"a single attempt that was given to a poll that promises nothing is never granted again", func(w *World) {
		for _, class := range classes {
			for _, start := range []bool{true, false} {
				r := w.single(class)
				g := w.ask("silent", start, false)[0]
				w.check(g.Run.State == perdure.Running && g.Run.StartedAt != 0, "%s: the grant is its start: %s", class,
					g.Run.State)
				w.nobodyGets(w.E.Policy().Lease - time.Second)
				w.state(r.ID, perdure.Running)
				w.pass(2 * time.Second)
				got := w.ended(r.ID, perdure.Failed, perdure.CodeOutcomeUnknown)
				w.check(got.Epoch > g.Run.Epoch, "%s: epoch %d after %d", class, got.Epoch, g.Run.Epoch)
				w.check(w.count(r.ID, perdure.LineDeadLettered) == 1, "%s: no dead letter", class)
				w.nobodyGets(10 * time.Second)
				late := w.commitOf(g, perdure.Commit{Outcome: done(`"late"`)})
				w.do(late)
				w.check(late.Refused != nil && len(w.lates(r.ID)) == 1, "%s: the late result is kept", class)
			}
		}
	}},
	{"a single attempt whose worker promises to wait for an answer is granted again for free", func(w *World) {
		for _, class := range classes {
			for _, start := range []bool{true, false} {
				r := w.single(class)
				lost := w.ask("lost", start, true)[0]
				w.pass(6 * time.Second)
				g := w.ask("w2", start, true)
				w.check(len(g) == 1 && g[0].Run.Attempt == 1, "%s: not granted again", class)
				w.refuseLease(perdure.CodeStaleEpoch, lost)
				w.beat(g[0])
				w.nobodyGets(20 * time.Second)
				w.complete(g[0], `1`)
				w.state(r.ID, perdure.Completed)
			}
		}
	}},
	{"after a lost grant to a poll with a promise, one without it spends the attempt", func(w *World) {
		r := w.single(perdure.Task)
		w.ask("lost", true, true)
		w.pass(6 * time.Second)
		w.check(len(w.ask("old", true, false)) == 1, "not granted again")
		w.nobodyGets(50 * time.Second)
		w.pass(11 * time.Second)
		w.ended(r.ID, perdure.Failed, perdure.CodeOutcomeUnknown)
	}},
	{"a worker that makes no promise executes single attempts as before", func(w *World) {
		r := w.single(perdure.Task)
		g := w.ask("old", false, false)[0]
		w.do(&life.Start{Tenant: tenant, Worker: "old", Leases: []life.Lease{lease(g)}})
		w.nobodyGets(30 * time.Second)
		w.complete(g, `1`)
		w.state(r.ID, perdure.Completed)

		r = w.single(perdure.Task)
		w.beat(w.ask("old", true, false)[0])
		w.pass(61 * time.Second)
		w.ended(r.ID, perdure.Failed, perdure.CodeAttemptsExhausted) // it was heard from, and is lost
	}},
	{"a single attempt that has begun is not handed back, and one that has not is", func(w *World) {
		release := func(g dispatch.Grant, unsent bool) {
			op := &life.Release{Tenant: tenant, Worker: g.Run.Worker, Leases: []life.Lease{lease(g)},
				Unsent: unsent}
			w.do(op)
			w.check(op.Results[0].OK, "%+v", op.Results)
		}
		for _, class := range classes {
			r := w.single(class)
			release(w.ask("closing", true, true)[0], false)
			w.state(r.ID, perdure.Queued)
			release(w.ask("hung-up", true, false)[0], true) // by the server: its answer was not sent
			w.state(r.ID, perdure.Queued)
			g := w.ask("closing", true, true)[0]
			w.beat(g)
			release(g, false)
			w.ended(r.ID, perdure.Failed, perdure.CodeOutcomeUnknown)
			w.check(w.count(r.ID, perdure.LineDeadLettered) == 1, "no dead letter")

			r = w.single(class)
			release(w.ask("closing", true, false)[0], false) // it may have begun
			w.ended(r.ID, perdure.Failed, perdure.CodeOutcomeUnknown)
		}
	}},
	{"an agent with a single attempt goes on after a suspend and a hold, each grant by the same rule", func(w *World) {
		r := w.single(perdure.Agent)
		g := w.ask("w1", true, false)[0]
		w.commit(g, perdure.Commit{Journal: steps("a"), Waits: wait(perdure.WaitSpec{ID: "s", Type: perdure.WaitSignal,
			Name: "go"}), Outcome: suspend})
		w.do(&life.Signal{Tenant: tenant, RunID: r.ID, Name: "go"})
		w.ask("lost", true, true)
		w.pass(6 * time.Second)
		g = w.ask("w2", true, true)[0]
		w.commit(g, perdure.Commit{Outcome: defect("panic")})
		w.do(&life.ReleaseHold{Tenant: tenant, RunID: r.ID})
		g = w.ask("w3", true, false)[0]
		w.check(g.Run.Attempt == 1 && len(g.Journal) == 2, "attempt %d, %d entries", g.Run.Attempt, len(g.Journal))
		w.nobodyGets(55 * time.Second)
		w.pass(6 * time.Second)
		w.ended(r.ID, perdure.Failed, perdure.CodeOutcomeUnknown)
	}},
	{"a single attempt that may have begun is asked to stop as one that has", func(w *World) {
		for _, start := range []bool{true, false} {
			r := w.single(perdure.Task)
			g := w.ask("silent", start, false)[0]
			w.do(&life.Cancel{Tenant: tenant, RunID: r.ID})
			w.state(r.ID, perdure.Running)
			w.check(len(w.beat(g).Cancel) == 1, "its worker is told")
			w.commit(g, perdure.Commit{Outcome: &perdure.Outcome{Type: perdure.OutcomeCancelled}})
			w.ended(r.ID, perdure.Cancelled, perdure.CodeCancelled)

			r = w.single(perdure.Task)
			w.ask("silent", start, false)
			w.do(&life.Cancel{Tenant: tenant, RunID: r.ID})
			w.pass(w.E.Policy().CancelGrace + time.Second)
			w.ended(r.ID, perdure.Cancelled, perdure.CodeCancelled)
		}
	}},
	{"a pause, a deadline and a gap change nothing about a single attempt", func(w *World) {
		r := w.single(perdure.Task)
		w.ask("silent", true, false)
		w.do(&rules.PauseQueue{Tenant: tenant, Queue: "default"})
		w.pass(20 * time.Second)
		w.do(&rules.ResumeQueue{Tenant: tenant, Queue: "default"})
		w.nobodyGets(20 * time.Second)
		w.offline(time.Minute)
		w.sweep()
		w.nobodyGets(w.E.Policy().Lease - 5*time.Second) // who was not heard during the gap may still be heard
		w.state(r.ID, perdure.Running)
		w.pass(10 * time.Second)
		w.ended(r.ID, perdure.Failed, perdure.CodeOutcomeUnknown)

		r = w.submit(perdure.Submission{Kind: "job", MaxAttempts: 1, Timeout: perdure.Duration(30 * time.Second)})
		w.ask("silent", true, false)
		w.pass(31 * time.Second)
		w.ended(r.ID, perdure.TimedOut, perdure.CodeDeadline)
	}},
	{"a single attempt that is granted with its submission, or by its id, is spent as well", func(w *World) {
		op := &dispatch.Claim{Tenant: tenant, Worker: "standing", Slots: 1, Start: true}
		w.do(op)
		standing := w.E.StandBy(op)
		r := w.single(perdure.Task)
		w.check(len(standing.End()) == 1, "not handed over")
		w.nobodyGets(50 * time.Second)
		w.pass(11 * time.Second)
		w.ended(r.ID, perdure.Failed, perdure.CodeOutcomeUnknown)

		r = w.single(perdure.Task)
		named := &dispatch.Claim{Tenant: tenant, Worker: "named", Slots: 1, Runs: []perdure.RunID{r.ID}}
		w.do(named)
		w.check(len(named.Grants) == 1, "not granted")
		w.nobodyGets(50 * time.Second)
		w.pass(11 * time.Second)
		w.ended(r.ID, perdure.Failed, perdure.CodeOutcomeUnknown)
	}},
}

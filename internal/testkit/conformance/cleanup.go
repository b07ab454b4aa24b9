package conformance

import (
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/rules"
)

// saga submits an agent that has steps to undo, and leases it.
func (w *World) saga(s perdure.Submission) dispatch.Grant {
	w.t.Helper()
	s.Kind, s.Class = "trip", perdure.Agent
	if s.Timeout == 0 {
		s.Timeout = perdure.Duration(time.Hour)
	}
	w.submit(s)
	g := w.takeKind("trip")
	w.commit(g, perdure.Commit{Journal: steps("flight", "hotel")})
	return g
}

// cleanup leases a run that has to clean up.
func (w *World) cleanup() dispatch.Grant {
	w.t.Helper()
	g := w.takeKind("trip")
	w.check(g.Cancel, "the grant is not marked")
	return g
}

func (w *World) ackCancel(g dispatch.Grant) {
	w.t.Helper()
	w.do(&life.Heartbeat{Tenant: tenant, Worker: g.Run.Worker,
		Beats: []life.BeatOf{{Lease: lease(g), CancelAck: true}}})
}

var confirmCancel = &perdure.Outcome{Type: perdure.OutcomeCancelled}

var cleanupScenarios = []Scenario{
	{"a cancelled run of a paused queue is granted for its clean-up", func(w *World) {
		for _, build := range []string{"", "v1"} {
			sleeping := w.saga(perdure.Submission{})
			w.commit(sleeping, perdure.Commit{Waits: wait(perdure.WaitSpec{ID: "s", Type: perdure.WaitSignal,
				Name: "go", Timeout: perdure.Never}), Outcome: suspend})
			held := w.saga(perdure.Submission{})
			w.commit(held, perdure.Commit{Outcome: defect("panic")})
			fresh := w.submit(perdure.Submission{Kind: "trip"})
			w.do(&rules.PauseQueue{Tenant: tenant, Queue: "default"})
			for _, g := range []dispatch.Grant{sleeping, held} {
				w.do(&life.Cancel{Tenant: tenant, RunID: g.Run.ID})
			}
			op := &dispatch.Claim{Tenant: tenant, Worker: "w", Slots: 10, Start: true, Build: build}
			w.do(op)
			w.check(len(op.Grants) == 2, "build %q got %d runs for clean-up, want 2", build, len(op.Grants))
			for _, g := range op.Grants {
				w.check(g.Cancel && g.Run.ID != fresh.ID, "%s is granted although its queue is paused", g.Run.ID)
				w.commit(g, perdure.Commit{Journal: []perdure.JournalEntry{entry(perdure.UndonePrefix + "hotel"),
					entry(perdure.UndonePrefix + "flight")}, Outcome: confirmCancel})
				w.ended(g.Run.ID, perdure.Cancelled, perdure.CodeCancelled)
				w.check(len(w.notUndone(g.Run.ID)) == 0, "%v", w.notUndone(g.Run.ID))
			}
			w.do(&rules.ResumeQueue{Tenant: tenant, Queue: "default"})
			w.complete(w.takeKind("trip"), `1`)
		}
	}},
	{"another node finds a run of a paused queue that is to be cleaned up", func(w *World) {
		g := w.saga(perdure.Submission{})
		w.commit(g, perdure.Commit{Waits: wait(perdure.WaitSpec{ID: "s", Type: perdure.WaitSignal, Name: "go"}),
			Outcome: suspend})
		w.do(&rules.PauseQueue{Tenant: tenant, Queue: "default"})
		w.do(&life.Cancel{Tenant: tenant, RunID: g.Run.ID})
		w.restart() // its memory is empty
		w.cleanup()
	}},
	{"a saga whose worker is lost during a cancel is granted again until it is undone", func(w *World) {
		for _, c := range []struct {
			name string
			lose func(g dispatch.Grant)
		}{
			{"lost", func(dispatch.Grant) { w.pass(w.E.Policy().Lease + time.Second) }},
			{"released", func(g dispatch.Grant) {
				w.do(&life.Release{Tenant: tenant, Worker: g.Run.Worker, Leases: []life.Lease{lease(g)}})
			}},
		} {
			for _, attempts := range []int{1, 3} {
				g := w.saga(perdure.Submission{MaxAttempts: attempts})
				id := g.Run.ID
				w.do(&life.Cancel{Tenant: tenant, RunID: id})
				w.ackCancel(g)
				w.commit(g, perdure.Commit{Journal: []perdure.JournalEntry{entry(perdure.UndonePrefix + "hotel")}})
				c.lose(g)
				w.state(id, perdure.Queued)
				again := w.cleanup()
				w.check(again.Run.ID == id && len(again.Journal) == 5 && again.Run.Attempt == g.Run.Attempt,
					"%s: %d entries, attempt %d", c.name, len(again.Journal), again.Run.Attempt)
				w.refuseLease(perdure.CodeStaleEpoch, g)
				w.commit(again, perdure.Commit{CancelAck: true,
					Journal: []perdure.JournalEntry{entry(perdure.UndonePrefix + "flight")}, Outcome: confirmCancel})
				w.ended(id, perdure.Cancelled, perdure.CodeCancelled)
				w.check(len(w.notUndone(id)) == 0, "%s: %v", c.name, w.notUndone(id))
			}
		}
	}},
	{"a clean-up that kills its workers ends with cleanup_grace, and lists what is left", func(w *World) {
		g := w.saga(perdure.Submission{Timeout: perdure.Duration(24 * time.Hour)})
		w.do(&life.Cancel{Tenant: tenant, RunID: g.Run.ID})
		w.ackCancel(g)
		acked, n := w.Now, 0
		for !w.get(g.Run.ID).State.Terminal() && n < 100 {
			w.pass(w.E.Policy().Lease + time.Second)
			if w.get(g.Run.ID).Ready {
				w.cleanup()
				n++
			}
		}
		r := w.ended(g.Run.ID, perdure.Cancelled, perdure.CodeCancelled)
		w.check(n > 5 && n < 20, "granted %d times", n)
		late := r.FinishedAt.Sub(acked.Add(w.E.Policy().CleanupGrace))
		w.check(late >= 0 && late < time.Second, "ended %s after cleanup_grace", late)
		w.check(len(w.notUndone(r.ID)) == 2, "%v", w.notUndone(r.ID))
	}},
	{"a lost run that is being cancelled ends, if nothing is to be undone", func(w *World) {
		g := w.saga(perdure.Submission{})
		w.do(&life.Cancel{Tenant: tenant, RunID: g.Run.ID})
		w.ackCancel(g)
		w.commit(g, perdure.Commit{Journal: []perdure.JournalEntry{entry(perdure.UndonePrefix + "hotel"),
			entry(perdure.UndonePrefix + "flight")}})
		w.pass(w.E.Policy().Lease + time.Second)
		w.ended(g.Run.ID, perdure.Cancelled, perdure.CodeCancelled)
	}},
}

package conformance

import (
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/rules"
)

// kindPauseScenarios are about paused kinds, and runs that are handed back for later.
var kindPauseScenarios = []Scenario{
	{"a paused kind grants none of its runs by any way, and other kinds go on", func(w *World) {
		r := w.submit(perdure.Submission{Kind: "job"})
		w.submit(perdure.Submission{Kind: "job", Queue: "other"})
		pause := &rules.PausePlace{Tenant: tenant, Kind: "job", Reason: "a bad build"}
		w.do(pause)
		w.check(pause.Paused.At == w.Now && pause.Paused.Reason == "a bad build", "paused: %+v", pause.Paused)
		w.waitsFor(r.ID, perdure.WaitingKindPaused)
		other := w.submit(perdure.Submission{Kind: "free"})
		standing := &dispatch.Claim{Tenant: tenant, Worker: "w", Slots: 9, Kinds: []string{"job"}}
		w.do(standing)
		s := w.E.StandBy(standing)
		w.submit(perdure.Submission{Kind: "job"})
		grants := s.End()
		w.check(len(grants) == 0, "a poll that stands by got a run of a paused kind")
		for range 2 { // also after a restart
			for _, x := range []struct {
				name string
				op   *dispatch.Claim
			}{
				{"a poll for its kind", &dispatch.Claim{Tenant: tenant, Worker: "w", Slots: 9, Kinds: []string{"job"}}},
				{"a poll of all queues", &dispatch.Claim{Tenant: tenant, Worker: "w", Slots: 9,
					Queues: []string{"other"}}},
				{"a poll for this run", &dispatch.Claim{Tenant: tenant, Worker: "w", Slots: 9,
					Runs: []perdure.RunID{r.ID}}},
				{"a poll of tenants", &dispatch.Claim{Tenant: "ops", AnyTenant: true, Worker: "p", Slots: 9,
					Kinds: []string{"job"}, Queues: []string{perdure.DefaultQueue, "other"}}},
			} {
				w.do(x.op)
				w.check(len(x.op.Grants) == 0, "%s got %d runs of a paused kind", x.name, len(x.op.Grants))
			}
			w.restart()
		}
		w.check(w.take("w").Run.ID == other.ID, "a run of another kind is granted")
		w.do(&rules.ResumePlace{Tenant: tenant, Kind: "job"})
		w.check(w.take("w").Run.ID == r.ID, "after the pause")
	}},
	{"a deadline says that the kind was paused, and the alert waits for the end", func(w *World) {
		w.do(&rules.PausePlace{Tenant: tenant, Kind: "job"})
		r := w.submit(perdure.Submission{Kind: "job", Timeout: minutes(30)})
		late := w.submit(perdure.Submission{Kind: "job", Class: perdure.Agent, Timeout: minutes(300)})
		w.passQuietly(w.E.Policy().QueuedAlert + 30*time.Minute + time.Second)
		ended := w.ended(r.ID, perdure.TimedOut, perdure.CodeDeadline)
		w.check(strings.Contains(ended.Failure.Message, "kind job has been paused since"), "the deadline's error: %q",
			ended.Failure.Message)
		w.check(w.count(late.ID, perdure.LineSlow) == 0, "an alert about a run of a paused kind")
	}},
	{"pauses of queues and kinds are counted together, and one name is two things", func(w *World) {
		var ops []kernel.Op
		for i := range perdure.MaxPauses {
			op := &rules.PausePlace{Tenant: tenant}
			name := "q" + string(rune('A'+i/26)) + string(rune('a'+i%26))
			if op.Queue = name; i%2 == 0 {
				op.Queue, op.Kind = "", name
			}
			ops = append(ops, op)
		}
		for i, err := range w.E.Step(w.Now, ops...) {
			w.check(err == nil, "pause %d: %v", i, err)
		}
		w.refuse(perdure.CodeQuota, &rules.PausePlace{Tenant: tenant, Kind: "more"})
		w.do(&rules.ResumePlace{Tenant: tenant, Kind: "qAa"})
		w.do(&rules.PausePlace{Tenant: tenant, Kind: "more", For: time.Minute, Key: "k"})
		r := w.submit(perdure.Submission{Kind: "job", Queue: "more"})
		w.waitsFor(r.ID, perdure.WaitingUnserved)
		w.refuse(perdure.CodeReused, &rules.PausePlace{Tenant: tenant, Kind: "more", Key: "k"})
		w.passQuietly(3 * time.Hour)
		w.retire()
		w.check(w.rows("kind_pauses") == perdure.MaxPauses/2-1, "%d rows of paused kinds", w.rows("kind_pauses"))
	}},
	{"a run that its worker hands back for later waits, and spends no attempt", func(w *World) {
		for _, attempts := range []int{3, 1} {
			r := w.submit(perdure.Submission{Kind: "job", MaxAttempts: attempts, Class: perdure.Agent})
			g := w.take("w")
			w.beat(g)
			l := lease(g)
			l.NotBefore = w.Now.Add(25 * time.Hour)
			far := &life.Release{Tenant: tenant, Worker: "w", Leases: []life.Lease{l}}
			w.do(far)
			w.check(far.Results[0].Error != nil && far.Results[0].Error.Field == "not_before", "25 hours: %+v",
				far.Results[0])
			l.NotBefore = w.Now.Add(10 * time.Minute)
			w.do(&life.Release{Tenant: tenant, Worker: "w", Leases: []life.Lease{l}})
			why := w.waitsFor(r.ID, perdure.WaitingNotBefore)
			w.check(why.Until == l.NotBefore, "waits: %+v, want until %s", why, l.NotBefore)
			w.pass(9 * time.Minute)
			w.check(len(w.poll("w", 1)) == 0, "granted before its time")
			w.pass(2 * time.Minute)
			again := w.take("w")
			w.check(again.Run.ID == r.ID && again.Run.Attempt == 1 && again.Run.Epoch > g.Run.Epoch, "again: %+v",
				again.Run)
			w.complete(again, `1`)
			w.state(r.ID, perdure.Completed)
		}
	}},
	{"a run that is being cancelled is not put off", func(w *World) {
		r := w.submit(perdure.Submission{Kind: "job"})
		g := w.take("w")
		w.beat(g)
		w.do(&life.Cancel{Tenant: tenant, RunID: r.ID})
		l := lease(g)
		l.NotBefore = w.Now.Add(10 * time.Minute)
		w.do(&life.Release{Tenant: tenant, Worker: "w", Leases: []life.Lease{l}})
		w.state(r.ID, perdure.Cancelled)
	}},
}

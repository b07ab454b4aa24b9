package conformance

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/server/watchdog"
)

// defect is the outcome of an execution that fails by a fault of the code.
func defect(code string) *perdure.Outcome {
	o := failed(code)
	o.Defect = true
	return o
}

// agentRun submits an agent that may live for long.
func (w *World) agentRun() perdure.Run {
	w.t.Helper()
	return w.submit(perdure.Submission{Kind: "agent", Class: perdure.Agent,
		Timeout: perdure.Duration(20 * 24 * time.Hour)})
}

// pollAs polls as a worker of a build.
func (w *World) pollAs(build string) []dispatch.Grant {
	w.t.Helper()
	op := &dispatch.Claim{Tenant: tenant, Worker: "w-" + build, Build: build, Slots: 10, Start: true}
	w.do(op)
	return op.Grants
}

// takeAs leases the one run that there is for a build.
func (w *World) takeAs(build string) dispatch.Grant {
	w.t.Helper()
	got := w.pollAs(build)
	if len(got) != 1 {
		w.t.Fatalf("build %q got %d runs, want 1", build, len(got))
	}
	return got[0]
}

// hold leases the run for a build, which reports a defect.
func (w *World) hold(build string) perdure.Run {
	w.t.Helper()
	g := w.takeAs(build)
	w.commit(g, perdure.Commit{Outcome: defect("panic")})
	return w.get(g.Run.ID).Run
}

// leap advances the clock with few sweeps: none until shortly before the end.
func (w *World) leap(d time.Duration) {
	w.t.Helper()
	const rest = time.Minute
	w.Now = w.Now.Add(d - rest)
	w.sweep()
	w.pass(rest)
}

var heldScenarios = []Scenario{
	{"a defect holds a run: no attempt is spent, and the backoff doubles up to its limit", func(w *World) {
		r := w.agentRun()
		var total time.Duration
		for n := 1; n <= 12; n++ {
			got := w.hold("v1")
			want := w.E.Policy().Backoff(n, 0.5)
			w.check(got.State == perdure.Queued && got.Attempt == 1 && got.Strikes == 0, "defect %d: %s, attempt %d",
				n, got.State, got.Attempt)
			w.check(got.ReadyAt == w.Now.Add(want), "defect %d: claimable in %s, want %s", n,
				got.ReadyAt.Sub(w.Now), want)
			w.check(len(w.pollAs("v1")) == 0 && len(w.pollAs("")) == 0, "defect %d: claimed during the backoff", n)
			w.pass(want)
			total += want
		}
		got := w.get(r.ID)
		w.check(got.Hold.Count == 12 && w.Now.Sub(got.Hold.Since) == total, "%+v", got.Hold)
		w.check(w.count(r.ID, perdure.LineHeld) == 1, "told once per build: %v", w.types(r.ID))
		w.complete(w.takeAs("v1"), `1`)
		w.check(w.state(r.ID, perdure.Completed).Attempt == 1, "attempt %d", w.get(r.ID).Attempt)
	}},
	{"a build that has not held a run claims it at once, and continues where it stood", func(w *World) {
		r := w.agentRun()
		g := w.takeAs("v1")
		w.commit(g, perdure.Commit{Journal: []perdure.JournalEntry{{Key: "a", Value: json.RawMessage(`1`)}}})
		w.commit(g, perdure.Commit{Outcome: defect("nondeterminism")})
		fixed := w.takeAs("v2")
		w.check(len(fixed.Journal) == 1 && fixed.Journal[0].Key == "a" && fixed.Run.Attempt == 1, "%+v", fixed)
		w.check(w.get(r.ID).OnHold(), "still on hold: there is no progress yet")
		w.commit(fixed, perdure.Commit{Journal: []perdure.JournalEntry{{Key: "b", Value: json.RawMessage(`2`)}}})
		w.check(!w.get(r.ID).OnHold(), "progress ends the hold: %+v", w.get(r.ID).Hold)
		w.complete(fixed, `3`)
		w.check(strings.Contains(fmt.Sprint(w.lines(r.ID)), `"build":"v2"`), "the log names the build: %v",
			w.lines(r.ID))
	}},
	{"two builds that both fail do not take turns before the backoff", func(w *World) {
		w.agentRun()
		w.hold("v1")
		got := w.hold("v2")
		for range 20 {
			w.check(len(w.pollAs("v1"))+len(w.pollAs("v2"))+len(w.pollAs("")) == 0, "claimed during the backoff")
		}
		w.pass(got.ReadyAt.Sub(w.Now) - time.Millisecond)
		w.check(len(w.pollAs("v1"))+len(w.pollAs("v2")) == 0, "claimed before the end of the backoff")
		w.pass(time.Millisecond)
		w.check(w.hold("v1").Hold.Count == 3, "%+v", got.Hold)
	}},
	{"more builds than a run remembers do not take turns quickly", func(w *World) {
		r := w.agentRun()
		grants := 0
		for n := range 200 {
			for _, g := range w.pollAs(fmt.Sprint("b", n%20)) {
				grants++
				w.commit(g, perdure.Commit{Outcome: defect("panic")})
			}
		}
		w.check(grants == perdure.MaxHoldBuilds, "%d grants at one moment, want %d", grants, perdure.MaxHoldBuilds)
		w.pass(time.Minute)
		w.check(len(w.pollAs("another")) == 1, "a further build after the pause: %+v", w.get(r.ID).Hold)
	}},
	{"a run whose hold takes too long ends as a dead letter with the code of its defect", func(w *World) {
		r := w.agentRun()
		held := w.hold("v1")
		w.check(held.Hold.Until == w.Now.Add(24*time.Hour), "until %s", held.Hold.Until)
		w.leap(24*time.Hour - time.Second)
		w.state(r.ID, perdure.Queued)
		w.pass(time.Second)
		got := w.ended(r.ID, perdure.Failed, "panic")
		w.check(got.FinishedAt == held.Hold.Until && got.Attempt == 1, "%+v", got)
		w.check(slices.ContainsFunc(w.Acted, func(a watchdog.Action) bool { return a.Name == "hold-timeout" }),
			"%+v", w.Acted)
		w.check(len(w.letters(store.LetterFilter{Cause: "panic"})) == 1, "a dead letter")
	}},
	{"a held run ends by its deadline, as a dead letter with the code of its defect", func(w *World) {
		r := w.submit(perdure.Submission{Kind: "agent", Class: perdure.Agent, Timeout: perdure.Duration(time.Hour)})
		w.hold("v1")
		w.leap(time.Hour)
		got := w.ended(r.ID, perdure.Failed, "panic")
		w.check(got.FinishedAt == r.DeadlineAt, "ended at %s, want %s", got.FinishedAt, r.DeadlineAt)
		w.check(len(w.letters(store.LetterFilter{Cause: "panic"})) == 1, "a dead letter")
	}},
	{"a run on a thread is held for a quarter of an hour, keeps its place, and the thread says so", func(w *World) {
		th := w.thread()
		r := w.submit(perdure.Submission{Kind: "agent", ThreadID: th})
		next := w.submit(perdure.Submission{Kind: "agent", ThreadID: th})
		w.hold("v1")
		w.check(len(w.pollAs("v2")) == 1, "another build")
		w.commit(dispatch.Grant{Run: w.get(r.ID).Run}, perdure.Commit{Outcome: defect("panic")})
		notes := w.messages(th)
		w.check(len(notes) == 1 && strings.Contains(string(notes[0].Metadata), `"status":"held"`), "%+v", notes)
		w.check(w.get(next.ID).Turn == perdure.TurnWaiting, "the next run waits: %d", w.get(next.ID).Turn)
		w.leap(15*time.Minute - time.Second)
		w.state(r.ID, perdure.Queued)
		w.pass(time.Second)
		w.ended(r.ID, perdure.Failed, "panic")
		w.check(w.get(next.ID).Turn == perdure.TurnActive, "its turn came: %d", w.get(next.ID).Turn)
	}},
	{"releasing a hold makes the run claimable for every build", func(w *World) {
		r := w.agentRun()
		w.refuse(perdure.CodeWrongState, &life.ReleaseHold{Tenant: tenant, RunID: r.ID})
		w.hold("v1")
		w.refuse(perdure.CodeNotFound, &life.ReleaseHold{Tenant: "other", RunID: r.ID})
		w.do(&life.ReleaseHold{Tenant: tenant, RunID: r.ID, Key: "k"})
		w.check(!w.get(r.ID).OnHold() && w.count(r.ID, perdure.LineHoldReleased) == 1, "%+v, lines %v",
			w.get(r.ID).Hold, w.types(r.ID))
		got := w.hold("v1")
		w.check(got.Hold.Count == 2 && w.count(r.ID, perdure.LineHeld) == 2, "a new hold is told again: %+v", got.Hold)
		w.do(&life.ReleaseHold{Tenant: tenant, RunID: r.ID, Key: "k"})
		w.check(w.get(r.ID).OnHold(), "a repeated call counts once")
		w.refuse(perdure.CodeNotFound, &life.ReleaseHold{Tenant: tenant, RunID: "none"})
	}},
	{"a held run can be given up: it becomes a dead letter with the code of its defect", func(w *World) {
		r := w.agentRun()
		w.refuse(perdure.CodeWrongState, &life.DeadLetterRun{Tenant: tenant, RunID: r.ID})
		w.hold("v1")
		g := w.takeAs("v2")
		op := &life.DeadLetterRun{Tenant: tenant, RunID: r.ID}
		w.do(op)
		w.check(op.Run.State == perdure.Failed, "although a worker tries it: %s", op.Run.State)
		w.ended(r.ID, perdure.Failed, "panic")
		w.check(len(w.letters(store.LetterFilter{Cause: "panic"})) == 1, "a dead letter")
		w.refuse(perdure.CodeStaleEpoch, w.commitOf(g, perdure.Commit{Outcome: failed("late")}))
		w.refuse(perdure.CodeWrongState, op)
	}},
	{"a held run that is cancelled is claimable, and its next defect ends it", func(w *World) {
		r := w.agentRun()
		w.hold("v1")
		w.do(&life.Cancel{Tenant: tenant, RunID: r.ID, Reason: "enough"})
		w.refuse(perdure.CodeWrongState, &life.ReleaseHold{Tenant: tenant, RunID: r.ID})
		g := w.takeAs("v1")
		w.check(g.Cancel, "the worker is told")
		w.commit(g, perdure.Commit{Outcome: defect("panic")})
		w.ended(r.ID, perdure.Failed, "panic")
		w.check(len(w.letters(store.LetterFilter{})) == 0, "an ordinary failure, no dead letter")

		other := w.agentRun()
		w.hold("v1")
		w.do(&life.Cancel{Tenant: tenant, RunID: other.ID})
		w.pass(w.E.Policy().CancelGrace)
		w.ended(other.ID, perdure.Cancelled, perdure.CodeCancelled)
	}},
	{"a held run whose worker is lost spends an attempt", func(w *World) {
		r := w.agentRun()
		w.hold("v1")
		w.beat(w.takeAs("v2"))
		w.pass(w.E.Policy().Lease)
		got := w.get(r.ID)
		w.check(got.State == perdure.Queued && got.Attempt == 2 && got.Strikes == 1, "%s, attempt %d", got.State,
			got.Attempt)
		w.check(len(w.pollAs("v3")) == 0, "a retry waits for its backoff, whichever build asks")
	}},
	{"without hold_defects a defect costs an attempt, as other failures do", func(w *World) {
		p := perdure.DefaultPolicy()
		p.HoldDefects = false
		w.Policy = &p
		w.restart()
		r := w.agentRun()
		for attempt := 1; attempt <= 3; attempt++ {
			g := w.takeAs("v1")
			w.check(g.Run.Attempt == attempt, "attempt %d, want %d", g.Run.Attempt, attempt)
			w.commit(g, perdure.Commit{Outcome: defect("panic")})
			w.pass(5 * time.Second)
		}
		w.ended(r.ID, perdure.Failed, "panic")
		w.check(w.count(r.ID, perdure.LineHeld) == 0 && w.get(r.ID).Hold == nil, "%v", w.types(r.ID))
	}},
	{"a held run of any queue and kind is found among many that a build has held", func(w *World) {
		for n := range 150 {
			w.submit(perdure.Submission{Kind: "agent", Class: perdure.Agent, Queue: []string{"a", "b"}[n%2],
				Timeout: perdure.Duration(time.Hour)})
		}
		claim := func(build string, kinds ...string) int {
			op := &dispatch.Claim{Tenant: tenant, Worker: "w", Build: build, Slots: 100, Queues: []string{"a", "b"},
				Kinds: kinds, Start: true}
			w.do(op)
			for _, g := range op.Grants {
				w.commit(g, perdure.Commit{Outcome: defect("panic")})
			}
			return len(op.Grants)
		}
		w.check(claim("v1")+claim("v1") == 150, "all of them")
		w.check(claim("v2", "other") == 0, "of another kind")
		total := 0
		for range 20 {
			total += claim("v2", "agent")
		}
		w.check(total == 150, "a new build gets each once during the backoff: %d", total)
		w.check(claim("v1")+claim("v2") == 0, "nobody twice")
	}},
	{"another node learns of a held run within a second, and once", func(w *World) {
		r := w.agentRun()
		other, err := engine.New(w.S, engine.Options{Entropy: entropy{rand.New(rand.NewPCG(99, 2))}})
		w.check(err == nil, "another engine: %v", err)
		look := func() []dispatch.Ready {
			fresh, err := other.Held(w.ctx())
			w.check(err == nil, "places with held runs: %v", err)
			return fresh
		}
		w.check(len(look()) == 0, "before")
		w.hold("v1")
		got := look()
		w.check(len(got) == 1 && got[0] == dispatch.Ready{Tenant: tenant, Queue: "default", Kind: "agent"}, "%+v", got)
		w.check(len(look()) == 0, "a place that is known is not rung again")
		op := &dispatch.Claim{Tenant: tenant, Worker: "w", Build: "v2", Slots: 1, Start: true}
		w.check(other.Step(w.Now, op)[0] == nil && len(op.Grants) == 1 && op.Grants[0].Run.ID == r.ID, "%+v", op.Grants)
		w.check(len(look()) == 0, "nothing is held back any more")
	}},
	{"a poll of a platform worker finds held runs of all tenants", func(w *World) {
		for _, t := range []perdure.TenantID{"a", "b"} {
			w.do(&life.Submit{Tenant: t, Submission: perdure.Submission{Kind: "agent", Class: perdure.Agent}})
		}
		claim := func(build string) []dispatch.Grant {
			op := &dispatch.Claim{Tenant: tenant, AnyTenant: true, Worker: "p", Build: build, Slots: 10, Start: true}
			w.do(op)
			for _, g := range op.Grants {
				c := w.commitOf(g, perdure.Commit{Outcome: defect("panic")})
				c.Tenant = g.Run.Tenant
				w.do(c)
			}
			return op.Grants
		}
		w.check(len(claim("v1")) == 2 && len(claim("v1")) == 0 && len(claim("v2")) == 2, "each build gets both once")
		one := &dispatch.Claim{Tenant: "a", Worker: "w", Build: "v3", Slots: 10}
		w.do(one)
		w.check(len(one.Grants) == 1 && one.Grants[0].Run.Tenant == "a", "of its own tenant: %+v", one.Grants)
	}},
	{"a tenant with very many held kinds does not hide the held runs of others", func(w *World) {
		const kinds = 200
		for n := range kinds {
			sub := perdure.Submission{Kind: fmt.Sprintf("k%03d", n), Class: perdure.Agent}
			w.do(&life.Submit{Tenant: "a", Submission: sub})
		}
		w.do(&life.Submit{Tenant: "z", Submission: perdure.Submission{Kind: "agent", Class: perdure.Agent}})
		held := 0
		for range kinds {
			op := &dispatch.Claim{Tenant: tenant, AnyTenant: true, Worker: "p", Build: "v1", Slots: 100, Start: true}
			w.do(op)
			for _, g := range op.Grants {
				c := w.commitOf(g, perdure.Commit{Outcome: defect("panic")})
				c.Tenant = g.Run.Tenant
				w.do(c)
			}
			held += len(op.Grants)
		}
		w.check(held == kinds+1, "%d runs are held, want %d", held, kinds+1)
		other, err := engine.New(w.S, engine.Options{Entropy: entropy{rand.New(rand.NewPCG(99, 3))}})
		w.check(err == nil, "another engine: %v", err)
		fresh, err := other.Held(w.ctx())
		w.check(err == nil && slices.Contains(fresh, dispatch.Ready{Tenant: "z", Queue: "default", Kind: "agent"}),
			"the first read has %d places and not that of tenant z, %v", len(fresh), err)
		op := &dispatch.Claim{Tenant: "z", Worker: "w", Build: "v2", Slots: 1, Start: true}
		w.check(other.Step(w.Now, op)[0] == nil && len(op.Grants) == 1, "%+v", op.Grants)
	}},
	{"a held run is found after a restart of the server", func(w *World) {
		r := w.agentRun()
		for range 9 {
			w.pass(w.hold("v1").ReadyAt.Sub(w.Now))
		}
		w.hold("v1")
		w.restart()
		w.check(len(w.pollAs("v1")) == 0, "by the build that held it")
		w.check(w.takeAs("v2").Run.ID == r.ID, "by another one")
	}},
}

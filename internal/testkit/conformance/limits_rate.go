package conformance

import (
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/rules"
)

// perMinute is a rate.
func perMinute(count, burst int) perdure.LimitValues {
	return perdure.LimitValues{Rate: &perdure.LimitRate{Count: count, Per: perdure.Duration(time.Minute), Burst: burst}}
}

// closeLimit closes a limit, or opens it.
func (w *World) closeLimit(name string, d time.Duration) {
	w.t.Helper()
	w.do(&life.CloseLimit{Tenant: tenant, Name: name, For: d, Open: d == 0})
}

var rateScenarios = []Scenario{
	{"no window has more grants than a rate allows, also after restarts", func(w *World) {
		w.limit("l", perMinute(6, 3), false)
		for range 40 {
			w.under("", "l")
		}
		var at []perdure.Instant
		for step := range 40 {
			if step%7 == 3 {
				w.restart()
			}
			for _, g := range w.poll("w1", 10) {
				at = append(at, w.Now)
				w.complete(g, `1`)
			}
			w.pass(5 * time.Second)
		}
		w.check(len(at) >= 20, "%d grants in 200 s, want at least 20", len(at))
		for i := range at {
			n := 0
			for _, x := range at[i:] {
				if x <= at[i].Add(time.Minute) {
					n++
				}
			}
			w.check(n <= 9, "%d grants in the minute from %s, want at most 9", n, at[i])
		}
	}},
	{"a grant takes its units of a rate", func(w *World) {
		w.limit("l", perMinute(60, 4), false)
		w.submit(perdure.Submission{Kind: "task", Limits: []string{"l"}, Units: 4})
		w.submit(perdure.Submission{Kind: "task", Limits: []string{"l"}, Units: 4})
		g := w.poll("w1", 5)
		w.check(len(g) == 1, "%d runs are leased, want 1", len(g))
		w.complete(g[0], `1`)
		w.pass(3 * time.Second)
		w.check(len(w.poll("w1", 5)) == 0, "the second is leased too early")
		w.pass(2 * time.Second)
		w.check(len(w.poll("w1", 5)) == 1, "the second is not leased")
		w.refuse(perdure.CodeUnprocessable, &life.Submit{Tenant: tenant,
			Submission: perdure.Submission{Kind: "task", Limits: []string{"l"}, Units: 61}})
	}},
	{"nothing is granted under a limit that is closed, until its time or until it is opened", func(w *World) {
		w.limit("l", slots(3), false)
		w.closeLimit("l", time.Minute)
		r := w.under("", "l")
		why := w.blocked(r.ID, "l", "")
		w.check(why.Until == w.Now.Add(time.Minute) && why.Limits[0].ClosedUntil == why.Until, "until %s", why.Until)
		w.check(len(w.poll("w1", 5)) == 0, "a run is granted under a closed limit")
		w.pass(59 * time.Second)
		w.check(len(w.poll("w1", 5)) == 0, "a run is granted before the limit is open")
		w.pass(2 * time.Second)
		w.check(len(w.poll("w1", 5)) == 1, "the limit does not open by itself")
		w.closeLimit("l", time.Hour)
		w.under("", "l")
		w.closeLimit("l", 0)
		w.check(len(w.poll("w2", 5)) == 1, "the opened limit lets nothing through")
	}},
	{"a commit closes a limit for everybody, and shortens no closure", func(w *World) {
		w.limit("l", slots(3), true)
		w.under("a", "l")
		g := w.take("w1")
		told := func(id string, d time.Duration) {
			w.commit(g, perdure.Commit{ID: id, Limits: []perdure.LimitClosure{
				{Name: "l", Key: "a", ClosedFor: perdure.Duration(d), Reason: "429"}, {Name: "gone", ClosedFor: 1e9}}})
		}
		told("c1", time.Minute)
		told("c2", time.Second)
		other := w.under("b", "l")
		r := w.under("a", "l")
		next := w.poll("w1", 5)
		w.check(got(next, other, r) == "0 ", "leased: %s, want the other key alone", got(next, other, r))
		until := w.counts("l", "a").ClosedUntil
		w.check(until == w.Now.Add(time.Minute), "closed until %s", until)
		w.pass(time.Minute + time.Second)
		w.check(got(w.poll("w2", 5), r) == "0 ", "the key does not open")
	}},
	{"a kind has limits, a key from the input, and a concurrency", func(w *World) {
		w.limit("customer", slots(1), true)
		w.announce("answer", "1", perdure.KindDef{Limits: []string{"customer", "later"}, LimitKeyFrom: "/to/0/id",
			Concurrency: 2})
		ask := func(input string) perdure.Run {
			return w.submit(perdure.Submission{Kind: "answer", Input: []byte(input)})
		}
		runs := []perdure.Run{ask(`{"to":[{"id":"a"}]}`), ask(`{"to":[{"id":"a"}]}`), ask(`{"to":[{"id":7}]}`),
			ask(`{"to":[{"id":"c"}]}`)}
		w.blocked(runs[1].ID, "customer", "a")
		w.blocked(runs[3].ID, "kind:answer", "")
		op := &dispatch.Claim{Tenant: tenant, Worker: "w1", Slots: 9}
		w.do(op)
		w.check(got(op.Grants, runs...) == "0 2 ", "leased: %s, want one of each key and two at once",
			got(op.Grants, runs...))
		w.leases("customer", "7", 1, 0)
	}},
	{"a queue has limits and a concurrency, which join those of the submission and the kind", func(w *World) {
		w.limit("shop", slots(3), false)
		w.limit("own", slots(9), false)
		w.announce("answer", "1", perdure.KindDef{Limits: []string{"shop"}, Concurrency: 9})
		before := w.submit(perdure.Submission{Kind: "answer", Queue: "slow"})
		w.do(&rules.PutQueueLimits{Tenant: tenant, Queue: "slow", Limits: []string{"shop", "later"}, Concurrency: 2})
		w.do(&rules.PutQueueLimits{Tenant: tenant, Queue: "slow", Limits: []string{"shop", "later"}, Concurrency: 2})
		var runs []perdure.Run
		for range 5 {
			runs = append(runs, w.submit(perdure.Submission{Kind: "answer", Queue: "slow", Limits: []string{"own"}}))
		}
		elsewhere := w.submit(perdure.Submission{Kind: "answer"})
		under := []string{"own", "shop", "later", "kind:answer", "queue:slow"}
		w.check(slices.Equal(runs[0].Options.Limits.Names, under), "the run is under %v, want %v",
			runs[0].Options.Limits.Names, under)
		w.check(slices.Equal(before.Options.Limits.Names, []string{"shop", "kind:answer"}) &&
			slices.Equal(elsewhere.Options.Limits.Names, []string{"shop", "kind:answer"}),
			"runs of before and of elsewhere are under %v and %v", before.Options.Limits, elsewhere.Options.Limits)
		claim := func() (out []dispatch.Grant) {
			op := &dispatch.Claim{Tenant: tenant, Worker: "w1", Slots: 9, Queues: []string{"default", "slow"}}
			w.do(op)
			return op.Grants
		}
		w.limit("shop", slots(9), false)
		w.pass(2 * time.Second)
		w.check(len(claim()) == 4, "not the two from elsewhere and two of the queue are leased")
		w.blocked(runs[4].ID, "queue:slow", "")
		w.leases("queue:slow", "", 2, 3)

		w.do(&rules.PutQueueLimits{Tenant: tenant, Queue: "slow", Concurrency: 4})
		w.pass(2 * time.Second)
		w.check(len(claim()) == 2, "a greater concurrency is not noticed within two seconds")
		w.do(&rules.PutQueueLimits{Tenant: tenant, Queue: "slow"})
		w.pass(2 * time.Second)
		w.check(len(claim()) == 1, "a queue without a concurrency keeps a run back")
		free := w.submit(perdure.Submission{Kind: "job", Queue: "slow"})
		w.check(free.Options.Limits == nil, "a run of a queue without limits is under %v", free.Options.Limits)

		w.refuse(perdure.CodeUnprocessable, &rules.PutQueueLimits{Tenant: tenant, Queue: "slow", Concurrency: -1})
		w.refuse(perdure.CodeInvalid, &rules.PutQueueLimits{Tenant: tenant, Queue: "", Concurrency: 1})
		w.refuse(perdure.CodeUnprocessable, &rules.PutQueueLimits{Tenant: tenant, Queue: "slow",
			Limits: []string{"a", "b", "c", "d", "e"}})
	}},
	{"a greater concurrency of a kind is noticed soon", func(w *World) {
		w.announce("answer", "1", perdure.KindDef{Concurrency: 1})
		for range 3 {
			w.submit(perdure.Submission{Kind: "answer"})
		}
		claim := func() int {
			op := &dispatch.Claim{Tenant: tenant, Worker: "w1", Slots: 9}
			w.do(op)
			return len(op.Grants)
		}
		w.check(claim() == 1, "not one is leased")
		w.do(&rules.PatchKind{Tenant: tenant, Kind: "answer", Def: perdure.KindDef{Concurrency: 2}})
		w.pass(2 * time.Second)
		w.check(claim() == 1, "the second one is not leased after two seconds")
	}},
}

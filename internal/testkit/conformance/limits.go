package conformance

import (
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/store"
)

// limit makes a limit.
func (w *World) limit(name string, v perdure.LimitValues, perKey bool) {
	w.t.Helper()
	w.do(&life.PutLimit{Tenant: tenant, Name: name, Values: v, PerKey: perKey})
}

// slots is a concurrency.
func slots(n int) perdure.LimitValues { return perdure.LimitValues{Concurrency: n} }

// under submits a task under limits.
func (w *World) under(key string, names ...string) perdure.Run {
	w.t.Helper()
	return w.submit(perdure.Submission{Kind: "task", Limits: names, LimitKey: key})
}

// counts reads the counts of a limit.
func (w *World) counts(name, key string) (row store.LimitKeyRow) {
	w.t.Helper()
	w.view(func(v *store.View) (err error) {
		row, _, err = v.LimitKeys.Get(tenant, perdure.LimitRef{Limit: name, Key: key})
		return err
	})
	return row
}

// leases checks how many runs are leased and wait at a limit.
func (w *World) leases(name, key string, leased, waiting int64) {
	w.t.Helper()
	row := w.counts(name, key)
	w.check(row.Leased == leased && row.Waiting == waiting, "limit %s %s: %d leased and %d waiting, want %d and %d",
		name, key, row.Leased, row.Waiting, leased, waiting)
}

// offered checks how many runs a limit has offered its room, and how many units of its rate.
func (w *World) offered(name string, runs, units int64) {
	w.t.Helper()
	row := w.counts(name, "")
	w.check(row.Offered == runs && row.OfferedUnits == units,
		"limit %s: %d runs with %d units are offered, want %d with %d", name, row.Offered, row.OfferedUnits, runs,
		units)
}

// got names the runs of grants in the order of a list.
func got(grants []dispatch.Grant, runs ...perdure.Run) (out string) {
	for _, g := range grants {
		for i := range runs {
			if runs[i].ID == g.Run.ID {
				out += fmt.Sprint(i, " ")
			}
		}
	}
	return out
}

// blocked checks that a run waits at a limit.
func (w *World) blocked(id perdure.RunID, limit, key string) *perdure.WaitingFor {
	w.t.Helper()
	why := w.waitsFor(id, perdure.WaitingLimit)
	w.check(len(why.Limits) == 1 && why.Limits[0].Limit == limit && why.Limits[0].Key == key,
		"run %s waits at %+v, want %s %s", id, why.Limits, limit, key)
	return why
}

var limitScenarios = []Scenario{
	{"no more runs are leased than a limit allows, and an end lets the next one through", func(w *World) {
		w.limit("l", slots(2), false)
		var runs []perdure.Run
		for range 5 {
			runs = append(runs, w.under("", "l"))
		}
		grants := w.poll("w1", 10)
		w.check(len(grants) == 2, "%d runs are leased, want 2", len(grants))
		w.leases("l", "", 2, 3)
		why := w.blocked(runs[4].ID, "l", "")
		w.check(why.Limits[0].Ahead == 2, "%d are ahead, want 2", why.Limits[0].Ahead)
		w.check(w.count(runs[4].ID, perdure.LineBlocked) == 1 && w.count(runs[0].ID, perdure.LineBlocked) == 0,
			"the log says %v", w.types(runs[4].ID))
		w.check(len(w.poll("w2", 10)) == 0, "a third run is leased")
		w.complete(grants[0], `1`)
		next := w.poll("w2", 10)
		w.check(got(next, runs...) == "2 ", "after an end these are leased: %s, want the third", got(next, runs...))
		w.complete(grants[1], `1`)
		w.complete(next[0], `1`)
		next = w.poll("w2", 10)
		w.check(got(next, runs...) == "3 4 ", "in the end these are leased: %s", got(next, runs...))
		w.complete(next[0], `1`)
		w.complete(next[1], `1`)
		w.leases("l", "", 0, 0)
	}},
	{"whatever ends a lease gives its slot back", func(w *World) {
		w.limit("l", slots(1), false)
		for _, end := range []struct {
			how string
			do  func(g dispatch.Grant)
		}{
			{"fail", func(g dispatch.Grant) {
				no := false
				w.commit(g, perdure.Commit{Outcome: &perdure.Outcome{Type: perdure.OutcomeFail, Retryable: &no,
					Error: &perdure.Failure{Code: "x"}}})
			}},
			{"fail and try again", func(g dispatch.Grant) { w.commit(g, perdure.Commit{Outcome: failed("x")}) }},
			{"release", func(g dispatch.Grant) {
				w.do(&life.Release{Tenant: tenant, Worker: "w1", Leases: []life.Lease{lease(g)}})
			}},
			{"lost", func(g dispatch.Grant) { w.pass(w.E.Policy().Lease + time.Minute) }},
			{"defect", func(g dispatch.Grant) {
				w.commit(g, perdure.Commit{Outcome: &perdure.Outcome{Type: perdure.OutcomeFail, Defect: true,
					Error: &perdure.Failure{Code: "x"}}})
			}},
			{"suspend", func(g dispatch.Grant) {
				w.commit(g, perdure.Commit{Waits: []perdure.WaitSpec{{ID: "s", Type: perdure.WaitSignal, Name: "go"}},
					Outcome: &perdure.Outcome{Type: perdure.OutcomeSuspend}})
			}},
			{"cancel", func(g dispatch.Grant) {
				w.beat(g)
				w.cancel(g.Run.ID)
				w.commit(g, perdure.Commit{Outcome: confirmCancel})
			}},
		} {
			first := w.under("", "l")
			g := w.poll("w1", 1)
			w.check(got(g, first) == "0 ", "%s: the first run is not leased", end.how)
			w.leases("l", "", 1, 0)
			end.do(g[0])
			w.leases("l", "", 0, w.counts("l", "").Waiting)
			if r := w.get(first.ID); r.State.Live() {
				w.cancel(first.ID)
			}
			w.pass(time.Hour)
			w.leases("l", "", 0, 0)
		}
	}},
	{"a suspended run needs a slot again, ahead of new ones", func(w *World) {
		w.limit("l", slots(1), false)
		first := w.under("", "l")
		g := w.take("w1")
		w.commit(g, perdure.Commit{Waits: []perdure.WaitSpec{{ID: "s", Type: perdure.WaitSignal, Name: "go"}},
			Outcome: &perdure.Outcome{Type: perdure.OutcomeSuspend}})
		second := w.under("", "l")
		g = w.take("w1")
		w.check(g.Run.ID == second.ID, "the slot of a suspended run is not free")
		third := w.under("", "l")
		w.signal(first.ID, "go", `1`)
		w.blocked(first.ID, "l", "")
		w.leases("l", "", 1, 2)
		w.complete(g, `1`)
		g = w.take("w1")
		w.check(g.Run.ID == first.ID, "run %s is leased, want the resumed one before %s", g.Run.ID, third.ID)
		w.blocked(third.ID, "l", "")
	}},
	{"a limit with keys counts each of them, under a ceiling for all", func(w *World) {
		w.limit("each", slots(1), true)
		w.limit("all", slots(2), false)
		var runs []perdure.Run
		for _, key := range []string{"a", "a", "b", "c", "c"} {
			runs = append(runs, w.under(key, "each", "all"))
		}
		grants := w.poll("w1", 10)
		w.check(got(grants, runs...) == "0 2 ", "leased: %s, want one of a and one of b", got(grants, runs...))
		w.blocked(runs[1].ID, "each", "a")
		w.blocked(runs[3].ID, "all", "")
		w.complete(grants[1], `1`)
		grants = append(grants[:1], w.poll("w1", 10)...)
		w.check(got(grants[1:], runs...) == "3 ", "then: %s, want the first of c", got(grants[1:], runs...))
		w.complete(grants[0], `1`)
		w.check(got(w.poll("w1", 10), runs...) == "1 ", "the second of a is not leased")
		w.leases("all", "", 2, 1)
		w.leases("each", "c", 1, 0)
	}},
	{"keys take turns, and within a key the claim order holds", func(w *World) {
		w.limit("l", slots(1), false)
		w.under("a", "l")
		g := w.take("w1")
		var runs []perdure.Run
		for range 5 {
			runs = append(runs, w.under("a", "l"))
		}
		runs = append(runs, w.submit(perdure.Submission{Kind: "task", Priority: 5, LimitKey: "a",
			Limits: []string{"l"}}))
		for range 2 {
			runs = append(runs, w.under("b", "l"))
		}
		order := ""
		for range 8 {
			w.complete(g, `1`)
			g = w.take("w1")
			order += got([]dispatch.Grant{g}, runs...)
		}
		w.check(order == "5 6 0 7 1 2 3 4 ", "order %s", order)
	}},
	{"a run of a kind without a worker takes no slot from others", func(w *World) {
		w.limit("l", slots(1), false)
		lone := w.submit(perdure.Submission{Kind: "unserved", Limits: []string{"l"}})
		more := w.submit(perdure.Submission{Kind: "unserved", Limits: []string{"l"}})
		first := w.under("", "l")
		second := w.under("", "l")
		tasks := func() []dispatch.Grant {
			op := &dispatch.Claim{Tenant: tenant, Worker: "w1", Slots: 5, Start: true, Kinds: []string{"task"}}
			w.do(op)
			return op.Grants
		}
		w.check(len(tasks()) == 0, "a run is let through beside one that is just offered")
		w.pass(2 * time.Second)
		g := tasks()
		w.check(got(g, first, second) == "0 ", "leased: %s, want the first of the served kind", got(g, first, second))
		w.complete(g[0], `1`)
		g = tasks()
		w.check(got(g, first, second) == "1 ", "leased: %s, want the second at once", got(g, first, second))
		w.complete(g[0], `1`)
		w.check(got(w.poll("w2", 5), lone, more) == "0 ", "the run without a worker is not claimable")
		w.blocked(more.ID, "l", "")
	}},
	{"a place that was passed is offered room again when the run that nobody took is gone", func(w *World) {
		w.limit("l", slots(1), false)
		lone := w.submit(perdure.Submission{Kind: "unserved", Limits: []string{"l"}})
		first := w.under("", "l")
		more := w.submit(perdure.Submission{Kind: "unserved", Limits: []string{"l"}})
		w.pass(2 * time.Second)
		g := w.takeKind("task")
		w.check(g.Run.ID == first.ID, "the run of the served kind is not leased")
		w.cancel(lone.ID)
		w.complete(g, `1`)
		w.check(got(w.poll("w2", 5), more) == "0 ", "the next run of the kind is not let through: %+v",
			w.counts("l", ""))
	}},
	{"a lowered limit takes no lease away, and a raised one lets more through", func(w *World) {
		w.limit("l", slots(3), false)
		for range 8 {
			w.under("", "l")
		}
		g := w.poll("w1", 10)
		w.limit("l", slots(1), false)
		w.leases("l", "", 3, 5)
		w.complete(g[0], `1`)
		w.complete(g[1], `1`)
		w.check(len(w.poll("w1", 10)) == 0, "a run is leased above the lowered limit")
		w.limit("l", slots(4), false)
		w.check(len(w.poll("w1", 10)) == 3, "the raised limit lets not through what it has room for")
		w.do(&life.DeleteLimit{Tenant: tenant, Name: "l"})
		w.sweep()
		next := w.poll("w1", 10)
		w.check(len(next) == 2, "a deleted limit keeps runs back: %d of 2, %+v", len(next), w.counts("l", ""))
		w.leases("l", "", 4, 0)
	}},
	{"redelivery keeps the slot, and clean-up needs none", func(w *World) {
		w.limit("l", slots(1), false)
		g := w.saga(perdure.Submission{Limits: []string{"l"}})
		w.cancel(g.Run.ID)
		w.do(&life.Release{Tenant: tenant, Worker: g.Run.Worker, Leases: []life.Lease{lease(g)}})
		r := w.under("", "l")
		op := &dispatch.Claim{Tenant: tenant, Worker: "w1", Slots: 1, Kinds: []string{"task"}}
		w.do(op)
		w.check(got(op.Grants, r) == "0 ", "the slot of the released run is not free")
		w.leases("l", "", 1, 0)
		c := w.cleanup()
		w.leases("l", "", 1, 0)
		w.commit(c, perdure.Commit{Outcome: confirmCancel})
		w.leases("l", "", 1, 0)
		for range 2 {
			w.pass(w.E.Policy().RegrantAfter(w.get(r.ID).Grants) + time.Second)
			op := &dispatch.Claim{Tenant: tenant, Worker: "w2", Slots: 5}
			w.do(op)
			w.check(got(op.Grants, r) == "0 ", "the lost dispatch is not granted again")
			w.leases("l", "", 1, 0)
		}
	}},
}

package conformance

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/rules"
	"github.com/perdure/perdure/internal/server/watchdog"
)

// takes are what a step takes of limits.
func takes(names ...string) (out []perdure.LimitTake) {
	for _, name := range names {
		out = append(out, perdure.LimitTake{Name: name})
	}
	return out
}

// ask asks for the slots of a step.
func (w *World) askSlots(g dispatch.Grant, t life.StepTake) life.StepTaken {
	w.t.Helper()
	t.Lease = lease(g)
	op := &life.TakeLimits{Tenant: tenant, Worker: g.Run.Worker, Takes: []life.StepTake{t}}
	w.do(op)
	w.check(op.Results[0].Error == nil, "step %s of run %s is refused: %+v", t.Step, g.Run.ID, op.Results[0].Error)
	return op.Results[0]
}

// takesSlot checks whether a step gets its slots.
func (w *World) takesSlot(g dispatch.Grant, step string, want bool, names ...string) life.StepTaken {
	w.t.Helper()
	out := w.askSlots(g, life.StepTake{Step: step, Limits: takes(names...)})
	w.check(out.Taken == want, "step %s of run %s: taken %v, want %v; %+v", step, g.Run.ID, out.Taken, want,
		out.Blocked)
	return out
}

// sleepFor suspends a run because a step waits for a limit.
func (w *World) sleepFor(g dispatch.Grant, wait, step string, names ...string) {
	w.t.Helper()
	w.commit(g, perdure.Commit{
		Waits:   []perdure.WaitSpec{{ID: wait, Type: perdure.WaitLimit, Name: step, Limits: takes(names...)}},
		Outcome: &perdure.Outcome{Type: perdure.OutcomeSuspend, Waits: []string{wait}}})
}

// agents grants runs without a limit of their own.
func (w *World) agents(n int) (out []dispatch.Grant) {
	w.t.Helper()
	for range n {
		w.submit(perdure.Submission{Kind: "task"})
		out = append(out, w.take("w1"))
	}
	return out
}

var stepLimitScenarios = []Scenario{
	{"a step holds a slot until its commit, and a repeated call takes nothing", func(w *World) {
		w.limit("l", slots(1), false)
		g := w.agents(2)
		w.takesSlot(g[0], "call#1", true, "l")
		w.takesSlot(g[0], "call#1", true, "l")
		w.leases("l", "", 1, 0)
		out := w.takesSlot(g[1], "call#1", false, "l")
		w.check(out.Blocked != nil && out.Blocked.Limit == "l", "blocked by %+v, want l", out.Blocked)
		w.commit(g[0], perdure.Commit{Journal: []perdure.JournalEntry{{Key: "other#1", Value: []byte(`1`)}}})
		w.leases("l", "", 1, 0)
		w.commit(g[0], perdure.Commit{Journal: []perdure.JournalEntry{{Key: "call#1", Value: []byte(`1`)}}})
		w.leases("l", "", 0, 0)
		w.takesSlot(g[1], "call#1", true, "l")
		w.askSlots(g[1], life.StepTake{Step: "call#1", GiveBack: true})
		w.leases("l", "", 0, 0)
	}},
	{"a step gets the slots of all of its limits, or none", func(w *World) {
		w.limit("l", slots(2), false)
		w.limit("m", slots(1), false)
		g := w.agents(2)
		w.takesSlot(g[0], "call#1", true, "l", "m")
		w.takesSlot(g[1], "call#1", false, "l", "m")
		w.leases("l", "", 1, 0)
		w.leases("m", "", 1, 0)
		op := &life.TakeLimits{Tenant: tenant, Worker: "w1", Takes: []life.StepTake{
			{Lease: lease(g[1]), Step: "x#1", Limits: takes("none")},
			{Lease: life.Lease{RunID: g[1].Run.ID, Epoch: 99}, Step: "x#1", Limits: takes("l")},
			{Lease: lease(g[1]), Step: "x#1", Limits: takes("l")}}}
		w.do(op)
		w.check(perdure.CodeOf(op.Results[0].Error) == perdure.CodeUnknownLimit &&
			perdure.CodeOf(op.Results[1].Error) == perdure.CodeStaleEpoch && op.Results[2].Taken,
			"results %+v, want unknown_limit, stale_epoch and a slot", op.Results)
	}},
	{"whatever ends the epoch ends the slots of its steps", func(w *World) {
		w.limit("l", slots(1), false)
		no := false
		for _, end := range []struct {
			how string
			do  func(g dispatch.Grant)
		}{
			{"complete", func(g dispatch.Grant) { w.complete(g, `1`) }},
			{"fail", func(g dispatch.Grant) {
				w.commit(g, perdure.Commit{Outcome: &perdure.Outcome{Type: perdure.OutcomeFail, Retryable: &no,
					Error: &perdure.Failure{Code: "x"}}})
			}},
			{"try again", func(g dispatch.Grant) { w.commit(g, perdure.Commit{Outcome: failed("x")}) }},
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
				w.cancel(g.Run.ID)
				w.commit(g, perdure.Commit{Outcome: confirmCancel})
			}},
		} {
			g := w.agents(1)[0]
			w.takesSlot(g, "call#1", true, "l")
			end.do(g)
			row := w.counts("l", "")
			w.check(row.Leased == 0, "%s: %d slots are held afterwards, want none", end.how, row.Leased)
			if r := w.get(g.Run.ID); r.State.Live() {
				w.cancel(r.ID)
			}
			w.pass(time.Hour)
			w.leases("l", "", 0, 0)
		}
	}},
	{"a step that waits for long suspends its run, and its slot is taken with the next grant", func(w *World) {
		w.limit("l", slots(1), false)
		g := w.agents(2)
		w.takesSlot(g[0], "call#1", true, "l")
		w.sleepFor(g[1], "limit:call#1:1", "call#1", "l")
		w.check(w.get(g[1].Run.ID).State == perdure.Suspended, "the run is not suspended")
		w.leases("l", "", 1, 1)
		w.blocked(g[1].Run.ID, "l", "")
		w.check(w.count(g[1].Run.ID, perdure.LineBlocked) == 1, "the log says %v", w.types(g[1].Run.ID))
		behind := w.under("", "l")
		w.leases("l", "", 1, 2)
		w.commit(g[0], perdure.Commit{Journal: []perdure.JournalEntry{{Key: "call#1", Value: []byte(`1`)}}})
		w.check(w.get(g[1].Run.ID).State == perdure.Queued, "the wait is not satisfied when the slot is free")
		w.takesSlot(g[0], "call#2", false, "l")
		next := w.poll("w2", 5)
		w.check(got(next, g[1].Run, behind) == "0 ", "leased: %s, want the resumed run", got(next, g[1].Run, behind))
		w.leases("l", "", 1, 1)
		w.takesSlot(next[0], "call#1", true, "l")
		w.leases("l", "", 1, 1)
		w.commit(next[0], perdure.Commit{Journal: []perdure.JournalEntry{{Key: "call#1", Value: []byte(`1`)}}})
		w.check(got(w.poll("w2", 5), behind) == "0 ", "the run behind is not leased when the step is recorded")
		w.leases("l", "", 1, 0)
	}},
	{"a wait whose limit has room is satisfied at once, and one whose limit was closed later waits for its grant",
		func(w *World) {
			w.limit("l", slots(1), false)
			g := w.agents(1)[0]
			w.sleepFor(g, "limit:call#1:1", "call#1", "l")
			w.check(w.get(g.Run.ID).State == perdure.Queued, "the run sleeps beside a free slot")
			w.do(&life.CloseLimit{Tenant: tenant, Name: "l", For: time.Minute})
			w.check(len(w.poll("w1", 5)) == 0, "the run is leased although its step's limit is closed")
			why := w.blocked(g.Run.ID, "l", "")
			w.check(why.Limits[0].ClosedUntil != 0, "waiting for %+v, want the end of the closure", why)
			w.pass(2 * time.Minute)
			w.take("w1")
			w.leases("l", "", 1, 0)
		}},
	{"a step takes of a rate, once for each try", func(w *World) {
		w.limit("r", perdure.LimitValues{Rate: &perdure.LimitRate{Count: 60, Per: perdure.Duration(time.Minute),
			Burst: 3}}, false)
		g := w.agents(1)[0]
		take := func(step string, units, try int) life.StepTaken {
			return w.askSlots(g, life.StepTake{Step: step, Limits: []perdure.LimitTake{{Name: "r", Units: units}},
				Try: try})
		}
		for range 2 { // also asked again, as after a lost answer
			w.check(take("a#1", 2, 0).Taken, "the burst is not granted")
		}
		w.check(!take("b#1", 2, 0).Taken, "more than the burst is granted")
		out := take("a#1", 2, 1)
		w.check(!out.Taken && out.Retry > 0 && out.Retry <= time.Second,
			"a second try: %+v, want it to wait up to 1 s", out)
		w.pass(2 * time.Second)
		w.check(take("a#1", 2, 1).Taken && !take("b#1", 2, 0).Taken, "a second try takes nothing of the rate")
	}},
	{"a step does not go ahead of those who wait for more of a rate", func(w *World) {
		w.limit("r", perMinute(60, 5), false)
		g := w.agents(2)
		take := func(n int) bool {
			return w.askSlots(g[n], life.StepTake{Step: "x#1", Limits: []perdure.LimitTake{{Name: "r"}}}).Taken
		}
		w.check(take(0), "the first unit is not granted")
		waits := w.submit(perdure.Submission{Kind: "task", Limits: []string{"r"}, Units: 5})
		w.blocked(waits.ID, "r", "")
		w.check(!take(1), "a step takes a unit ahead of a run that waits for five")
		w.pass(2 * time.Second)
		w.check(got(w.poll("w2", 1), waits) == "0 ", "the run that waits for five units is not granted")
	}},
	{"a step under a limit of its own run takes no second slot", func(w *World) {
		w.limit("l", slots(1), false)
		w.under("", "l")
		g := w.take("w1")
		w.takesSlot(g, "call#1", true, "l")
		w.leases("l", "", 1, 0)
		w.sleepFor(g, "limit:call#2:1", "call#2", "l")
		g = w.take("w1")
		w.takesSlot(g, "call#2", true, "l")
		w.leases("l", "", 1, 0)
		w.complete(g, `1`)
		w.leases("l", "", 0, 0)
	}},
	{"steps that wait at two limits go on at the first that has room", func(w *World) {
		w.limit("l", slots(1), false)
		w.limit("m", slots(1), false)
		g := w.agents(2)
		w.takesSlot(g[0], "x#1", true, "l")
		w.takesSlot(g[0], "y#1", true, "m")
		w.commit(g[1], perdure.Commit{
			Waits: []perdure.WaitSpec{{ID: "a", Type: perdure.WaitLimit, Name: "a#1", Limits: takes("l")},
				{ID: "b", Type: perdure.WaitLimit, Name: "b#1", Limits: takes("m")}},
			Outcome: &perdure.Outcome{Type: perdure.OutcomeSuspend}})
		w.leases("l", "", 1, 1)
		w.commit(g[0], perdure.Commit{Journal: []perdure.JournalEntry{{Key: "y#1", Value: []byte(`1`)}}})
		w.pass(w.E.Policy().Lease / 3)
		w.check(w.get(g[1].Run.ID).State == perdure.Queued, "the run still waits at the full one: %+v",
			w.get(g[1].Run.ID).Limited)
		w.take("w1")
		w.leases("m", "", 1, 0)
		w.leases("l", "", 1, 0)
	}},
	{"a run that ends while a step of it is offered a rate gives back what it was offered", func(w *World) {
		w.limit("r", perMinute(60, 20), false)
		w.submit(perdure.Submission{Kind: "task", Timeout: minutes(10)})
		g := w.take("w1")
		w.commit(g, perdure.Commit{
			Waits: []perdure.WaitSpec{
				{ID: "a", Type: perdure.WaitLimit, Name: "a#1", Limits: []perdure.LimitTake{{Name: "r", Units: 3}}},
				{ID: "s", Type: perdure.WaitSignal, Name: "go"}},
			Outcome: &perdure.Outcome{Type: perdure.OutcomeSuspend}})
		w.offered("r", 1, 3)
		w.pass(11 * time.Minute)
		w.check(w.get(g.Run.ID).State.Terminal(), "the run is %s, want an end", w.get(g.Run.ID).State)
		w.offered("r", 0, 0)
	}},
	{"a run that waits at a limit for long is told as blocked by it", func(w *World) {
		w.limit("l", slots(1), true)
		w.under("a", "l")
		w.take("w1")
		r := w.submit(perdure.Submission{Kind: "task", Limits: []string{"l"}, LimitKey: "a",
			Timeout: perdure.Duration(time.Hour)})
		w.closeLimit("l", time.Hour)
		w.pass(12 * time.Minute)
		slow := ""
		for _, line := range w.lines(r.ID) {
			if line.Type == perdure.LineSlow {
				slow += string(line.Data)
			}
		}
		w.check(strings.Contains(slow, `"limit":"l","key":"a"`), "run:slow says %s, want limit l and key a", slow)
		told := slices.ContainsFunc(w.Acted, func(a watchdog.Action) bool {
			return a.Run == r.ID && strings.HasPrefix(a.Why, "blocked by limit l (key a) for ")
		})
		w.check(told, "the log of the watchdog has %+v", w.Acted)
	}},
	{"the alert about a run at a limit begins again when the pause of its queue ends", func(w *World) {
		w.limit("l", slots(1), false)
		w.closeLimit("l", 4*time.Minute)
		r := w.under("", "l")
		w.pass(4*time.Minute + time.Second)
		w.check(w.get(r.ID).Ready, "the run is not offered the slot")
		w.closeLimit("l", time.Hour)
		w.check(len(w.poll("w1", 1)) == 0 && w.get(r.ID).AtLimit(), "the run does not wait at the closed limit")
		w.do(&rules.PauseQueue{Tenant: tenant, Queue: r.Queue, For: 90 * time.Second})
		w.pass(3 * time.Minute)
		w.check(w.count(r.ID, perdure.LineSlow) == 0, "alerted 90 s after the pause: %v", w.types(r.ID))
		w.pass(4 * time.Minute)
		w.check(w.count(r.ID, perdure.LineSlow) == 1, "not alerted after the pause: %v", w.types(r.ID))
	}},
	{"a run that is blocked by its own parent says so", func(w *World) {
		w.limit("l", slots(1), false)
		w.submit(perdure.Submission{Kind: "parent", Class: perdure.Agent, Limits: []string{"l"}})
		g := w.takeKind("parent")
		w.commit(g, perdure.Commit{Children: []perdure.Spawn{{Key: "c#1", Kind: "task", Limits: []string{"l"}}}})
		child := w.childOf(g.Run.ID)
		why := w.blocked(child, "l", "")
		w.check(strings.Contains(why.Text, "held by its own parent "+string(g.Run.ID)), "the reason is %q", why.Text)
		w.limit("l", slots(2), false)
		other := w.take("w2")
		w.check(other.Run.ID == child, "run %s is leased, want the child", other.Run.ID)
	}},
	{"a damaged run gives back its slots and its place in line", func(w *World) {
		w.limit("l", slots(1), false)
		w.limit("m", slots(1), false)
		holder := w.under("", "l")
		w.take("w1")
		g := w.agents(1)[0]
		w.takesSlot(g, "x#1", true, "m")
		waiter, next := w.under("", "l"), w.under("", "l")
		w.leases("l", "", 1, 2)
		damage := fmt.Sprintf("UPDATE %s SET rest='{', version=version+1 WHERE id=?", "runs")
		for _, id := range []perdure.RunID{holder.ID, g.Run.ID, waiter.ID} {
			w.do(corrupt{damage, []any{string(id)}})
		}
		w.restart()
		w.pass(2 * time.Minute)
		for _, id := range []perdure.RunID{holder.ID, g.Run.ID, waiter.ID} {
			w.check(w.storedState(id).Terminal(), "the damaged run %s is %s", id, w.storedState(id))
		}
		w.check(got(w.poll("w1", 5), next) == "0 ", "the run behind is not leased")
		w.leases("l", "", 1, 0)
		w.leases("m", "", 0, 0)
	}},
	{"a cancelled run leaves the line of its step", func(w *World) {
		w.limit("l", slots(1), false)
		g := w.agents(2)
		w.takesSlot(g[0], "x#1", true, "l")
		w.sleepFor(g[1], "a", "a#1", "l")
		w.cancel(g[1].Run.ID)
		w.leases("l", "", 1, 0)
		c := w.poll("w2", 1)
		w.check(len(c) == 1 && c[0].Cancel, "the cancelled run is not granted for clean-up")
		w.leases("l", "", 1, 0)
		w.commit(c[0], perdure.Commit{Outcome: confirmCancel})
		w.leases("l", "", 1, 0)
	}},
}

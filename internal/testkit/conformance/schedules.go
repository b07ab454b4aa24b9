package conformance

import (
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/reads"
	"github.com/perdure/perdure/internal/server/schedule"
	"github.com/perdure/perdure/internal/server/store"
)

// plan makes a schedule of runs of a kind with its own name.
func (w *World) plan(name string, p schedule.Plan) store.ScheduleRow {
	w.t.Helper()
	op := &life.PutSchedule{Tenant: tenant, Name: name, Plan: p, Submission: perdure.Submission{Kind: name}}
	w.do(op)
	return op.Schedule
}

func (w *World) schedule(name string) store.ScheduleRow {
	w.t.Helper()
	row, err := w.E.Schedules.Get(w.ctx(), tenant, name)
	w.check(err == nil, "schedule %s: %v", name, err)
	return row
}

// runsOf gives the runs of a kind, newest first.
func (w *World) runsOf(kind string) []perdure.Run {
	w.t.Helper()
	page, err := w.E.Runs.Page(w.ctx(), tenant, reads.RunFilter{Kind: kind, Limit: 1000})
	w.check(err == nil, "runs of %s: %v", kind, err)
	return page.Runs
}

// every is a plan with an interval.
func every(d time.Duration) schedule.Plan { return schedule.Plan{Every: perdure.Duration(d)} }

var scheduleScenarios = []Scenario{
	{"a schedule starts a run at each instant, also after restarts", func(w *World) {
		made := w.plan("tick", every(time.Minute))
		w.check(made.NextAt == w.Now.Add(time.Minute), "next = %s, want a minute from %s", made.NextAt, w.Now)
		for n := range 5 {
			w.restart()
			w.pass(time.Minute)
			list := w.runsOf("tick")
			w.check(len(list) == n+1, "%d runs after %d minutes", len(list), n+1)
			f := list[0].Options.Firing
			at := made.CreatedAt.Add(time.Duration(n+1) * time.Minute)
			w.check(f != nil && f.ID == made.ID && f.For == at && f.Missed == 0,
				"the run's instant: %+v", f)
		}
		row := w.schedule("tick")
		w.check(row.Fired == 5 && row.Missed == 0 && row.LastRun == w.runsOf("tick")[0].ID, "counts: %+v", row)
	}},
	{"a plan that ends before its next instant starts no run", func(w *World) {
		p := every(time.Hour)
		p.EndAt = w.Now.Add(30 * time.Minute)
		w.check(w.plan("over", p).NextAt == 0, "next = %s, want none", w.schedule("over").NextAt)
		w.plan("shorter", every(time.Hour))
		w.plan("shorter", p)
		w.pass(3 * time.Hour)
		w.check(len(w.runsOf("over"))+len(w.runsOf("shorter")) == 0, "a run is started after the end of its plan")
	}},
	{"missed instants are made up for as the plan says", func(w *World) {
		for _, missed := range []schedule.Missed{schedule.MissedOnce, schedule.MissedSkip, schedule.MissedAll} {
			p := every(time.Hour)
			p.Missed = missed
			w.plan(string(missed), p)
		}
		w.offline(5*time.Hour + 30*time.Minute)
		w.pass(time.Minute)
		for name, want := range map[string]int{"once": 1, "skip": 0, "all": 5} {
			list, row := w.runsOf(name), w.schedule(name)
			w.check(len(list) == want, "%s: %d runs, want %d", name, len(list), want)
			w.check(row.Fired+row.Missed == 5, "%s: %d fired and %d missed, want 5 together", name, row.Fired,
				row.Missed)
			w.check(row.NextAt > w.Now, "%s: next = %s, and it is %s", name, row.NextAt, w.Now)
		}
		f := w.runsOf("once")[0].Options.Firing
		w.check(f.Missed == 4, "missed_count = %+v", f)
		instants := map[perdure.Instant]bool{}
		for _, r := range w.runsOf("all") {
			instants[r.Options.Firing.For] = true
		}
		w.check(len(instants) == 5, "all: %d different instants, want 5", len(instants))
	}},
	{"a paused schedule fires nothing, and its instants are missed", func(w *World) {
		w.plan("p", every(time.Hour))
		w.do(&life.PauseSchedule{Tenant: tenant, Name: "p", Paused: true})
		w.pass(3*time.Hour + time.Minute)
		w.check(len(w.runsOf("p")) == 0, "a paused schedule has started a run")
		w.do(&life.PauseSchedule{Tenant: tenant, Name: "p"})
		w.pass(time.Second)
		list := w.runsOf("p")
		w.check(len(list) == 1 && list[0].Options.Firing.Missed == 2, "after the pause: %d runs", len(list))
		// A deploy that repeats the schedule neither resumes it nor moves it.
		w.do(&life.PauseSchedule{Tenant: tenant, Name: "p", Paused: true})
		before := w.schedule("p")
		again := w.plan("p", every(time.Hour))
		w.check(again == before, "repeated: %+v, want %+v", again, before)
	}},
	{"overlaps: allow, skip, queue and cancel_old", func(w *World) {
		for _, o := range []schedule.Overlap{schedule.OverlapAllow, schedule.OverlapSkip, schedule.OverlapQueue,
			schedule.OverlapCancelOld} {
			p := every(time.Minute)
			p.Overlap = o
			w.plan(string(o), p)
		}
		w.pass(3*time.Minute + time.Second)
		for name, want := range map[string]int{"allow": 3, "skip": 1, "queue": 1, "cancel_old": 3} {
			n := len(w.runsOf(name))
			w.check(n == want, "%s: %d runs after three minutes, want %d", name, n, want)
		}
		old := w.runsOf("cancel_old")
		w.check(old[0].State == perdure.Queued && old[1].State == perdure.Cancelled &&
			old[2].State == perdure.Cancelled,
			"cancel_old: %s, %s, %s", old[0].State, old[1].State, old[2].State)
		w.check(w.schedule("skip").Skipped == 2, "skip: %d skipped", w.schedule("skip").Skipped)
		row := w.schedule("queue")
		w.check(row.WaitingAt == row.CreatedAt.Add(2*time.Minute) && row.Skipped == 1, "queue: %+v", row)
		// The end of the last run starts the one that waits.
		w.do(&life.Cancel{Tenant: tenant, RunID: w.runsOf("queue")[0].ID})
		w.sweep()
		list := w.runsOf("queue")
		w.check(len(list) == 2 && list[0].Options.Firing.For == row.WaitingAt, "queue: %d runs after the end",
			len(list))
	}},
	{"a refused run is counted and told, and the schedule goes on", func(w *World) {
		w.signWith("a")
		w.requireSignatures(true)
		w.plan("s", every(time.Minute))
		w.signWith("")
		w.pass(12*time.Minute + time.Second)
		row := w.schedule("s")
		w.check(row.Failed == 12 && row.Failures == 12 && row.Fired == 0 &&
			life.RefusalOf(&row).Code == perdure.CodeNoSigner, "refused: %+v", row)
		w.signWith("a")
		w.pass(time.Minute)
		row = w.schedule("s")
		w.check(row.Fired == 1 && row.Failures == 0 && row.LastError == "", "afterwards: %+v", row)
		w.check(w.runsOf("s")[0].Signature != perdure.Signature{}, "the run is not signed")
	}},
	{"a schedule is triggered, ends, is deleted and made again", func(w *World) {
		p := every(time.Minute)
		p.EndAt = w.Now.Add(2 * time.Minute)
		w.plan("t", p)
		trigger := &life.TriggerSchedule{Tenant: tenant, Name: "t", Key: "k"}
		w.do(trigger)
		again := &life.TriggerSchedule{Tenant: tenant, Name: "t", Key: "k"}
		w.do(again)
		w.check(again.Run.ID == trigger.Run.ID && !again.Created, "a repeated trigger made another run")
		w.pass(10 * time.Minute)
		row := w.schedule("t")
		w.check(row.Fired == 2 && row.NextAt == 0 && row.AlarmAt == 0, "over: %+v", row)
		w.refuse(perdure.CodeNameTaken, &life.PutSchedule{Tenant: tenant, Name: "t", New: true, Plan: p,
			Submission: perdure.Submission{Kind: "t"}})
		w.do(&life.DeleteSchedule{Tenant: tenant, Name: "t"})
		w.refuse(perdure.CodeNotFound, &life.TriggerSchedule{Tenant: tenant, Name: "t"})
		made := w.plan("t", every(time.Hour))
		w.check(made.ID != row.ID && made.Fired == 0, "made again: %+v", made)
		w.do(&life.DeleteSchedule{Tenant: tenant, Name: "t"})
		w.passQuietly(3 * time.Hour)
		w.retire()
		w.check(w.rows("schedules") == 0, "%d rows of deleted schedules", w.rows("schedules"))
	}},
	{"a schedule refuses what does not go with it", func(w *World) {
		for field, sub := range map[string]perdure.Submission{"delay": {Kind: "x", Delay: minutes(1)},
			"webhook": {Kind: "x", Webhook: "https://example.com"}, "kind": {}} {
			err := w.E.Step(w.Now, &life.PutSchedule{Tenant: tenant, Name: "x", Plan: every(time.Hour),
				Submission: sub})[0]
			refused, ok := err.(*perdure.Error)
			w.check(ok && refused.Field == field, "%s: %v", field, err)
		}
		w.refuse(perdure.CodeNeverFires, &life.PutSchedule{Tenant: tenant, Name: "x",
			Plan: schedule.Plan{Cron: "30 2 30 2 *"}, Submission: perdure.Submission{Kind: "x"}})
	}},
}

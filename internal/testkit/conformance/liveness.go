package conformance

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/reads"
	"github.com/perdure/perdure/internal/server/engine/rules"
	"github.com/perdure/perdure/internal/server/engine/upkeep"
	"github.com/perdure/perdure/internal/server/store"
)

// tier gives the liveness tier of a run.
func (w *World) tier(id perdure.RunID) string {
	w.t.Helper()
	return w.E.Policy().Tier(&w.get(id).Run, w.Now)
}

// lengthenLeases sets leases that outlast every liveness threshold, so that only the tiers act.
func (w *World) lengthenLeases() {
	w.E.Policy().Lease, w.E.Policy().ActiveReap = 20*time.Minute, 20*time.Minute
	w.widenGap()
}

// widenGap raises GapAfter, so that the watchdog may sleep between alarms without detecting a gap.
func (w *World) widenGap() { w.E.Policy().GapAfter = 2 * time.Minute }

// process submits a run of class process, and starts it.
func (w *World) process(attempts int) dispatch.Grant {
	w.t.Helper()
	w.widenGap()
	w.submit(perdure.Submission{Kind: "proc", Class: perdure.Process, MaxAttempts: attempts})
	return w.takeKind("proc")
}

var livenessScenarios = []Scenario{
	{"tiers: fresh, stale, dead, and fresh again with the next sign of life", func(w *World) {
		w.lengthenLeases()
		r := w.submit(perdure.Submission{Kind: "job", Timeout: perdure.Duration(time.Hour)})
		w.check(w.tier(r.ID) == "", "nobody holds it")
		g := w.take("w1")
		w.pass(2*time.Minute - time.Microsecond)
		w.check(w.tier(r.ID) == perdure.TierFresh && w.count(r.ID, "run:stale") == 0, "%s", w.tier(r.ID))
		w.pass(time.Microsecond)
		w.check(w.tier(r.ID) == perdure.TierStale && w.count(r.ID, "run:stale") == 1, "%s", w.tier(r.ID))
		w.pass(8 * time.Minute)
		w.check(w.tier(r.ID) == perdure.TierStale, "%s", w.tier(r.ID))
		w.pass(5 * time.Minute)
		w.check(w.tier(r.ID) == perdure.TierDead && w.count(r.ID, "run:stale") == 1, "once per silence: %v",
			w.types(r.ID))
		w.state(r.ID, perdure.Running) // a tier ends no lease
		w.beat(g)
		w.check(w.tier(r.ID) == perdure.TierFresh, "heard from: %s", w.tier(r.ID))
		w.pass(3 * time.Minute)
		w.check(w.count(r.ID, "run:stale") == 2, "another silence: %v", w.types(r.ID))
		w.complete(g, `1`)
		w.check(w.state(r.ID, perdure.Completed).Attempt == 1 && w.tier(r.ID) == "", "the first attempt")
	}},
	{"a run of perdure exec that its runner does not take ends soon, not while its queue is paused", func(w *World) {
		w.widenGap()
		sub := perdure.Submission{Kind: "exec", Class: perdure.Process, Queue: perdure.LocalQueue, MaxAttempts: 1}
		r := w.submit(sub)
		w.pass(59 * time.Second)
		w.state(r.ID, perdure.Queued)
		w.pass(2 * time.Second)
		end := w.state(r.ID, perdure.TimedOut)
		w.check(end.Failure != nil && end.Failure.Code == perdure.CodeDispatchTimeout &&
			strings.Contains(end.Failure.Message, "perdure exec --again "+string(r.ID)), "%+v", end.Failure)
		w.check(len(w.letters(store.LetterFilter{Queue: perdure.LocalQueue})) == 1, "a dead letter")
		w.do(&rules.PauseQueue{Tenant: tenant, Queue: perdure.LocalQueue, Until: w.Now.Add(10 * time.Minute)})
		paused := w.submit(sub)
		w.pass(10 * time.Minute)
		w.state(paused.ID, perdure.Queued)
		w.pass(2 * time.Minute)
		w.state(paused.ID, perdure.TimedOut)
	}},
	{"a run of perdure exec is retried by those who have a runner alone", func(w *World) {
		w.widenGap()
		r := w.submit(perdure.Submission{Kind: "exec", Class: perdure.Process, Queue: perdure.LocalQueue,
			MaxAttempts: 1})
		w.pass(2 * time.Minute)
		w.state(r.ID, perdure.TimedOut)
		w.refuse(perdure.CodeNoRunner, &life.Retry{Tenant: tenant, RunID: r.ID})
		w.refuse(perdure.CodeNoRunner, &upkeep.Redrive{Tenant: tenant, RunID: r.ID})
		again := &life.Retry{Tenant: tenant, RunID: r.ID, Local: true}
		w.do(again)
		w.check(again.Run.RetryOf == r.ID && again.Run.Queue == perdure.LocalQueue, "%+v", again.Run)
		pooled := w.process(1)
		w.commit(pooled, perdure.Commit{Outcome: failed("broken")})
		w.refuse(perdure.CodeInvalid, &life.Retry{Tenant: tenant, RunID: pooled.Run.ID, Local: true})
		next := &life.Retry{Tenant: tenant, RunID: pooled.Run.ID}
		w.do(next)
		w.check(next.Run.Queue == pooled.Run.Queue, "a pool's run goes to its queue: %s", next.Run.Queue)
	}},
	{"a process that beats every 30 s is not silent", func(w *World) {
		g := w.process(1)
		for range 10 {
			w.beat(g)
			w.pass(32 * time.Second)
		}
		w.check(w.count(g.Run.ID, "run:slow") == 0, "%v", w.types(g.Run.ID))
		w.pass(42*time.Second + 999*time.Millisecond)
		w.check(w.count(g.Run.ID, "run:slow") == 0, "%v", w.types(g.Run.ID))
		w.pass(time.Millisecond)
		w.check(w.count(g.Run.ID, "run:slow") == 1, "%v", w.types(g.Run.ID))
	}},
	{"any beat, event, delta or commit is a sign of life", func(w *World) {
		w.lengthenLeases()
		r := w.submit(perdure.Submission{Kind: "job", Timeout: perdure.Duration(time.Hour)})
		g := w.take("w1")
		emit := func(typ perdure.LineType, data string) func() {
			return func() {
				w.commit(g, perdure.Commit{Events: []perdure.Emitted{{Type: typ, Data: json.RawMessage(data)}}})
			}
		}
		for i, sign := range []func(){
			func() { w.beat(g) },
			emit("x:mine", `1`), emit(perdure.LineDelta, `"word"`), emit(perdure.LineProgress, `{"n":1}`),
			func() {
				w.commit(g, perdure.Commit{Journal: []perdure.JournalEntry{{Key: "s", Value: json.RawMessage(`1`)}}})
			},
			func() {
				w.do(&life.Start{Tenant: tenant, Worker: "w1", Leases: []life.Lease{lease(g)}})
			},
		} {
			w.pass(2*time.Minute + time.Second)
			w.check(w.tier(r.ID) == perdure.TierStale && w.count(r.ID, "run:stale") == i+1, "%d: %s, %v", i,
				w.tier(r.ID), w.types(r.ID))
			sign()
			w.check(w.tier(r.ID) == perdure.TierFresh, "sign %d was not heard", i)
		}
		w.complete(g, `1`)
	}},
	{"W12: a process without a heartbeat fails as heartbeat_lost", func(w *World) {
		g := w.process(1)
		w.do(&life.Heartbeat{Tenant: tenant, Worker: "w-proc",
			Beats: []life.BeatOf{{Lease: lease(g), Activity: "compiling",
				Progress: json.RawMessage(`{"done":3}`)}}})
		w.pass(9 * time.Minute) // its lease and its worker are long gone, and nobody minds
		w.state(g.Run.ID, perdure.Running)
		w.check(w.tier(g.Run.ID) == perdure.TierStale && w.count(g.Run.ID, "run:stale") == 1 &&
			w.acted("W6") == 0, "%v", w.Acted)
		w.pass(61 * time.Second)
		r := w.ended(g.Run.ID, perdure.Failed, perdure.CodeHeartbeatLost)
		w.check(r.Epoch > g.Run.Epoch && r.Attempt == 1, "fenced: %d, attempt %d", r.Epoch, r.Attempt)
		w.check(strings.Contains(string(r.Fallback), `"activity":"compiling"`) &&
			strings.Contains(string(r.Fallback), `"partial":{"done":3}`), "%s", r.Fallback)
		w.view(func(v *store.View) error {
			letter, ok, err := v.DeadLetters.Get(tenant, r.ID)
			w.check(ok && letter.Cause == "heartbeat_lost", "%+v", letter)
			return err
		})
		late := w.commitOf(g, perdure.Commit{Outcome: done(`"after all"`)})
		w.do(late)
		w.check(late.Refused != nil && len(w.lates(r.ID)) == 1, "its result is kept")
	}},
	{"W12: a process with attempts left is queued again, and its silence costs one", func(w *World) {
		g := w.process(2)
		w.pass(11 * time.Minute)
		r := w.state(g.Run.ID, perdure.Queued)
		w.check(r.Attempt == 2 && r.Epoch > g.Run.Epoch && w.count(r.ID, "run:reclaimed") == 1, "%+v", w.types(r.ID))
		g = w.takeKind("proc")
		w.check(g.Run.ID == r.ID, "another runner has it")
		w.pass(11 * time.Minute)
		w.ended(r.ID, perdure.Failed, perdure.CodeHeartbeatLost)
	}},
	{"W12: a process that beats lives on, past every lease", func(w *World) {
		g := w.process(1)
		for range 10 {
			w.pass(9 * time.Minute)
			w.beat(g)
		}
		w.check(w.acted("W6")+w.acted("W7") == 0 && w.count(g.Run.ID, "run:stale") == 10, "%v", w.types(g.Run.ID))
		w.complete(g, `1`)
		w.state(g.Run.ID, perdure.Completed)
	}},
	{"W12: a process that is lost while it is being cancelled ends cancelled", func(w *World) {
		g := w.process(3)
		w.E.Policy().CleanupGrace = time.Hour
		w.cancel(g.Run.ID)
		w.do(&life.Heartbeat{Tenant: tenant, Worker: "w-proc",
			Beats: []life.BeatOf{{Lease: lease(g), CancelAck: true}}})
		w.pass(11 * time.Minute)
		w.ended(g.Run.ID, perdure.Cancelled, perdure.CodeCancelled)
	}},
	{"W12: after a gap tiers wait for a lease, and nobody is given up for what he could not say", func(w *World) {
		g := w.process(1)
		w.lengthenLeases()
		w.E.Policy().Lease = time.Minute
		job := w.task()
		k := w.takeKind("job")
		w.sweep()
		w.offline(15 * time.Minute) // with the deadlines of a process and of a task of ten minutes
		w.sweep()
		w.state(g.Run.ID, perdure.Running)
		w.check(w.count(g.Run.ID, "run:stale") == 0, "held back: %v", w.types(g.Run.ID))
		w.pass(30 * time.Second)
		w.beat(g)
		w.pass(90 * time.Second)
		w.state(g.Run.ID, perdure.Running)
		w.state(job.ID, perdure.TimedOut)
		w.refuseLease(perdure.CodeStaleEpoch, k)
		w.complete(g, `1`)
	}},
	{"a server that shuts down for longer than a lease does not judge by silence", func(w *World) {
		w.E.Policy().Lease = 10 * time.Second
		r := w.submit(perdure.Submission{Kind: "job", MaxAttempts: 3})
		g := w.takeKind("job")
		w.sweep()
		w.W.Drain()
		for range 12 {
			w.Now = w.Now.Add(time.Second)
			w.sweep()
		}
		w.state(r.ID, perdure.Running)
		w.offline(time.Second)
		w.sweep()
		w.state(r.ID, perdure.Running)
		w.complete(g, `1`)
	}},
	{"thresholds of kinds and of activities", func(w *World) {
		w.lengthenLeases()
		w.E.Policy().Liveness = perdure.Liveness{
			Activities: map[string]perdure.Thresholds{"llm_thinking": {Silent: 3 * time.Minute,
				Stale: 5 * time.Minute}},
			Kinds: map[string]perdure.KindLiveness{
				"report": {Thresholds: perdure.Thresholds{Silent: time.Minute}},
				"scan": {Thresholds: perdure.Thresholds{Stale: 40 * time.Second, Dead: 80 * time.Second},
					Activities: map[string]perdure.Thresholds{"llm_thinking": {Stale: 7 * time.Minute,
						Dead: 8 * time.Minute}}},
			}}
		w.check(w.E.Policy().Validate() == nil, "%v", w.E.Policy().Validate())
		for _, x := range []struct {
			kind, activity string
			silent, stale  time.Duration
		}{
			{"job", "", 30 * time.Second, 2 * time.Minute},
			{"job", "llm_thinking", 3 * time.Minute, 5 * time.Minute},
			{"job", "tool_executing", 30 * time.Second, 2 * time.Minute},
			{"report", "", time.Minute, 2 * time.Minute},
			{"report", "llm_thinking", time.Minute, 5 * time.Minute},
			// a threshold of the kind takes precedence over the default
			{"scan", "", 30 * time.Second, 40 * time.Second},
			{"scan", "llm_thinking", 3 * time.Minute, 7 * time.Minute},
		} {
			r := w.submit(perdure.Submission{Kind: x.kind, Timeout: perdure.Duration(time.Hour)})
			g := w.takeKind(x.kind)
			w.do(&life.Heartbeat{Tenant: tenant, Worker: g.Run.Worker,
				Beats: []life.BeatOf{{Lease: lease(g), Activity: x.activity}}})
			heard := w.Now
			w.pass(7*time.Minute + time.Second)
			at := map[perdure.LineType]time.Duration{}
			for _, l := range w.lines(r.ID) {
				at[l.Type] = l.At.Sub(heard)
			}
			w.check(at["run:slow"] == x.silent && at["run:stale"] == x.stale,
				"%s %s: slow after %s, stale after %s", x.kind, x.activity, at["run:slow"], at["run:stale"])
			w.complete(g, `1`)
		}
	}},
	{"on_stall: a child's run:slow or run:stale satisfies the wait as stalled, and ends nothing", func(w *World) {
		w.lengthenLeases()
		for _, line := range []string{"run:slow", "run:stale"} {
			w.E.Policy().Silent = 30 * time.Second
			if line == "run:stale" {
				w.E.Policy().Silent = 15 * time.Minute
			}
			p := w.submit(perdure.Submission{Kind: "parent", Timeout: perdure.Duration(time.Hour)})
			spawns, keys := kids(1)
			ans := w.commit(w.takeKind("parent"), perdure.Commit{Children: spawns,
				Waits: wait(perdure.WaitSpec{ID: "join", Type: perdure.WaitChildren, Keys: keys,
					Timeout: perdure.Never, OnStall: true}), Outcome: suspend})
			kid := w.takeKind("kid")
			w.pass(29 * time.Second)
			w.state(p.ID, perdure.Suspended)
			w.pass(2 * time.Minute)
			w.check(w.count(kid.Run.ID, perdure.LineType(line)) == 1, "%v", w.types(kid.Run.ID))
			g := w.takeKind("parent")
			w.check(len(g.Inbox) == 1 && g.Inbox[0].WaitID == "join" &&
				g.Inbox[0].Outcome == perdure.WaitStalled, "%+v", g.Inbox)
			w.state(ans.Children[0].RunID, perdure.Running)
			again := w.commit(g, perdure.Commit{Ack: []int64{g.Inbox[0].Seq},
				Waits: wait(perdure.WaitSpec{ID: "again", Type: perdure.WaitChildren, Keys: keys,
					Timeout: perdure.Never}), Outcome: suspend})
			w.check(again.State == perdure.Suspended, "it decides to wait on: %s", again.State)
			w.complete(kid, `1`)
			w.complete(w.takeKind("parent"), `1`)
		}
	}},
	{"on_stall: a child on hold satisfies the wait as stalled after no_progress, once per hold", func(w *World) {
		p := w.submit(perdure.Submission{Kind: "parent", Class: perdure.Agent})
		spawns, keys := kids(1)
		spawns[0].Class, spawns[0].Timeout = perdure.Agent, perdure.Duration(10*time.Hour)
		w.commit(w.takeKind("parent"), perdure.Commit{Children: spawns,
			Waits: wait(perdure.WaitSpec{ID: "join", Type: perdure.WaitChildren, Keys: keys,
				Timeout: perdure.Never, OnStall: true}), Outcome: suspend})
		var kid dispatch.Grant
		// try executes the child once more, which fails in the same way. It is never claimable for long.
		try := func(after time.Duration, journal ...perdure.JournalEntry) {
			w.pass(after)
			kid = w.takeKind("kid")
			if len(journal) > 0 {
				w.commit(kid, perdure.Commit{Journal: journal})
			}
			w.commit(kid, perdure.Commit{Outcome: defect("panic")})
		}
		try(0)
		for range 4 {
			try(2 * time.Minute)
		}
		w.pass(time.Minute)
		w.state(p.ID, perdure.Suspended)
		w.pass(61 * time.Second)
		w.check(w.count(kid.Run.ID, perdure.LineSlow) == 1, "%v", w.types(kid.Run.ID))
		g := w.takeKind("parent")
		w.check(len(g.Inbox) == 1 && g.Inbox[0].WaitID == "join" && g.Inbox[0].Outcome == perdure.WaitStalled &&
			g.Inbox[0].From == kid.Run.ID, "%+v", g.Inbox)
		w.commit(g, perdure.Commit{Ack: []int64{g.Inbox[0].Seq}, Waits: wait(perdure.WaitSpec{ID: "again",
			Type: perdure.WaitChildren, Keys: keys, Timeout: perdure.Never}), Outcome: suspend})
		for range 3 {
			try(2 * time.Minute)
		}
		w.check(w.count(kid.Run.ID, perdure.LineSlow) == 1, "once per hold: %v", w.types(kid.Run.ID))
		try(3*time.Minute, perdure.JournalEntry{Key: "a", Value: json.RawMessage(`1`)})
		try(6 * time.Minute) // another hold, because it has made progress
		w.check(w.count(kid.Run.ID, perdure.LineSlow) == 1, "of the next hold: %v", w.types(kid.Run.ID))
		w.pass(4*time.Minute + time.Second)
		w.check(w.count(kid.Run.ID, perdure.LineSlow) == 2, "of the next hold: %v", w.types(kid.Run.ID))
	}},
	{"webhooks are told of stalls and of late results", func(w *World) {
		hook, _ := w.hook("")
		g := w.process(1)
		w.pass(11 * time.Minute)
		w.do(w.commitOf(g, perdure.Commit{Outcome: done(`1`)}))
		w.check(w.lineTypes(g.Run.ID, hook.ID) == "slow stale dead_lettered failed late_result", "%s",
			w.lineTypes(g.Run.ID, hook.ID))
	}},
	{"the activity of a run: bounded, and in the order of its log", func(w *World) {
		p := w.submit(perdure.Submission{Kind: "parent", Timeout: perdure.Duration(time.Hour)})
		g := w.takeKind("parent")
		spawns, keys := kids(3)
		w.commit(g, perdure.Commit{Children: spawns,
			Waits: wait(perdure.WaitSpec{ID: "join", Type: perdure.WaitChildren, Keys: keys,
				Timeout: perdure.Never}), Outcome: suspend})
		ended, kid := w.takeKind("kid"), w.takeKind("kid")
		w.complete(ended, `1`)
		look := func(id perdure.RunID) reads.Activity {
			w.t.Helper()
			a, err := w.E.Runs.Activity(w.ctx(), tenant, id)
			w.check(err == nil, "%v", err)
			return a
		}
		a := look(p.ID)
		w.check(a.State == perdure.Suspended && len(a.Waits) == 1 && a.Waits[0].Ended == 1 &&
			len(a.Family) == 3 && a.Family[2].ID == ended.Run.ID,
			"the living first: %+v", a)
		_, err := w.E.Runs.ChildActivity(w.ctx(), tenant, p.ID, g.Run.Epoch, kid.Run.ID)
		w.check(perdure.CodeOf(err) == perdure.CodeStaleEpoch, "a sleeping parent has no lease to show: %v", err)

		say := func(activity string) {
			w.Now = w.Now.Add(time.Second)
			w.do(&life.Heartbeat{Tenant: tenant, Worker: kid.Run.Worker,
				Beats: []life.BeatOf{{Lease: lease(kid), Activity: activity}}})
		}
		say("tool_executing")
		since := w.Now
		w.pass(59 * time.Second)
		say("tool_executing")
		w.pass(59 * time.Second)
		say("tool_executing") // a line each minute, and the same operation
		w.check(look(kid.Run.ID).ActivityAt == since, "since %s, not %s", since, look(kid.Run.ID).ActivityAt)
		n := 0
		for _, h := range look(kid.Run.ID).Recent {
			if h.Type == perdure.LineHeartbeat {
				n++
			}
		}
		w.check(n == 1, "%d lines of one activity", n)
		var many []perdure.Emitted
		for i := range 120 {
			many = append(many, perdure.Emitted{Type: perdure.LineType("x:" + fmt.Sprint(i)),
				Data: json.RawMessage(`{"tool":"grep","args":["` + strings.Repeat("é", 300) + `"]}`)})
			many = append(many, perdure.Emitted{Type: perdure.LineDelta, Data: json.RawMessage(`{"text":"` +
				strings.Repeat("ü", 20) + fmt.Sprint(i) + ` "}`)})
		}
		w.commit(kid, perdure.Commit{Events: many})
		a = look(kid.Run.ID)
		w.check(len(a.Recent) == 20 && a.Recent[19].Type == "x:119" && a.Recent[0].Type == "x:100" &&
			len(a.Recent[0].Text) <= 240 && strings.HasPrefix(a.Recent[0].Text, "tool grep, args "), "%+v", a.Recent)
		w.check(len(a.Text) <= 2048 && len(a.Text) > 2000 && strings.HasSuffix(a.Text, "119 ") &&
			json.Valid([]byte(`"`+a.Text+`"`)), "%d bytes: %s", len(a.Text), a.Text)

		w.complete(kid, `1`)
		w.complete(w.takeKind("kid"), `1`)
		g = w.takeKind("parent")
		a, err = w.E.Runs.ChildActivity(w.ctx(), tenant, p.ID, g.Run.Epoch, kid.Run.ID)
		w.check(err == nil && a.State == perdure.Completed, "its holder sees a child: %v", err)
		_, err = w.E.Runs.ChildActivity(w.ctx(), tenant, p.ID, g.Run.Epoch, p.ID)
		w.check(perdure.CodeOf(err) == perdure.CodeNotFound, "and nobody else: %v", err)
		_, err = w.E.Runs.Activity(w.ctx(), "other", kid.Run.ID)
		w.check(perdure.CodeOf(err) == perdure.CodeNotFound, "%v", err)
		w.complete(g, `1`)
	}},
	{"a long log costs no more to look at than a short one, and an attempt's text is its own", func(w *World) {
		r := w.task()
		g := w.take("w1")
		w.commit(g, perdure.Commit{Events: []perdure.Emitted{{Type: perdure.LineDelta,
			Data: json.RawMessage(`"lost"`)}}})
		w.commit(g, perdure.Commit{Outcome: failed("x")})
		w.pass(2 * time.Second)
		g = w.take("w1")
		a, err := w.E.Runs.Activity(w.ctx(), tenant, r.ID)
		w.check(err == nil && a.Text == "", "%q", a.Text)
		for range 20 {
			var part []perdure.Emitted
			for range 60 {
				part = append(part, perdure.Emitted{Type: "x:a", Data: json.RawMessage(`1`)},
					perdure.Emitted{Type: perdure.LineDelta, Data: json.RawMessage(`"a"`)})
			}
			w.commit(g, perdure.Commit{Events: part})
		}
		a, err = w.E.Runs.Activity(w.ctx(), tenant, r.ID)
		w.check(err == nil && len(a.Text) == 500 && len(a.Recent) == 20, "%d bytes of text, %d lines",
			len(a.Text), len(a.Recent))
		w.complete(g, `1`)
	}},
}

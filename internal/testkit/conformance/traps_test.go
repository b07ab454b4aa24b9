package conformance

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/schedule"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/server/watchdog"
)

// The condition of each rule, brought about: by what one can do, or by damage where it takes that.

func trapDeadline(w *World) trap {
	h := w.household(perdure.Spawn{Timeout: perdure.Duration(10 * time.Minute)})
	r := w.get(h.run)
	return trap{run: h.run, due: r.DeadlineAt, then: func() {
		w.contract(h, 0, perdure.TimedOut, perdure.CodeDeadline, false)
	}}
}

func trapCancelGrace(w *World) trap {
	h := w.household(perdure.Spawn{})
	g := w.busy()
	w.cancel(h.run)
	return trap{run: h.run, due: w.Now.Add(30 * time.Second), alive: w.beats(g), then: func() {
		w.contract(h, g.Run.Epoch, perdure.Cancelled, perdure.CodeCancelled, false)
		w.late(g)
	}, more: func() {
		// One that is acknowledged has its own time to clean up.
		r := w.submit(perdure.Submission{Kind: "job", Class: perdure.Agent})
		g := w.takeKind("job")
		w.cancel(r.ID)
		w.do(&life.Heartbeat{Tenant: tenant, Worker: g.Run.Worker,
			Beats: []life.BeatOf{{Lease: lease(g), CancelAck: true}}})
		for range 60 {
			w.beat(g)
			w.state(r.ID, perdure.Running)
			w.pass(10 * time.Second)
		}
		w.ended(r.ID, perdure.Cancelled, perdure.CodeCancelled)
	}}
}

func trapLostWorker(w *World) trap {
	h := w.household(perdure.Spawn{Timeout: perdure.Duration(time.Hour)})
	g := w.busy()
	return trap{run: h.run, due: w.get(h.run).LeaseUntil, then: func() {
		r := w.state(h.run, perdure.Queued)
		w.check(r.Attempt == 2 && r.Epoch == g.Run.Epoch+1 &&
			r.ReadyAt > w.Now, "another attempt, after a while: %+v", r)
		w.check(w.count(h.run, "run:reclaimed") == 1 && w.count(h.run, "run:retrying") == 1, "%v", w.types(h.run))
		w.late(g)
	}, more: func() {
		w.pass(2 * time.Second)
		w.busy()
		w.pass(65 * time.Second)
		last := w.busy()
		w.pass(60 * time.Second)
		w.contract(h, last.Run.Epoch, perdure.Failed, perdure.CodeAttemptsExhausted, true)
	}}
}

func trapDead(w *World) trap {
	h := w.household(perdure.Spawn{Class: perdure.Process, MaxAttempts: 1})
	g := w.busy()
	return trap{run: h.run, due: w.get(h.run).SeenAt.Add(w.E.Policy().DeadAfter), then: func() {
		w.contract(h, g.Run.Epoch, perdure.Failed, perdure.CodeHeartbeatLost, true)
		w.late(g)
	}}
}

func trapDispatchTimeout(w *World) trap {
	h := w.household(perdure.Spawn{Timeout: perdure.Duration(time.Hour)})
	op := &dispatch.Claim{Tenant: tenant, Worker: "gone", Kinds: []string{"kid"}, Slots: 1}
	w.do(op)
	return trap{run: h.run, due: w.Now.Add(30 * time.Second), then: func() {
		r := w.state(h.run, perdure.Queued)
		w.check(r.Attempt == 1 && r.Grants == 1 && r.Epoch == op.Grants[0].Run.Epoch+1,
			"back, and nothing is spent: %+v", r)
		w.refuseLease(perdure.CodeStaleEpoch, op.Grants[0])
	}, more: func() {
		var epoch int64
		for range 2000 {
			w.do(op)
			if w.get(h.run).State.Terminal() {
				break
			}
			epoch = w.get(h.run).Epoch
			w.pass(5 * time.Second)
		}
		w.check(w.count(h.run, "run:dispatched") == 10, "%v", w.types(h.run))
		w.contract(h, epoch, perdure.TimedOut, perdure.CodeDispatchTimeout, true)
	}}
}

func trapUnclaimed(w *World) trap {
	r := w.submit(perdure.Submission{Kind: "exec", Class: perdure.Process, Queue: perdure.LocalQueue, MaxAttempts: 1,
		Timeout: perdure.Duration(time.Hour)})
	return trap{run: r.ID, due: w.Now.Add(time.Minute), then: func() {
		w.ended(r.ID, perdure.TimedOut, perdure.CodeDispatchTimeout)
		w.check(w.count(r.ID, "run:dead_lettered") == 1, "run %s: no dead letter: %v", r.ID, w.types(r.ID))
	}}
}

func trapDispatchRetry(w *World) trap {
	r := w.task()
	first := w.poll("gone", 1)[0]
	return trap{run: r.ID, due: w.Now.Add(5 * time.Second), then: func() {
		got := w.state(r.ID, perdure.Dispatched)
		w.check(got.Epoch == first.Run.Epoch && got.Ready, "it may be taken: %+v", got)
		again := w.poll("w2", 1)
		w.check(len(again) == 1 && again[0].Run.Epoch == first.Run.Epoch+1 &&
			again[0].Run.State == perdure.Dispatched && again[0].Run.Attempt == 1, "%+v", again)
		w.refuseLease(perdure.CodeStaleEpoch, first)
	}, more: func() {
		w.pass(9 * time.Second)
		w.check(len(w.poll("w3", 1)) == 0, "the second delivery has twice as long")
		w.pass(time.Second)
		w.check(len(w.poll("w3", 1)) == 1, "ten seconds")
	}}
}

func trapReap(w *World) trap {
	h := w.household(perdure.Spawn{Timeout: perdure.Duration(time.Hour)})
	g := w.busy()
	// It is the net under the lease: only a lease that was lost from the row leaves something to it.
	w.do(corrupt{"UPDATE runs SET lease_until=0, version=version+1 WHERE id=?", []any{string(h.run)}})
	return trap{run: h.run, due: w.get(h.run).SeenAt.Add(30 * time.Minute), then: func() {
		w.contract(h, g.Run.Epoch, perdure.Failed, perdure.CodeReaped, false)
		w.late(g)
	}}
}

func trapSuspended(w *World) trap {
	r := w.submit(perdure.Submission{Kind: "job", Class: perdure.Agent})
	g := w.take("w1")
	w.commit(g, perdure.Commit{Children: []perdure.Spawn{{Key: "c", Kind: "kid", Timeout: perdure.Duration(time.Hour)}},
		Waits: []perdure.WaitSpec{forGo,
			{ID: "later", Type: perdure.WaitSignal, Name: "x", Timeout: perdure.Duration(time.Hour)},
			{ID: "j", Type: perdure.WaitChildren, Keys: []string{"c"}, Timeout: perdure.Duration(5 * time.Minute)}},
		Outcome: suspend})
	return trap{run: r.ID, due: w.Now.Add(5 * time.Minute), then: func() {
		w.state(r.ID, perdure.Queued)
		g := w.takeKind("job")
		w.check(g.Run.Attempt == 1 && len(g.Inbox) == 2, "a report for each wait whose time was up: %+v", g.Inbox)
		for _, i := range g.Inbox {
			w.check(i.Type == perdure.ItemTimeout && i.Outcome == perdure.WaitTimedOut &&
				strings.Contains(string(i.Data), string(perdure.CodeToolTimeout)), "%+v", i)
		}
		w.check(w.get(r.ID).WaitsOpen == 1 && w.count(r.ID, "wait:timed_out") == 2, "the third stays open: %v",
			w.types(r.ID))
		w.complete(w.takeKind("kid"), `1`) // it was not stopped
	}}
}

func trapDue(w *World) trap {
	r := w.submit(perdure.Submission{Kind: "job", Delay: perdure.Duration(time.Minute)})
	return trap{run: r.ID, due: w.Now.Add(time.Minute), then: func() {
		w.check(len(w.poll("w1", 1)) == 1, "claimable")
	}, more: func() {
		// On a thread it joins the line.
		th := w.thread()
		active := w.on(th, perdure.Submission{})
		later := w.on(th, perdure.Submission{Kind: "later", Delay: perdure.Duration(time.Minute)})
		w.check(w.get(later.ID).Turn == perdure.TurnLater, "not in line")
		w.pass(time.Minute)
		w.check(w.get(later.ID).Turn == perdure.TurnWaiting, "in line: %d", w.get(later.ID).Turn)
		w.complete(w.takeKind(active.Kind), `1`)
		w.takeKind("later")
	}}
}

func trapHold(w *World) trap {
	r := w.on(w.thread(), perdure.Submission{Kind: "agent", Class: perdure.Agent})
	until := w.hold("v1").Hold.Until
	return trap{run: r.ID, due: until, then: func() {
		w.ended(r.ID, perdure.Failed, "panic")
		w.check(w.count(r.ID, "run:dead_lettered") == 1, "no dead letter")
	}}
}

func trapCopy(w *World) trap {
	const entries = 100 // one more part than the call itself copies
	r := w.retry(w.longJournal(entries), "")
	w.check(r.Copying(), "copied at once: %+v", r)
	return trap{run: r.ID, due: w.Now.Add(perdure.CopyPause), then: func() {
		g := w.takeKind("worker")
		w.check(g.Run.ID == r.ID && g.Run.JournalSeq == entries, "%+v", g.Run)
	}}
}

func trapQueued(w *World) trap {
	r := w.submit(perdure.Submission{Kind: "job", Timeout: perdure.Duration(time.Hour)})
	return trap{run: r.ID, due: w.Now.Add(5 * time.Minute), then: func() {
		w.alert(r.ID, "run:slow", `"queued"`, perdure.Queued)
	}, more: func() {
		w.pass(6 * time.Minute)
		w.check(w.count(r.ID, "run:slow") == 1, "once")
		w.complete(w.take("w1"), `1`)
	}}
}

func trapSilent(w *World) trap {
	r := w.submit(perdure.Submission{Kind: "job", Timeout: perdure.Duration(time.Hour)})
	g := w.take("w1")
	return trap{run: r.ID, due: w.Now.Add(30 * time.Second), then: func() {
		w.alert(r.ID, "run:slow", `"silent"`, perdure.Running)
	}, more: func() {
		w.pass(29 * time.Second)
		w.check(w.count(r.ID, "run:slow") == 1, "once per silence")
		w.beat(g)
		w.pass(30 * time.Second)
		w.check(w.count(r.ID, "run:slow") == 2, "and again for the next one")
		w.complete(g, `1`)
	}}
}

func trapNoProgress(w *World) trap {
	r := w.submit(perdure.Submission{Kind: "job", Class: perdure.Agent})
	g := w.take("w1")
	return trap{run: r.ID, due: w.Now.Add(10 * time.Minute), alive: w.beats(g), then: func() {
		w.alert(r.ID, "run:slow", `"no_progress"`, perdure.Running)
	}, more: func() {
		w.commit(g, perdure.Commit{Journal: []perdure.JournalEntry{{Key: "a", Value: json.RawMessage(`1`)}}})
		for range 60 {
			w.beat(g)
			w.check(w.count(r.ID, "run:slow") == 1, "it moved")
			w.pass(10 * time.Second)
		}
		w.check(w.count(r.ID, "run:slow") == 2, "and again")
		w.complete(g, `1`)
	}}
}

func trapStale(w *World) trap {
	r := w.submit(perdure.Submission{Kind: "job", Class: perdure.Process})
	g := w.take("w1")
	return trap{run: r.ID, due: w.Now.Add(2 * time.Minute), then: func() {
		w.alert(r.ID, "run:stale", perdure.TierStale, perdure.Running)
	}, more: func() {
		w.pass(7 * time.Minute)
		w.check(w.count(r.ID, "run:stale") == 1, "once per silence")
		w.beat(g)
		w.pass(2 * time.Minute)
		w.check(w.count(r.ID, "run:stale") == 2, "and again for the next one")
		w.complete(g, `1`)
	}}
}

func trapInbox(w *World) trap {
	r := w.submit(perdure.Submission{Kind: "job", Class: perdure.Agent})
	w.do(&life.Signal{Tenant: tenant, RunID: r.ID, Name: "a"})
	g := w.take("w1")
	w.do(corrupt{"UPDATE inbox SET epoch=77 WHERE run_id=?", []any{string(r.ID)}})
	return trap{run: r.ID, due: w.Now.Add(time.Minute), alive: w.beats(g), then: func() {
		i := w.items(r.ID)[0]
		w.check(i.Status == perdure.ItemPending && i.Epoch == 0, "%+v", i)
		in := &life.Inbox{Tenant: tenant, RunID: r.ID, Epoch: g.Run.Epoch}
		w.do(in)
		w.check(len(in.Page) == 1, "handed over again")
		w.commit(g, perdure.Commit{Ack: []int64{1}, Outcome: done(`1`)})
	}}
}

func trapPending(w *World) trap {
	r := w.submit(perdure.Submission{Kind: "job", Class: perdure.Agent})
	w.commit(w.take("w1"), perdure.Commit{Waits: wait(forGo), Outcome: suspend})
	w.do(&life.Signal{Tenant: tenant, RunID: r.ID, Name: "other"})
	// it should have satisfied the wait
	w.do(corrupt{"UPDATE waits SET name='other' WHERE run_id=?", []any{string(r.ID)}})
	return trap{run: r.ID, due: w.Now.Add(10 * time.Second), then: func() {
		w.state(r.ID, perdure.Queued)
	}, more: func() {
		g := w.take("w1")
		w.check(len(g.Inbox) == 1 && g.Inbox[0].WaitID == "go", "%+v", g.Inbox)
		sent := w.items(r.ID)[0].CreatedAt
		w.complete(g, `1`) // without acknowledging it: nobody will read it
		w.pass(sent.Add(w.E.Policy().PendingWakeupSkip).Sub(w.Now) - time.Microsecond)
		w.check(w.items(r.ID)[0].Status == perdure.ItemPending, "not yet")
		w.pass(time.Microsecond)
		i := w.items(r.ID)[0]
		w.check(i.Status == perdure.ItemSkipped && i.WatchdogError == "run_ended" && w.get(r.ID).InboxOpen == 0,
			"%+v", i)
	}}
}

func trapReplay(w *World) trap {
	w.sweep() // the patrol has just been by
	p, _ := w.family(2, perdure.ModeAll)
	w.complete(w.takeKind("kid"), `1`)
	w.do(corrupt{"UPDATE waits SET ended=0, ok=0 WHERE run_id=?", []any{string(p.ID)}})
	w.complete(w.takeKind("kid"), `1`)
	w.state(p.ID, perdure.Suspended)
	return trap{run: p.ID, due: w.Now.Add(5 * time.Second), then: func() {
		w.state(p.ID, perdure.Queued)
	}, more: func() {
		g := w.takeKind("parent")
		w.check(g.Run.Attempt == 1 && len(g.Inbox) == 3 && g.Inbox[2].Outcome == perdure.WaitSatisfied, "%+v", g.Inbox)
		// A child whose parent ended without asking it to stop.
		ans := w.commit(g, perdure.Commit{Children: []perdure.Spawn{{Key: "x", Kind: "kid",
			Timeout: perdure.Duration(20 * time.Minute)}}})
		k := w.takeKind("kid")
		w.do(corrupt{"UPDATE runs SET parent_id='', version=version+1 WHERE id=?", []any{string(k.Run.ID)}})
		w.complete(g, `1`)
		w.do(corrupt{"UPDATE runs SET parent_id=?, version=version+1 WHERE id=?",
			[]any{string(p.ID), string(k.Run.ID)}})
		w.check(w.get(ans.Children[0].RunID).Cancel.RequestedAt == 0, "missed")
		w.pass(5 * time.Second)
		w.check(w.get(ans.Children[0].RunID).Cancel.RequestedAt != 0, "asked to stop")
		// A chord whose condition holds.
		orig, _ := w.chord(w.thread(), 1)
		k = w.takeKind("kid")
		w.do(corrupt{"DELETE FROM members WHERE run_id=?", []any{string(k.Run.ID)}})
		w.complete(k, `1`)
		w.check(w.get(orig.ID).ContinuedBy == "", "missed")
		w.do(corrupt{"INSERT INTO members (tenant,run_id,gathering_id) VALUES (?,?,?)",
			[]any{string(tenant), string(k.Run.ID), string(orig.ID)}})
		w.pass(5 * time.Second)
		w.check(w.get(orig.ID).ContinuedBy != "", "continued")
	}}
}

func trapOrphans(w *World) trap {
	h := w.household(perdure.Spawn{Queue: "doomed"})
	op := &dispatch.Claim{Tenant: tenant, Worker: "w", Queues: []string{"doomed"}, Slots: 1, Start: true}
	w.do(op)
	w.beat(op.Grants[0])
	w.sweep() // the patrol has just been by
	w.do(corrupt{"DELETE FROM queues WHERE name='doomed'", nil})
	return trap{run: h.run, due: w.Now.Add(5 * time.Second), then: func() {
		w.contract(h, op.Grants[0].Run.Epoch, perdure.Failed, perdure.CodeOrphaned, false)
		w.late(op.Grants[0])
	}}
}

func trapDamaged(w *World) trap {
	h := w.household(perdure.Spawn{})
	g := w.takeKind("kid")
	w.sweep() // the patrol has just been by
	w.do(corrupt{"UPDATE runs SET rest='{', version=version+1 WHERE id=?", []any{string(h.run)}})
	return trap{run: h.run, due: w.Now.Add(5 * time.Second), then: func() {
		w.contract(h, g.Run.Epoch, perdure.Failed, perdure.CodeDamaged, true)
	}}
}

func trapWorkers(w *World) trap {
	w.poll("w1", 1)
	seen := w.Now
	offline := func() bool {
		var list []perdure.Worker
		w.view(func(v *store.View) (err error) { list, err = v.Workers.List(tenant); return err })
		return list[0].Offline
	}
	return trap{due: seen.Add(2 * time.Minute), then: func() {
		w.check(offline(), "offline")
		w.poll("w1", 1)
		w.check(!offline(), "and back with its next word")
	}}
}

func trapGroup(w *World) trap {
	r := w.task()
	g := w.group(&life.CreateGroup{RunIDs: []perdure.RunID{r.ID}, Timeout: perdure.Duration(time.Minute),
		OnLosers: "cancel"})
	return trap{run: perdure.RunID(g.ID), due: w.Now.Add(time.Minute), then: func() {
		w.check(w.gathering(g.ID).State == perdure.GatheringTimedOut, "%s", w.gathering(g.ID).State)
		w.check(w.state(r.ID, perdure.Queued).Cancel.RequestedAt == 0, "its runs go on")
	}}
}

// The second of two instants is left out, because the run of the first is live. If both are missed, one
// run is started for them.
func trapSchedule(w *World) trap {
	p := every(time.Minute)
	p.Overlap, p.EndAt = schedule.OverlapSkip, w.Now.Add(2*time.Minute)
	w.plan("tick", p)
	return trap{due: p.EndAt, then: func() {
		row := w.schedule("tick")
		w.check(row.Fired == 1 && row.Skipped+row.Missed == 1 && row.NextAt == 0, "%+v", row)
		w.check(len(w.runsOf("tick")) == 1, "%d runs, want 1", len(w.runsOf("tick")))
	}}
}

// Nobody claims the run that has the only place at a limit. After a second one of another kind may go.
func trapLimit(w *World) trap {
	w.limit("l", slots(1), false)
	first := w.under("", "l")
	second := w.submit(perdure.Submission{Kind: "other", Limits: []string{"l"}})
	w.blocked(second.ID, "l", "")
	return trap{due: w.Now.Add(time.Second), then: func() {
		w.check(w.get(first.ID).Ready && w.get(second.ID).Ready, "both may be claimed")
		w.check(w.takeKind("other").Run.ID == second.ID, "the second one is leased")
		w.check(len(w.poll("w", 1)) == 0, "the first one is leased as well")
		w.leases("l", "", 1, 1)
	}}
}

func trapWaiters(w *World) trap {
	th := w.thread()
	r := w.on(th, perdure.Submission{Foreground: true})
	w.do(&life.Attach{Tenant: tenant, Node: "gone", RunIDs: []perdure.RunID{r.ID}})
	return trap{run: r.ID, due: w.Now.Add(30 * time.Second), then: func() {
		w.check(w.state(r.ID, perdure.Queued).DeferredAt == w.Now && w.count(r.ID, "run:deferred") == 1 &&
			len(w.messages(th)) == 1, "deferred, and it goes on")
	}, more: func() {
		w.do(&life.Attach{Tenant: tenant, Node: "here", RunIDs: []perdure.RunID{r.ID}})
		w.do(&life.Defer{Tenant: tenant, RunID: r.ID, Node: "here", Reason: "disconnect"})
		w.pass(10*time.Second - time.Microsecond)
		w.check(w.get(r.ID).DeferredAt == 0, "whoever was cut off may come back")
		w.pass(time.Microsecond)
		w.check(w.get(r.ID).DeferredAt == w.Now, "deferred again")
	}}
}

func trapCascade(w *World) trap {
	p := w.submit(perdure.Submission{Kind: "parent"})
	g := w.takeKind("parent")
	spawns, _ := kids(101)
	w.commit(g, perdure.Commit{Children: spawns})
	w.complete(g, `1`)
	live := func() int {
		runs, err := w.E.Runs.List(w.ctx(), tenant, filter("kid", "queued"))
		w.check(err == nil, "%v", err)
		return len(runs)
	}
	w.check(live() == 1 && w.get(p.ID).Cascade, "%d are left to the watchdog", live())
	return trap{run: p.ID, due: w.Now, then: func() {
		w.check(live() == 0 && !w.get(p.ID).Cascade, "%d are left", live())
	}}
}

func trapLog(w *World) trap {
	r := w.submit(perdure.Submission{Kind: "job", Delay: perdure.Duration(time.Second)})
	w.pass(time.Second)
	w.complete(w.take("w1"), `1`)
	listed := func() (out []perdure.WatchdogAction) {
		w.view(func(v *store.View) (err error) {
			out, err = v.WatchLog.Page(store.WatchFilter{Run: r.ID, Limit: 10})
			return err
		})
		return out
	}
	w.check(len(listed()) == 1, "%v", listed())
	due := w.Now.Add(watchdog.LogAge) + 1
	w.Now = due.Add(-time.Hour) // it is looked at every hour
	w.sweep()
	w.check(len(listed()) == 1, "too early: %v", listed())
	w.Now = due - 1
	return trap{due: due, then: func() { w.check(len(listed()) == 0, "%v", listed()) }}
}

func trapRetention(w *World) trap {
	old := w.task()
	w.complete(w.take("w1"), `1`)
	due := w.Now.Add(w.E.Policy().Retention + time.Millisecond) // the time in an id is that coarse
	w.Now = due.Add(-time.Millisecond)
	young := w.task()
	w.complete(w.take("w1"), `1`)
	w.look(trap{retires: true})
	w.state(old.ID, perdure.Completed)
	return trap{due: due, retires: true, then: func() {
		_, err := w.E.Runs.Get(w.ctx(), tenant, old.ID)
		w.check(perdure.CodeOf(err) == perdure.CodeNotFound, "%v", err)
		w.state(young.ID, perdure.Completed)
	}}
}

func trapTTL(w *World) trap {
	r := w.task()
	w.commit(w.take("w1"), perdure.Commit{Outcome: &perdure.Outcome{Type: perdure.OutcomeReject, Reason: "no"}})
	live := w.submit(perdure.Submission{Kind: "lives", Class: perdure.Agent, Timeout: perdure.Duration(48 * time.Hour)})
	for _, kind := range []string{"ends", "lives"} {
		w.do(&life.Submit{Tenant: tenant, Key: kind, Submission: perdure.Submission{Kind: kind, Class: perdure.Agent,
			Timeout: perdure.Duration(48 * time.Hour)}})
	}
	w.complete(w.takeKind("ends"), `1`)
	keys := func() (out []string) {
		w.view(func(v *store.View) error {
			return v.Rows("SELECT key FROM idempotency ORDER BY key", nil, func(scan func(...any) error) error {
				var key string
				err := scan(&key)
				out = append(out, key)
				return err
			})
		})
		return out
	}
	w.check(len(w.letters(store.LetterFilter{})) == 1 && len(keys()) == 2, "%v", keys())
	due := w.Now.Add(24 * time.Hour)
	w.Now = due - 1 // a day has many sweeps, and none of them does anything
	w.sweep()
	w.check(len(w.letters(store.LetterFilter{})) == 1 && len(keys()) == 2, "too early")
	return trap{due: due, then: func() {
		w.check(len(w.letters(store.LetterFilter{})) == 0, "the dead letter of %s is gone", r.ID)
		w.check(fmt.Sprint(keys()) == "[run:lives]", "the key of a run that lives is kept: %v (%s)", keys(), live.ID)
	}}
}

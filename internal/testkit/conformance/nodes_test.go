package conformance

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/rules"
	"github.com/perdure/perdure/internal/server/engine/upkeep"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/server/watchdog"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// Two engines on one database, with one of them in the middle of what the other does: between its deciding and its
// writing, or between two of its reads.

const dawn perdure.Instant = 1e15

// node makes an engine and a watchdog on a database.
func node(t testing.TB, at store.Options) *World {
	t.Helper()
	at.Hooks.Clock = func() perdure.Instant { return dawn }
	s := storetest.Open(t, at)
	p := perdure.DefaultPolicy()
	p.PendingWakeupSkip = 20 * time.Second // so that nobody has to let much time pass
	e, err := engine.New(s, engine.Options{Policy: &p, Entropy: entropy{rand.New(rand.NewPCG(rand.Uint64(), 3))},
		Roll: func() float64 { return 0.5 }})
	if err != nil {
		t.Fatal(err)
	}
	return &World{t: t, S: s, E: e, W: watchdog.New(e, nil), Now: dawn, n: rand.IntN(1e6)}
}

// once calls what it is set to, one time.
type once struct{ f func() }

func (o *once) call() {
	if f := o.f; f != nil {
		o.f = nil
		f()
	}
}

// pair makes two nodes. What between is set to happens before the next write of the first.
func pair(t testing.TB, at store.Options) (a, b *World, between *once) {
	t.Helper()
	between = &once{}
	b = node(t, at)
	at.Hooks.BeforeWrite = between.call
	return node(t, at), b, between
}

func TestTwoNodesThatBootAtOnceShareTheirSecret(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		var b *World
		hook := &once{func() { b = node(t, at) }}
		first := at
		first.Hooks.BeforeWrite = hook.call
		a := node(t, first)
		b.submit(perdure.Submission{Kind: "a", Class: perdure.Agent})
		ans := b.commit(b.take("w1"), perdure.Commit{Waits: wait(perdure.WaitSpec{ID: "cb",
			Type: perdure.WaitCallback})})
		if err := a.E.Step(dawn, &life.Callback{Token: ans.Callbacks[0].Token})[0]; err != nil {
			t.Errorf("one node does not know the other's token: %v", err)
		}
	})
}

// Two nodes take one unique key at once: one run is made, and the other call gets it, is refused, or
// becomes a part of it.
func TestOneUniqueKeyOnTwoNodesIsOneRun(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		a, b, between := pair(t, at)
		unique := func(key string, c perdure.UniqueConflict) *life.Submit {
			return uniqueOp(perdure.Unique{Key: key, OnConflict: c}, `1`)
		}
		here, there := unique("k", ""), unique("k", "")
		between.f = func() { b.do(there) }
		a.do(here)
		if !there.Created || !here.Existing || here.Run.ID != there.Run.ID {
			t.Errorf("both nodes made a run: %+v and %+v", here, there)
		}
		other := unique("r", perdure.UniqueReject)
		between.f = func() { b.do(unique("r", perdure.UniqueReject)) }
		if err := a.E.Step(dawn, other)[0]; perdure.CodeOf(err) != perdure.CodeNotUnique {
			t.Errorf("the second node: %v, want %s", err, perdure.CodeNotUnique)
		}
		deb := func(input string) *life.Submit {
			return &life.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "d", Input: []byte(input),
				Debounce: &perdure.Debounce{Key: "k", For: minutes(1), Max: minutes(9)}}}
		}
		first, second := deb(`1`), deb(`2`)
		between.f = func() { b.do(first) }
		a.do(second)
		if !second.Debounced || second.Run.ID != first.Run.ID || string(second.Run.Input) != `2` {
			t.Errorf("both nodes made a debounced run: %+v and %+v", first, second)
		}

		// The holder ends on one node while the other submits.
		g := b.poll("w", 9)
		again := unique("k", "")
		for _, x := range g {
			if x.Run.ID == there.Run.ID {
				between.f = func() { b.beat(x); b.complete(x, `1`) }
			}
		}
		a.do(again)
		if !again.Created && again.Run.State.Terminal() {
			t.Errorf("a call got run %s, which had ended: %+v", again.Run.ID, again)
		}
		a.fsck()
	})
}

func TestOneKeyOnTwoNodesIsOneRun(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		a, b, between := pair(t, at)
		here := &life.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "x"}, Key: "k"}
		there := &life.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "x"}, Key: "k"}
		between.f = func() { b.do(there) }
		a.do(here)
		if here.Run.ID != there.Run.ID || here.Created == there.Created {
			t.Errorf("%s and %s", here.Run.ID, there.Run.ID)
		}
		b.fsck()
	})
}

// Another node takes a name while this one is about to, for the same submission and for another one.
func TestOneNameOnTwoNodesIsOneRun(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		a, b, between := pair(t, at)
		here, there := submitNamed("n", "x"), submitNamed("n", "x")
		between.f = func() { b.do(there) }
		a.do(here)
		if here.Run.ID != there.Run.ID || here.Created || !there.Created {
			t.Errorf("run %s (%t) beside %s (%t), want one", here.Run.ID, here.Created, there.Run.ID, there.Created)
		}
		b.do(&life.CreateThread{Tenant: tenant, Name: "n"})
		thread := &life.CreateThread{Tenant: tenant, Name: "n"}
		a.do(thread)
		if thread.Created {
			t.Error("a second thread of the name was made on the other node")
		}
		b.fsck()
	})
}

// Another node fires a schedule while this one is about to, and a third time nobody does.
func TestScheduleFiresOnceOnTwoNodes(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) { scheduleOnTwoNodes(t, at) })
}

func scheduleOnTwoNodes(t testing.TB, at store.Options) {
	a, b, between := pair(t, at)
	a.plan("tick", every(time.Minute))
	for n := range 3 {
		a.Now, b.Now = a.Now.Add(time.Minute), b.Now.Add(time.Minute)
		between.f = b.sweep
		a.sweep()
		b.sweep()
		if between.f != nil {
			t.Fatal("the sweep of the first node wrote nothing")
		}
		if list := a.runsOf("tick"); len(list) != n+1 {
			t.Fatalf("%d runs after %d instants", len(list), n+1)
		}
	}
	// A deletion wins over a node that fires.
	a.Now, b.Now = a.Now.Add(time.Minute), b.Now.Add(time.Minute)
	between.f = func() { b.do(&life.DeleteSchedule{Tenant: tenant, Name: "tick"}) }
	a.sweep()
	if list := a.runsOf("tick"); len(list) != 3 {
		t.Errorf("%d runs of a schedule that was deleted meanwhile, want 3", len(list))
	}
	b.fsck()
}

// Two nodes take the last slot at once, with two grants, and with two steps. One of them is decided again and
// finds none.
func TestLastSlotOnTwoNodesIsTakenOnce(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) { lastSlotOnTwoNodes(t, at) })
}

func lastSlotOnTwoNodes(t testing.TB, at store.Options) {
	a, b, between := pair(t, at)
	grants := a.agents(2)
	a.limit("s", slots(1), false)
	var there life.StepTaken
	between.f = func() { there = b.askSlots(grants[1], life.StepTake{Step: "x#1", Limits: takes("s")}) }
	here := a.askSlots(grants[0], life.StepTake{Step: "x#1", Limits: takes("s")})
	if between.f != nil || here.Taken || !there.Taken {
		t.Errorf("steps of two nodes: %v and %v, want the slot taken by the second node alone", here.Taken, there.Taken)
	}
	a.leases("s", "", 1, 0)

	a.limit("l", slots(1), false)
	a.submit(perdure.Submission{Kind: "one", Limits: []string{"l"}})
	a.submit(perdure.Submission{Kind: "two", Limits: []string{"l"}})
	var other []dispatch.Grant
	between.f = func() {
		b.Now = b.Now.Add(2 * time.Second) // nobody has claimed the first, so the other one is let through, too
		b.sweep()
		op := &dispatch.Claim{Tenant: tenant, Worker: "w2", Slots: 1, Kinds: []string{"two"}}
		b.do(op)
		other = op.Grants
	}
	op := &dispatch.Claim{Tenant: tenant, Worker: "w1", Slots: 1, Kinds: []string{"one"}}
	a.do(op)
	if between.f != nil || len(op.Grants) != 0 || len(other) != 1 {
		t.Errorf("two nodes have granted %d and %d runs under a limit of 1, want the second node's alone",
			len(op.Grants), len(other))
	}
	a.leases("l", "", 1, 1)
	b.fsck()
}

// The other node submits a part of a batch after the keys were looked up. The batch is decided again.
func TestOneBatchOnTwoNodesIsOneRunPerKey(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		a, b, between := pair(t, at)
		var here, there []kernel.Op
		for _, key := range []string{"k0", "k1", "k2", "k3", "k4", "k5"} {
			here = append(here, &life.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "x"}, Key: key})
			there = append(there, &life.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "x"}, Key: key})
		}
		there = there[2:5]
		there = append(there, &life.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "y"}, Key: "k5"})
		between.f = func() { b.all(there) }
		errs := a.E.Step(a.Now, here...)
		for i, op := range here {
			mine := op.(*life.Submit)
			switch {
			case i == 5:
				a.check(perdure.CodeOf(errs[i]) == perdure.CodeReused, "k5 of another body: %v", errs[i])
			case i < 2:
				a.check(errs[i] == nil && mine.Created, "k%d: created %t, %v", i, mine.Created, errs[i])
			default:
				theirs := there[i-2].(*life.Submit)
				a.check(errs[i] == nil && !mine.Created && mine.Run.ID == theirs.Run.ID,
					"k%d: %s, created %t, %v, want %s",
					i, mine.Run.ID, mine.Created, errs[i], theirs.Run.ID)
			}
		}
		a.check(a.rows("runs") == 6, "%d runs, want 6", a.rows("runs"))
		b.fsck()
	})
}

func TestSomebodyAttachesOnOneNodeWhileTheLastWaiterLeavesOnAnother(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		a, b, between := pair(t, at)
		r := b.submit(perdure.Submission{Kind: "x", Foreground: true})
		b.do(&life.Attach{Tenant: tenant, Node: "a", RunIDs: []perdure.RunID{r.ID}})
		between.f = func() { b.do(&life.Attach{Tenant: tenant, Node: "b", RunIDs: []perdure.RunID{r.ID}}) }
		a.do(&life.Defer{Tenant: tenant, RunID: r.ID, Node: "a", Reason: "timeout"})
		if b.get(r.ID).DeferredAt != 0 {
			t.Error("deferred although somebody waits for it")
		}
	})
}

func TestTheLastTwoChildrenEndOnTwoNodesAtOnce(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		a, b, between := pair(t, at)
		join, _ := b.family(2, perdure.ModeAll)
		x, y := b.takeKind("kid"), b.takeKind("kid")
		between.f = func() { b.complete(y, `2`) }
		a.complete(x, `1`)
		b.state(join.ID, perdure.Queued)
		if b.count(join.ID, "run:resumed") != 1 || b.count(join.ID, "worker:completed") != 2 {
			t.Errorf("%v", b.types(join.ID))
		}

		chord, _ := b.chord(b.thread(), 2)
		x, y = b.takeKind("kid"), b.takeKind("kid")
		between.f = func() { b.complete(y, `2`) }
		a.complete(x, `1`)
		if b.count(chord.ID, "run:continued") != 1 {
			t.Errorf("%v", b.types(chord.ID))
		}
		if made, err := b.E.Runs.List(b.ctx(), tenant, filter("boss", "")); err != nil || len(made) != 2 {
			t.Errorf("%d runs of a chord and its continuation, %v", len(made), err)
		}
		b.fsck()
	})
}

// rows are what both nodes find when they sweep at once: how it comes about, when it is due, and what must be true of
// it afterwards.
var rows = []struct {
	name  string
	setup func(w *World) (id perdure.RunID, due perdure.Instant)
	holds func(w *World, id perdure.RunID) bool
}{
	{"a deadline", func(w *World) (perdure.RunID, perdure.Instant) {
		r := w.submit(perdure.Submission{Kind: "x", Timeout: perdure.Duration(10 * time.Second)})
		return r.ID, r.DeadlineAt
	}, func(w *World, id perdure.RunID) bool {
		return w.get(id).State == perdure.TimedOut && w.count(id, perdure.TerminalLine(perdure.TimedOut)) == 1
	}},
	{"a lost lease", func(w *World) (perdure.RunID, perdure.Instant) {
		w.submit(perdure.Submission{Kind: "x"})
		g := w.take("w1")
		return g.Run.ID, w.get(g.Run.ID).LeaseUntil
	}, func(w *World, id perdure.RunID) bool {
		r := w.get(id)
		return r.State == perdure.Queued && r.Attempt == 2 && r.Strikes == 1 && w.count(id, "run:retrying") == 1
	}},
	{"an item that nobody will read", func(w *World) (perdure.RunID, perdure.Instant) {
		r := w.submit(perdure.Submission{Kind: "x"})
		g := w.take("w1")
		w.do(&life.Signal{Tenant: tenant, RunID: r.ID, Name: "a"})
		w.complete(g, `1`)
		return r.ID, w.Now.Add(20 * time.Second)
	}, func(w *World, id perdure.RunID) bool {
		var items []perdure.Item
		w.view(func(v *store.View) (err error) { items, err = v.Inbox.List(tenant, id); return err })
		return len(items) == 1 && items[0].Status == perdure.ItemSkipped && w.get(id).InboxOpen == 0
	}},
	{"a wait", func(w *World) (perdure.RunID, perdure.Instant) {
		r := w.submit(perdure.Submission{Kind: "x"})
		w.commit(w.take("w1"), perdure.Commit{Waits: wait(perdure.WaitSpec{ID: "s", Type: perdure.WaitSignal, Name: "s",
			Timeout: perdure.Duration(10 * time.Second)}), Outcome: suspend})
		return r.ID, w.Now.Add(10 * time.Second)
	}, func(w *World, id perdure.RunID) bool {
		r := w.get(id)
		return r.State == perdure.Queued && r.InboxOpen == 1 && r.InboxSeq == 1 && w.count(id, "run:resumed") == 1
	}},
	{"a waiter", func(w *World) (perdure.RunID, perdure.Instant) {
		r := w.submit(perdure.Submission{Kind: "x", Foreground: true})
		w.do(&life.Attach{Tenant: tenant, Node: "gone", RunIDs: []perdure.RunID{r.ID}})
		return r.ID, w.Now.Add(w.E.Policy().WaiterTTL)
	}, func(w *World, id perdure.RunID) bool { return w.count(id, "run:deferred") == 1 }},
}

func TestBothNodesSweepTheSameRow(t *testing.T) {
	for _, x := range rows {
		t.Run(x.name, func(t *testing.T) {
			storetest.OnBoth(t, func(t *testing.T, at store.Options) {
				a, b, between := pair(t, at)
				id, due := x.setup(b)
				b.pass(due.Sub(b.Now) - time.Millisecond)
				before := b.fingerprint()
				a.Now, b.Now = due, due
				swept := false
				between.f = func() { b.sweep(); swept = true }
				a.sweep()
				if !swept || b.fingerprint() == before {
					t.Fatal("nothing was due")
				}
				if !x.holds(b, id) {
					t.Errorf("%s after %v: %+v", b.get(id).State, b.types(id), b.get(id))
				}
				b.fsck()
			})
		})
	}
}

func TestBothNodesClaimTheSameQueue(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		a, b, between := pair(t, at)
		for range 10 {
			b.task()
		}
		var theirs []dispatch.Grant
		between.f = func() { theirs = b.poll("wb", 6) }
		ours := a.poll("wa", 6)
		seen := make(map[perdure.RunID]bool)
		for _, g := range slices.Concat(ours, theirs) {
			if seen[g.Run.ID] || g.Run.Epoch != 1 || b.count(g.Run.ID, "run:dispatched") != 1 {
				t.Errorf("%s was granted twice", g.Run.ID)
			}
			seen[g.Run.ID] = true
		}
		if len(theirs) != 6 || len(ours) != 4 || len(b.poll("wb", 6)) != 0 {
			t.Errorf("%d and %d of ten", len(theirs), len(ours))
		}
		b.fsck()
	})
}

// interrupted is a session that has something happen after one of its reads.
type interrupted struct {
	store.Conn
	left *int // reads until then
	f    *once
}

func (s interrupted) Query(query string, args []any, row func(func(...any) error) error) error {
	err := s.Conn.Query(query, args, row)
	if *s.left--; *s.left == 0 {
		s.f.call()
	}
	return err
}

// A run with a due item ends on another node between two reads of a sweep. The item is counted once.
func TestARunEndsBetweenTwoReadsOfASweep(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		left, hook := 0, &once{}
		b := node(t, at)
		at.Hooks.Wrap = func(s store.Conn) store.Conn { return interrupted{s, &left, hook} }
		a := node(t, at)
		reads := 0
		for interruptions := 1; ; interruptions++ {
			r := b.submit(perdure.Submission{Kind: "x"})
			b.do(&life.Signal{Tenant: tenant, RunID: r.ID, Name: "a"})
			b.pass(21 * time.Second) // past the time at which an ended run's items are skipped
			g := b.takeKind("x")
			ringing := b.Now.Add(b.E.Policy().InboxProcessingTimeout)
			for b.Now < ringing.Add(-time.Millisecond) {
				b.pass(min(20*time.Second, ringing.Sub(b.Now)-time.Millisecond))
				b.beat(g)
			}
			a.Now, b.Now = ringing, ringing
			left = interruptions
			hook.f = func() { b.commit(g, perdure.Commit{Ack: []int64{1}, Outcome: done(`1`)}) }
			a.sweep()
			if hook.f != nil {
				break // it has fewer reads
			}
			reads++
			if got := b.state(r.ID, perdure.Completed); got.InboxOpen != 0 {
				t.Errorf("ended after read %d: %d items are open", interruptions, got.InboxOpen)
			}
			b.fsck()
		}
		if reads < 5 {
			t.Errorf("only %d reads", reads)
		}
	})
}

// W3 looks at all waits of a sleeper, not at the open ones alone. A store that is broken like this can't come
// about by any use case; the row is changed behind the engine's back.
func TestW3AWaitThatIsOverBesideOneThatIsOpen(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		w := NewWorld(t, storetest.Open(t, at))
		r := w.submit(perdure.Submission{Kind: "a", Class: perdure.Agent})
		w.commit(w.take("w1"), perdure.Commit{Waits: []perdure.WaitSpec{{ID: "a", Type: perdure.WaitSignal, Name: "a",
			Timeout: perdure.Never},
			{ID: "b", Type: perdure.WaitSignal, Name: "b", Timeout: perdure.Never}}, Outcome: suspend})
		w.do(corrupt{"UPDATE waits SET state='satisfied' WHERE id='a'", nil})
		w.pass(12 * time.Second)
		w.state(r.ID, perdure.Queued)
	})
}

// spy calls something after a query that has a word in it.
type spy struct {
	store.Conn
	word string
	f    *once
}

func (s spy) Query(q string, args []any, row func(func(...any) error) error) error {
	err := s.Conn.Query(q, args, row)
	if strings.Contains(q, s.word) {
		s.f.call()
	}
	return err
}

func TestTwoNodesRedriveADeadLetterOnce(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		hook := &once{}
		b := node(t, at)
		at.Hooks.Wrap = func(s store.Conn) store.Conn { return spy{s, "FROM dead_letters", hook} }
		a := node(t, at)
		r := b.submit(perdure.Submission{Kind: "x"})
		b.commit(b.takeKind("x"), perdure.Commit{Outcome: &perdure.Outcome{Type: perdure.OutcomeReject, Reason: "no"}})
		one, two := &upkeep.Redrive{Tenant: tenant, RunID: r.ID}, &upkeep.Redrive{Tenant: tenant, RunID: r.ID}
		hook.f = func() { b.do(two) }
		a.do(one)
		if one.Created == two.Created || one.Run.ID != two.Run.ID {
			t.Errorf("%s (%v) and %s (%v)", one.Run.ID, one.Created, two.Run.ID, two.Created)
		}
	})
}

// Another node that has just looked whether queues are paused grants none after a moment.
func TestPauseCountsOnOtherNodes(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		a, b, _ := pair(t, at)
		for _, other := range []string{"x", perdure.DefaultQueue} { // the first pause ever, and one more
			b.task()
			b.take("w")
			a.pause(other, "")
		}
		b.task()
		b.Now = b.Now.Add(rules.PauseDelay)
		b.check(len(b.poll("w", 1)) == 0, "a run of a queue that another node has paused")
		a.resume(perdure.DefaultQueue)
		// Otherwise the next check would say nothing.
		b.check(len(b.poll("w", 1)) == 0, "a node that has just looked looks again")
		b.Now = b.Now.Add(rules.PauseDelay)
		b.take("w")
		b.fsck()
	})
}

// A node that is asked for a pause which another node has made grants nothing from its answer on.
func TestPauseThatIsAskedForAgainCountsAtOnce(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		a, b, _ := pair(t, at)
		for _, key := range []string{"", "k"} {
			b.task()
			b.take("w") // now it has looked
			for _, n := range []*World{a, b} {
				n.do(&rules.PauseQueue{Tenant: tenant, Queue: perdure.DefaultQueue, Key: key})
			}
			b.task()
			b.check(len(b.poll("w", 1)) == 0, "a run of a queue whose pause the node has acknowledged")
			a.resume(perdure.DefaultQueue)
			b.Now = b.Now.Add(rules.PauseDelay)
			b.take("w")
		}
		b.fsck()
	})
}

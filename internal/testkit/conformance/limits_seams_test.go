package conformance

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/pairs"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// beside is a subject that is under a limit of one slot, and has a unique key. Another run waits at the limit.
type beside struct {
	*subject
	limit string
	next  perdure.Run
}

// besideLimit prepares a run under a limit.
func (w *World) besideLimit(name string) *beside {
	x := &beside{subject: w.subject(name)}
	x.limit = "one" + x.queue
	w.limit(x.limit, slots(1), false)
	x.sub.Limits, x.sub.LimitKey = []string{x.limit, "each"}, x.queue
	x.sub.Unique = &perdure.Unique{Key: "u"}
	return x
}

// offersNext checks that the other run is leased exactly if the subject holds no slot, and ends it.
func (x *beside) offersNext() {
	x.t.Helper()
	r := x.run()
	holds := r.Limited != nil && r.Limited.Held
	if r.State.Leased() && r.Options.Limits != nil && r.Cancel.RequestedAt == 0 { // no clean-up
		x.check(holds, "%s: the run is %s and holds no slot", x.name, r.State)
	}
	x.check(!holds || r.State.Leased(), "%s: the run is %s and holds a slot", x.name, r.State)
	claim := &dispatch.Claim{Tenant: tenant, Worker: "next", Queues: []string{x.next.Queue}, Slots: 1, Start: true}
	for range 4 { // nobody may have polled for the subject: its place is passed
		if x.do(claim); len(claim.Grants) > 0 || holds {
			break
		}
		x.pass(2 * time.Second)
		if r = x.run(); r.Limited != nil && r.Limited.Held {
			return // it was granted meanwhile
		}
	}
	x.check((len(claim.Grants) == 1) == !holds, "%s: the run is %s (%+v), and the next one was granted %d times; %+v",
		x.name, r.State, r.Limited, len(claim.Grants), x.counts(x.limit, ""))
	if len(claim.Grants) == 1 {
		op := x.commitOf(claim.Grants[0], perdure.Commit{Outcome: done(`1`)})
		x.do(op)
		x.check(op.Refused == nil, "%s: the next run does not end: %v", x.name, op.Refused)
	}
}

// besideMove gives the move of a feature. Some make the run without its submission: its kind has the limit.
func (x *beside) besideMove(f pairs.Feature) move {
	m := moves[f]
	switch f {
	case pairs.Chat:
		x.sub.Unique = nil
		before := m.shape
		m.shape = func(s *subject) {
			before(s)
			s.announce(s.sub.Kind, "1", perdure.KindDef{Limits: []string{x.limit}})
		}
	case pairs.Child:
		make := m.make
		m.make = func(s *subject) error {
			s.announce(s.sub.Kind, "1", perdure.KindDef{Limits: []string{x.limit}})
			return make(s)
		}
	}
	return m
}

// Every feature of a run goes together with limits and unique keys: a slot is held exactly while the run is leased, the
// next run gets it when it is free, and nothing is counted in the end. Steps of the run hold slots as well.
func TestEveryFeatureBesideLimits(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		w := pairsWorld(t, at)
		w.quiet = at.URL != ""
		w.limit("each", slots(1), true)
		w.limit("steps", slots(1), false)
		for f := range pairs.Feature(pairs.Count) {
			if _, ok := moves[f]; !ok || f == pairs.Signature || f == pairs.Restore {
				continue
			}
			for _, steps := range []bool{false, true} {
				if !steps && at.URL != "" {
					continue
				}
				x := w.besideLimit(fmt.Sprint(f, " beside limits, steps: ", steps))
				m := x.besideMove(f)
				if err := x.create(m, move{}); err != nil {
					t.Fatalf("%s: %v", x.name, err)
				}
				x.next = w.submit(perdure.Submission{Kind: "next", Queue: "next" + x.queue, Limits: []string{x.limit}})
				if steps {
					if g, err := x.leased(); err == nil {
						x.takesSlot(g, "call#1", true, "steps")
					}
				}
				if m.do != nil {
					if err := m.do(x.subject); err != nil {
						t.Fatalf("%s: %v", x.name, err)
					}
				}
				if x.limited {
					x.quota(0)
				}
				live := func() bool { return w.exists(x.next.ID) && w.get(x.next.ID).State.Live() }
				if live() { // it may have reached its own deadline
					x.offersNext()
				}
				if !x.removed {
					x.finish()
				}
				if x.parent != "" {
					w.cancel(x.parent)
				}
				if x.nodes == 2 {
					x.E, x.W, x.Other.E, x.Other.W = x.Other.E, x.Other.W, x.E, x.W
				}
				if live() {
					x.offersNext()
				}
				w.leases(x.limit, "", 0, 0)
				w.leases("each", x.queue, 0, 0)
				w.leases("steps", "", 0, 0)
				if u := x.last.Options.Unique; u != nil {
					again := &life.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: x.last.Kind,
						Unique: &perdure.Unique{Key: u.Key}}}
					w.do(again)
					w.check(again.Created && !again.Existing, "%s: its unique key is not free after its end", x.name)
					w.cancel(again.Run.ID)
				}
			}
		}
		w.pass(time.Minute)
		w.fsck()
	})
}

// A tenant has as many limits, keys and schedules as it may, and no more. A worker that closes more keys is not
// refused.
func TestBoundsOfFlowControl(t *testing.T) {
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		w := NewWorld(t, storetest.Open(t, at))
		w.limit("l", slots(1), true)
		w.do(&life.PutSchedule{Tenant: tenant, Name: "s", Plan: every(time.Hour),
			Submission: perdure.Submission{Kind: "x"}})
		w.do(&life.PutLimitKey{Tenant: tenant, Name: "l", LimitKey: "own", Values: slots(2)})
		g := w.agents(1)[0]
		copies := func(n int, table, name, where string) {
			columns, err := storetest.Columns(table)
			if err != nil {
				t.Fatal(err)
			}
			into := strings.Join(columns, ",")
			columns = slices.Clone(columns)
			for i, c := range columns {
				if c == name || c == "id" {
					columns[i] = fmt.Sprintf("'copy%d.' || n.i", n)
				}
			}
			w.do(stage(fmt.Sprintf("INSERT INTO %s (%s) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n "+
				"WHERE i<%d) SELECT %s FROM %s, n WHERE %s", table, into, n, strings.Join(columns, ","), table, where)))
			w.restart() // which has counted nothing yet
		}
		refused := func(op kernel.Op) {
			t.Helper()
			if err := w.E.Step(w.Now, op)[0]; perdure.CodeOf(err) != perdure.CodeQuota {
				t.Errorf("%T: %v, want %s", op, err, perdure.CodeQuota)
			}
		}
		copies(999, "limits", "name", "name='l'")
		refused(&life.PutLimit{Tenant: tenant, Name: "more", Values: slots(1)})
		copies(9999, "schedules", "name", "name='s'")
		refused(&life.PutSchedule{Tenant: tenant, Name: "more",
			Plan: every(time.Hour), Submission: perdure.Submission{Kind: "x"}})
		copies(9999, "limit_keys", "key", "key='own'")
		refused(&life.PutLimitKey{Tenant: tenant, Name: "l", LimitKey: "more", Values: slots(2)})
		w.do(stage("UPDATE limit_keys SET spec=''"))
		copies(90_000, "limit_keys", "key", "name='l' AND key='own'")
		for _, op := range []kernel.Op{
			&life.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "x", Limits: []string{"l"},
				LimitKey: "more"}},
			&life.CloseLimit{Tenant: tenant, Name: "l", LimitKey: "more", For: time.Hour},
		} {
			refused(op)
		}
		out := &life.TakeLimits{Tenant: tenant, Worker: "w1", Takes: []life.StepTake{{Lease: lease(g), Step: "x#1",
			Limits: []perdure.LimitTake{{Name: "l", Key: "more"}}}}}
		w.do(out)
		w.check(perdure.CodeOf(out.Results[0].Error) == perdure.CodeQuota, "a step uses one key too many: %+v",
			out.Results)
		w.do(&life.CloseLimit{Tenant: tenant, Name: "l", LimitKey: "more", Open: true}) // it is open
		w.commit(g, perdure.Commit{Limits: []perdure.LimitClosure{{Name: "l", Key: "own", ClosedFor: minutes(1)},
			{Name: "l", Key: "more", ClosedFor: minutes(1)}}})
		w.check(w.counts("l", "own").ClosedUntil != 0, "a key that is there is not closed")
		w.check(w.rows("limit_keys") == 100_000, "%d keys, want as many as before", w.rows("limit_keys"))
	})
}

package watchdog

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/schedule"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// A lockedStore is a store of PostgreSQL, and a session of somebody else on it.
type lockedStore struct {
	t    *testing.T
	s    *store.Store
	e    *engine.Engine
	w    *Watchdog
	psql func(string)
	now  atomic.Int64 // the store's clock
}

func newLockedStore(t *testing.T) *lockedStore {
	url := storetest.Postgres(t)
	x := &lockedStore{t: t, psql: psql(t, url)}
	x.pass(1e6 * time.Second)
	x.s = storetest.Open(t, store.Options{URL: url, Hooks: store.Hooks{Age: func() time.Duration { return 0 },
		Clock: func() perdure.Instant { return perdure.Instant(x.now.Load()) }}})
	e, err := engine.New(x.s, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	x.e, x.w = e, New(e, nil)
	x.w.OnSetAside = func(part string) { t.Errorf("a row of the part %s is set aside with an alert, want none", part) }
	x.do(x.w.Pass()) // creates the row with the time of the last sweep
	return x
}

// pass lets time pass.
func (x *lockedStore) pass(d time.Duration) { x.now.Add(d.Microseconds()) }

func (x *lockedStore) do(op kernel.Op) {
	x.t.Helper()
	if err := x.e.Do(x.t.Context(), op); err != nil {
		x.t.Fatal(err)
	}
}

// due submits a run whose deadline has passed.
func (x *lockedStore) due() *perdure.Run {
	x.t.Helper()
	op := &life.Submit{Tenant: "t", Submission: perdure.Submission{Kind: "due",
		Timeout: perdure.Duration(time.Millisecond)}}
	x.do(op)
	x.pass(time.Millisecond)
	return &op.Run
}

// leased submits a run and grants it to the worker w.
func (x *lockedStore) leased() perdure.Run {
	x.t.Helper()
	x.do(&life.Submit{Tenant: "t", Submission: perdure.Submission{Kind: "leased", Class: perdure.Agent}})
	poll := &dispatch.Claim{Tenant: "t", Worker: "w", Kinds: []string{"leased"}, Slots: 1, Start: true}
	x.do(poll)
	return poll.Grants[0].Run
}

// state reads the row of a run alone: other tables may be locked.
func (x *lockedStore) state(id perdure.RunID) (state perdure.State) {
	x.t.Helper()
	err := x.s.View(x.t.Context(), func(v *store.View) error {
		return v.Rows("SELECT state FROM runs WHERE id=?", []any{string(id)},
			func(scan func(...any) error) error { return scan(&state) })
	})
	if err != nil {
		x.t.Fatal(err)
	}
	return state
}

// tables gives the names of all tables.
func (x *lockedStore) tables() (names []string) {
	x.t.Helper()
	err := x.s.View(x.t.Context(), func(v *store.View) error {
		return v.Rows("SELECT table_name::text FROM information_schema.tables WHERE table_schema=current_schema() "+
			"AND table_type='BASE TABLE' ORDER BY 1", nil, func(scan func(...any) error) error {
			var name string
			err := scan(&name)
			names = append(names, name)
			return err
		})
	})
	if err != nil || len(names) < 30 {
		x.t.Fatalf("the tables of the store: %v, %v", names, err)
	}
	return names
}

// Somebody locks a whole table. The rules that can do without it go on: a deadline ends its run, even if all
// other tables are locked. Nothing is set aside, and what waited is done once the lock is free. The tables
// without which no rule can act are an outage.
func TestLockedTableStopsOnlyRulesThatNeedIt(t *testing.T) {
	t.Parallel()
	x := newLockedStore(t)
	needed := []string{"runs", "events", "meta"}
	// An end of a run reads or writes these.
	ends := []string{"dead_letters", "outbox", "tenants", "webhooks", "workers"}
	others := slices.DeleteFunc(x.tables(), func(table string) bool {
		return slices.Contains(needed, table) || slices.Contains(ends, table)
	})
	for _, tables := range append([][]string{others, {"schedules"}, ends}, []string{"runs"}, []string{"events"},
		[]string{"meta"}) {
		x.pass(2 * time.Second) // the next sweep writes when it was
		run := x.due()
		x.psql("BEGIN; LOCK TABLE " + strings.Join(tables, ", ") + " IN EXCLUSIVE MODE")
		if tables[0] == "schedules" {
			x.psql("LOCK TABLE schedules")
		}
		x.w.SweepOnce(t.Context())
		if outage := slices.Contains(needed, tables[0]); x.w.outage != outage {
			t.Errorf("with %v locked it is an outage: %v, want %v", tables, x.w.outage, outage)
		} else if got := x.state(run.ID); !outage && tables[0] != ends[0] && got != perdure.TimedOut {
			t.Errorf("with %v locked run %s is %s after its deadline, want %s", tables, run.ID, got, perdure.TimedOut)
		}
		x.psql("ROLLBACK")
		eventually.True(t, "the locks are free, and the run has ended", func() bool {
			x.pass(time.Second)
			x.w.SweepOnce(t.Context())
			return x.state(run.ID) == perdure.TimedOut && !x.w.outage && len(x.s.LockedTables()) == 0
		})
	}
	storetest.Check(t, x.s)
}

// A schedule whose instant comes while a table or rows are locked that it needs fires when the lock is free.
// The instant is not lost, and other rules go on.
func TestScheduleFiresWhenLockIsFree(t *testing.T) {
	t.Parallel()
	x := newLockedStore(t)
	x.do(&life.PutLimit{Tenant: "t", Name: "l", Values: perdure.LimitValues{Concurrency: 5}})
	x.do(&life.PutSchedule{Tenant: "t", Name: "s", Plan: schedule.Plan{Every: perdure.Duration(time.Minute)},
		Submission: perdure.Submission{Kind: "tick", Timeout: perdure.Duration(20 * time.Second),
			Unique: &perdure.Unique{Key: "one"}, Limits: []string{"l"}}})
	fired := func() store.ScheduleRow {
		t.Helper()
		row, err := x.e.Schedules.Get(t.Context(), "t", "s")
		if err != nil {
			t.Fatal(err)
		}
		return row
	}
	next := func() { // the run of the instant before ends, and the next instant comes
		x.pass(30 * time.Second)
		x.w.SweepOnce(t.Context())
		x.pass(30 * time.Second)
	}
	next()
	x.w.SweepOnce(t.Context())
	want := fired().Fired
	if want != 1 {
		t.Fatalf("the schedule has fired %d times, want once", want)
	}
	for _, lock := range []string{"LOCK TABLE schedules", "LOCK TABLE unique_runs", "LOCK TABLE limits",
		"LOCK TABLE limit_keys", "SELECT 1 FROM schedules FOR UPDATE", "SELECT 1 FROM unique_runs FOR UPDATE",
		"SELECT 1 FROM limits FOR UPDATE", "SELECT 1 FROM limit_keys FOR UPDATE"} {
		next()
		run := x.due()
		x.psql("BEGIN; " + lock)
		for range 3 {
			x.w.SweepOnce(t.Context())
			x.pass(100 * time.Millisecond)
		}
		if got := x.state(run.ID); got != perdure.TimedOut {
			t.Errorf("during %q: run %s is %s after its deadline, want %s", lock, run.ID, got, perdure.TimedOut)
		}
		x.psql("ROLLBACK")
		want++
		eventually.True(t, "the schedule has fired after "+lock, func() bool {
			x.pass(100 * time.Millisecond)
			x.w.SweepOnce(t.Context())
			return len(x.s.LockedTables())+len(x.s.LockedRows()) == 0 && fired().Fired >= want
		})
		if row := fired(); row.Fired != want || row.Missed+row.Skipped+row.Failed != 0 {
			t.Errorf("after %q the schedule has fired %d times (missed %d, left out %d, refused %d: %s), want %d",
				lock, row.Fired, row.Missed, row.Skipped, row.Failed, row.LastError, want)
		}
	}
	storetest.Check(t, x.s)
}

// A session that has the row of a run locked, or that of its worker, does not make the worker lose the run.
func TestHeartbeatGoesOnWhileRowsAreLocked(t *testing.T) {
	t.Parallel()
	x := newLockedStore(t)
	locked, other := x.leased(), x.leased()
	beat := func() *life.Heartbeat {
		t.Helper()
		op := &life.Heartbeat{Tenant: "t", Worker: "w"}
		for _, r := range []*perdure.Run{&locked, &other} {
			op.Beats = append(op.Beats, life.BeatOf{Lease: life.Lease{RunID: r.ID, Epoch: r.Epoch}})
		}
		x.do(op)
		return op
	}
	x.psql("BEGIN; SELECT 1 FROM runs WHERE id='" + string(locked.ID) + "' FOR UPDATE")
	op := beat()
	if len(op.Lost) != 0 || len(op.Later) != 1 || op.Later[0].RunID != locked.ID {
		t.Errorf("a heartbeat while a run is locked: lost %+v, later %+v; want none lost, and %s later", op.Lost,
			op.Later, locked.ID)
	}
	x.psql("ROLLBACK")
	eventually.True(t, "the run's lease is extended again", func() bool { return len(beat().Later) == 0 })

	for _, lock := range []string{"SELECT 1 FROM workers WHERE id='w' FOR UPDATE", "LOCK TABLE workers"} {
		e, err := engine.New(x.s, engine.Options{}) // remembers no worker
		if err != nil {
			t.Fatal(err)
		}
		x.e = e
		x.psql("BEGIN; " + lock)
		if op := beat(); len(op.Lost)+len(op.Later) > 0 {
			t.Errorf("a heartbeat during %q: lost %+v, later %+v; want both runs extended", lock, op.Lost, op.Later)
		}
		x.psql("ROLLBACK")
	}
}

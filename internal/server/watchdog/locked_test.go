package watchdog

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// A session that has rows locked, in psql or in a node that hangs, delays only the rules that need
// these rows. Deadlines of other runs and ends of other children are not delayed.
func TestLockedRowsDelayOnlyTheirOwnRules(t *testing.T) {
	url := storetest.Postgres(t)
	var writes atomic.Int64
	s := storetest.Open(t, store.Options{URL: url, Hooks: store.Hooks{
		BeforeWrite: func() { writes.Add(1) },
		Age:         func() time.Duration { return 0 },
	}})
	e, err := engine.New(s, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w := New(e, nil)
	ctx := t.Context()
	do := func(op kernel.Op) {
		t.Helper()
		if err := e.Do(ctx, op); err != nil {
			t.Fatal(err)
		}
	}
	do(w.Pass()) // creates the row with the time of the last sweep
	parents := make([]perdure.Run, 2)
	for i := range parents {
		do(&life.Submit{Tenant: "t", Submission: perdure.Submission{Kind: "parent", Class: perdure.Agent}})
		poll := &dispatch.Claim{Tenant: "t", Worker: "w", Kinds: []string{"parent"}, Slots: 1, Start: true}
		do(poll)
		parents[i] = poll.Grants[0].Run
		do(&life.Commit{Tenant: "t", Worker: "w", Commit: perdure.Commit{
			ID: "c", RunID: parents[i].ID, Epoch: parents[i].Epoch,
			Children: []perdure.Spawn{{Key: "k", Kind: "kid", Timeout: perdure.Duration(time.Millisecond)}},
			Waits:    []perdure.WaitSpec{{ID: "j", Type: perdure.WaitChildren, Keys: []string{"k"}}},
			Outcome:  &perdure.Outcome{Type: perdure.OutcomeSuspend}}})
	}
	due := make([]perdure.RunID, 300)
	var ops []kernel.Op
	for range due {
		ops = append(ops, &life.Submit{Tenant: "t",
			Submission: perdure.Submission{Kind: "due", Timeout: perdure.Duration(time.Millisecond)}})
	}
	for i, err := range e.DoAll(ctx, ops...) {
		if err != nil {
			t.Fatal(err)
		}
		due[i] = ops[i].(*life.Submit).Run.ID
	}

	psql, err := pgconn.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer psql.Close(context.Background())
	exec := func(format string, args ...any) {
		t.Helper()
		if err := psql.Exec(ctx, fmt.Sprintf(format, args...)).Close(); err != nil {
			t.Fatal(err)
		}
	}
	// Locks a due run, the parent of another one, and the row with the time of the last sweep.
	exec("BEGIN; SELECT 1 FROM runs WHERE id IN ('%s','%s') FOR UPDATE; "+
		"SELECT 1 FROM meta WHERE name='sweep' FOR UPDATE", due[0], parents[0].ID)

	state := func(id perdure.RunID) perdure.State {
		t.Helper()
		d, err := e.Runs.Get(ctx, "t", id)
		if err != nil {
			t.Fatal(err)
		}
		return d.State
	}
	count := func(query string) (n int) {
		t.Helper()
		if err := s.View(ctx, func(v *store.View) error {
			return v.Rows(query, nil, func(scan func(...any) error) error { return scan(&n) })
		}); err != nil {
			t.Fatal(err)
		}
		return n
	}
	sweep := func() {
		t.Helper()
		for range 100 { // a sweep may be short while others write
			op := w.Pass()
			do(op)
			if !op.More {
				return
			}
		}
		t.Fatal("100 sweeps all had more to do, want one that finds nothing left")
	}
	sweep()
	const endedDue = "SELECT count(*) FROM runs WHERE kind='due' AND state='timeout'"
	const endedKids = "SELECT count(*) FROM runs WHERE kind='kid' AND state='timeout'"
	if n := count(endedDue); n != len(due)-1 {
		t.Errorf("%d due runs have ended, want %d: all but the locked one", n, len(due)-1)
	}
	if got := state(due[0]); got != perdure.Queued {
		t.Errorf("run %s, which is locked: state = %s, want %s", due[0], got, perdure.Queued)
	}
	if n := count(endedKids); n != 1 {
		t.Errorf("%d children have ended, want 1: not the one whose parent is locked", n)
	}
	if got := state(parents[1].ID); got != perdure.Queued {
		t.Errorf("parent %s, which is not locked: state = %s, want %s", parents[1].ID, got, perdure.Queued)
	}
	// The next sweep does not wait again for rows that are known to be locked.
	more := &life.Submit{Tenant: "t",
		Submission: perdure.Submission{Kind: "more", Timeout: perdure.Duration(time.Millisecond)}}
	do(more)
	eventually.True(t, "its deadline has passed", func() bool { return s.Now() > more.Run.DeadlineAt })
	writes.Store(0)
	do(w.Pass())
	if n := writes.Load(); n != 1 {
		t.Errorf("the sweep was written in %d attempts, want 1", n)
	}
	if got := state(more.Run.ID); got != perdure.TimedOut {
		t.Errorf("run %s: state after its deadline = %s, want %s", more.Run.ID, got, perdure.TimedOut)
	}

	exec("ROLLBACK")
	eventually.True(t, "the rules act on the rows that were locked", func() bool {
		sweep()
		return state(due[0]) == perdure.TimedOut && count(endedKids) == 2 && state(parents[0].ID) == perdure.Queued
	})
	storetest.Check(t, s)
}

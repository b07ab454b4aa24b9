package watchdog

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/engine"
	"github.com/perdure/perdure/internal/eventually"
	"github.com/perdure/perdure/internal/store"
	"github.com/perdure/perdure/internal/storetest"
)

// Somebody who holds rows locked, in psql or in a node that stands still, holds up what needs these rows and nothing else: neither
// the deadlines of others nor the ends of other children.
func TestALockedRowHoldsUpNobodyElse(t *testing.T) {
	url := storetest.Postgres(t)
	var writes atomic.Int64
	s := storetest.Open(t, store.Options{URL: url, Hooks: store.Hooks{BeforeWrite: func() { writes.Add(1) }, Age: func() time.Duration { return 0 }}})
	e, err := engine.New(s, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w := New(e, nil)
	ctx := t.Context()
	do := func(op engine.Op) {
		t.Helper()
		if err := e.Do(ctx, op); err != nil {
			t.Fatal(err)
		}
	}
	do(w.Pass()) // the row that says when somebody swept is there
	parents := make([]perdure.Run, 2)
	for i := range parents {
		do(&engine.Submit{Tenant: "t", Submission: perdure.Submission{Kind: "parent", Class: perdure.Agent}})
		poll := &engine.Claim{Tenant: "t", Worker: "w", Kinds: []string{"parent"}, Slots: 1, Start: true}
		do(poll)
		parents[i] = poll.Grants[0].Run
		do(&engine.Commit{Tenant: "t", Worker: "w", Commit: perdure.Commit{ID: "c", RunID: parents[i].ID, Epoch: parents[i].Epoch,
			Children: []perdure.Spawn{{Key: "k", Kind: "kid", Timeout: perdure.Duration(time.Millisecond)}},
			Waits:    []perdure.WaitSpec{{ID: "j", Type: perdure.WaitChildren, Keys: []string{"k"}}}, Outcome: &perdure.Outcome{Type: perdure.OutcomeSuspend}}})
	}
	due := make([]perdure.RunID, 300)
	var ops []engine.Op
	for range due {
		ops = append(ops, &engine.Submit{Tenant: "t", Submission: perdure.Submission{Kind: "due", Timeout: perdure.Duration(time.Millisecond)}})
	}
	for i, err := range e.DoAll(ctx, ops...) {
		if err != nil {
			t.Fatal(err)
		}
		due[i] = ops[i].(*engine.Submit).Run.ID
	}

	psql, err := pgconn.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer psql.Close(context.Background())
	say := func(format string, args ...any) {
		t.Helper()
		if err := psql.Exec(ctx, fmt.Sprintf(format, args...)).Close(); err != nil {
			t.Fatal(err)
		}
	}
	// A due run, the parent of another one, and the row that every sweep writes.
	say("BEGIN; SELECT 1 FROM runs WHERE id IN ('%s','%s') FOR UPDATE; SELECT 1 FROM meta WHERE name='sweep' FOR UPDATE", due[0], parents[0].ID)

	state := func(id perdure.RunID) perdure.State {
		t.Helper()
		d, err := e.Get(ctx, "t", id)
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
		for range 10 {
			op := w.Pass()
			do(op)
			if !op.More {
				return
			}
		}
		t.Fatal("the watchdog does not come to rest")
	}
	sweep()
	if n := count("SELECT count(*) FROM runs WHERE kind='due' AND state='timeout'"); n != len(due)-1 || state(due[0]) != perdure.Queued {
		t.Errorf("%d of the others' deadlines were kept, and the locked run is %s", n, state(due[0]))
	}
	if n := count("SELECT count(*) FROM runs WHERE kind='kid' AND state='timeout'"); n != 1 || state(parents[1].ID) != perdure.Queued {
		t.Errorf("%d children ended, and the parent that is not locked is %s", n, state(parents[1].ID))
	}
	// What is known to be locked is not waited for again.
	more := &engine.Submit{Tenant: "t", Submission: perdure.Submission{Kind: "more", Timeout: perdure.Duration(time.Millisecond)}}
	do(more)
	writes.Store(0)
	do(w.Pass())
	if n := writes.Load(); n != 1 || state(more.Run.ID) != perdure.TimedOut {
		t.Errorf("the run is %s, and a sweep was written at the %d. try", state(more.Run.ID), n)
	}

	say("ROLLBACK")
	eventually.True(t, "what was locked comes to its end as well", func() bool {
		sweep()
		return state(due[0]) == perdure.TimedOut && count("SELECT count(*) FROM runs WHERE kind='kid' AND state='timeout'") == 2 && state(parents[0].ID) == perdure.Queued
	})
	storetest.Check(t, s)
}

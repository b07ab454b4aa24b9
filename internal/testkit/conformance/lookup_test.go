package conformance

import (
	"fmt"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// asking counts the questions about commits and steps.
type asking struct {
	store.Conn
	commits, steps *int
}

func (a *asking) Query(query string, args []any, row func(scan func(...any) error) error) error {
	switch {
	case strings.Contains(query, " FROM commits "):
		*a.commits++
	case strings.Contains(query, " FROM journal "):
		*a.steps++
	}
	return a.Conn.Query(query, args, row)
}

// A batch of commits of many agents looks up their journals in one query at most. A commit that no database can store
// is refused, and the others are accepted.
func TestABatchOfCommitsAsksOnce(t *testing.T) {
	const agents = 64
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		var commits, steps, written int
		at.Hooks = store.Hooks{Clock: func() perdure.Instant { return dawn },
			Wrap:        func(s store.Conn) store.Conn { return &asking{s, &commits, &steps} },
			BeforeWrite: func() { written++ }}
		w := NewWorld(t, storetest.Open(t, at))
		for range agents + 1 {
			w.do(&life.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "job"}})
		}
		grants := w.poll("w", agents+1)
		record := func(commit, key string) (ops []kernel.Op) {
			for _, g := range grants {
				ops = append(ops, &life.Commit{Tenant: tenant, Worker: "w",
					Commit: perdure.Commit{ID: commit, RunID: g.Run.ID, Epoch: g.Run.Epoch,
						Journal: []perdure.JournalEntry{{Key: key, Value: []byte(`1`)}}}})
			}
			return ops
		}
		for i := range 3 {
			for _, op := range record(fmt.Sprint("c", i), fmt.Sprint("step", i)) {
				w.do(op)
			}
		}
		step := func(w *World, commit, key string, asked int) {
			t.Helper()
			commits, steps, written = 0, 0, 0
			ops := record(commit, key)
			ops[agents].(*life.Commit).Commit.Journal[0].Key = "a\x00b"
			for i, err := range w.E.Step(w.Now, ops...) {
				if i < agents && err != nil || i == agents && perdure.CodeOf(err) != perdure.CodeInvalid {
					t.Errorf("commit %d: %v", i, err)
				}
			}
			if commits != asked || steps != asked || written != 1 {
				t.Errorf("asked %d times for commits and %d times for steps, in %d batches", commits, steps, written)
			}
		}
		step(w, "c3", "step3", 0)                                  // who has been there from the beginning knows
		step(NewWorld(t, storetest.Open(t, at)), "c4", "step4", 1) // and another node asks
		for _, op := range record("c1", "step1") {                 // each is answered as the first time
			w.do(op)
			w.check(op.(*life.Commit).Answer.OK, "%+v", op.(*life.Commit).Answer)
		}
	})
}

// countedQueries counts the queries of a table.
type countedQueries struct {
	store.Conn
	table string
	n     *int
}

func (c *countedQueries) Query(query string, args []any, row func(scan func(...any) error) error) error {
	if strings.Contains(query, " FROM "+c.table+" ") {
		*c.n++
	}
	return c.Conn.Query(query, args, row)
}

// A batch of submissions looks up all its keys in one query. A key that no database can store is
// refused, and the others are accepted.
func TestABatchOfSubmissionsLooksUpItsKeysOnce(t *testing.T) {
	const runs = 64
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		var keys, rows, written int
		at.Hooks = store.Hooks{Clock: func() perdure.Instant { return dawn }, BeforeWrite: func() { written++ },
			Wrap: func(s store.Conn) store.Conn {
				return &countedQueries{&countedQueries{s, "runs", &rows}, "idempotency", &keys}
			}}
		w := NewWorld(t, storetest.Open(t, at))
		job := perdure.Submission{Kind: "job"}
		batch := func() (ops []kernel.Op) {
			for i := range runs {
				ops = append(ops, &life.Submit{Tenant: tenant, Key: fmt.Sprint("k", i), Submission: job})
			}
			ops = append(ops, &life.Submit{Tenant: tenant, Key: "k\x00", Submission: job})
			return append(ops, &life.Submit{Tenant: tenant, Key: "k0", Submission: job})
		}
		step := func(w *World, created bool, asked int) (ids []perdure.RunID) {
			t.Helper()
			keys, rows = 0, 0
			ops := batch()
			for i, err := range w.E.Step(w.Now, ops...) {
				op := ops[i].(*life.Submit)
				if i == runs {
					w.check(perdure.CodeOf(err) == perdure.CodeInvalid, "a NUL in a key: %v", err)
					continue
				}
				w.check(err == nil && op.Created == (created && i < runs), "submission %d: created %t, %v", i,
					op.Created, err)
				ids = append(ids, op.Run.ID)
			}
			w.check(keys == 1 && rows == asked, "%d queries of keys, want 1, and %d of runs, want %d", keys,
				rows, asked)
			w.check(ids[0] == ids[runs], "one key in one batch: %s and %s", ids[0], ids[runs])
			return ids
		}
		first := step(w, true, 0)
		again := step(NewWorld(t, storetest.Open(t, at)), false, 1) // another node, which has no run in its cache
		for i := range first {
			w.check(first[i] == again[i], "submission %d: %s, then %s", i, first[i], again[i])
		}
	})
}

package conformance

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// Two engines on one PostgreSQL that work at the same time.

// live makes engines with the store's own clock.
func live(t *testing.T, url string, n int) []*World {
	t.Helper()
	out := make([]*World, n)
	for i := range out {
		s := storetest.Open(t, store.Options{URL: url})
		e, err := engine.New(s, engine.Options{})
		if err != nil {
			t.Fatal(err)
		}
		out[i] = &World{t: t, S: s, E: e, Now: s.Now()}
	}
	return out
}

// patient is how long a test waits for what takes a moment.
func patient(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), eventually.Left(t))
	t.Cleanup(cancel)
	return ctx
}

// claims polls with several workers of each node until they have that many runs.
func claims(t *testing.T, nodes []*World, kind string, want int) map[perdure.RunID]dispatch.Grant {
	t.Helper()
	ctx := patient(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	got := make(map[perdure.RunID]dispatch.Grant)
	for i, w := range nodes {
		for j := range 4 {
			wg.Go(func() {
				for ctx.Err() == nil {
					op := &dispatch.Claim{Tenant: tenant, Worker: fmt.Sprintf("w%d%d", i, j), Kinds: []string{kind},
						Slots: 3, Start: true}
					if err := w.E.Do(ctx, op); err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					for _, g := range op.Grants {
						if _, twice := got[g.Run.ID]; twice {
							t.Errorf("%s was granted twice", g.Run.ID)
						}
						got[g.Run.ID] = g
					}
					enough := len(got) >= want
					mu.Unlock()
					if enough {
						return
					}
				}
			})
		}
	}
	wg.Wait()
	if len(got) != want {
		t.Fatalf("%d of %d runs were granted", len(got), want)
	}
	return got
}

// completes has the nodes complete runs at the same time, in turns.
func completes(t *testing.T, nodes []*World, grants map[perdure.RunID]dispatch.Grant) {
	t.Helper()
	ctx := patient(t)
	var wg sync.WaitGroup
	i := 0
	for _, g := range grants {
		w := nodes[i%len(nodes)]
		i++
		wg.Go(func() {
			op := &life.Commit{Tenant: tenant, Worker: g.Run.Worker,
				Commit: perdure.Commit{ID: "c", RunID: g.Run.ID, Epoch: g.Run.Epoch, Outcome: done(`1`)}}
			if err := w.E.Do(ctx, op); err != nil || op.Refused != nil {
				t.Errorf("%v, %v", err, op.Refused)
			}
		})
	}
	wg.Wait()
}

func TestTwoNodesClaimTwoHundredRunsAtOnce(t *testing.T) {
	const n = 200
	nodes := live(t, storetest.Postgres(t), 2)
	ctx := patient(t)
	var submitted sync.WaitGroup
	for i := range n {
		submitted.Go(func() {
			op := &life.Submit{Tenant: tenant, Submission: perdure.Submission{Kind: "job"}}
			if err := nodes[i%2].E.Do(ctx, op); err != nil {
				t.Error(err)
			}
		})
	}
	submitted.Wait()
	grants := claims(t, nodes, "job", n)
	w := nodes[0]
	for id, g := range grants {
		if g.Run.Epoch != 1 || w.count(id, "run:dispatched") != 1 {
			t.Errorf("%s has epoch %d: %v", id, g.Run.Epoch, w.types(id))
		}
	}
	left := &dispatch.Claim{Tenant: tenant, Worker: "last", Slots: 10}
	if err := w.E.Do(ctx, left); err != nil || len(left.Grants) != 0 {
		t.Errorf("%d are left over, %v", len(left.Grants), err)
	}
	completes(t, nodes, grants)
	if ended, err := w.E.Runs.List(ctx, tenant, filter("job", string(perdure.Completed))); err != nil ||
		len(ended) != n {
		t.Errorf("%d have ended, %v", len(ended), err)
	}
	storetest.Check(t, w.S)
}

func TestAHundredChildrenEndOnTwoNodesAtOnce(t *testing.T) {
	const n = 100
	nodes := live(t, storetest.Postgres(t), 2)
	w := nodes[0]
	parent, _ := w.family(n, perdure.ModeAll)
	completes(t, nodes, claims(t, nodes, "kid", n))
	r := w.state(parent.ID, perdure.Queued)
	if r.Children != n || r.InboxOpen != int(r.InboxSeq) || r.WaitsOpen != 0 ||
		w.count(parent.ID, "run:resumed") != 1 || w.count(parent.ID, "worker:completed") != n {
		t.Errorf("%d children, %d items of which %d are open, %d waits; %v", r.Children, r.InboxSeq, r.InboxOpen,
			r.WaitsOpen, w.types(parent.ID))
	}
	var items []perdure.Item
	w.view(func(v *store.View) (err error) { items, err = v.Inbox.List(tenant, parent.ID); return err })
	over, told := 0, make(map[perdure.RunID]int)
	for _, i := range items {
		if i.Type == perdure.ItemChild {
			told[i.From]++
		}
		if i.WaitID == "join" {
			over++
		}
	}
	for id, times := range told {
		if times != 1 {
			t.Errorf("%s told its parent of its end %d times", id, times)
		}
	}
	if len(told) != n || over != 1 {
		t.Errorf("%d children told their parent of their end, and %d items end the wait", len(told), over)
	}
	storetest.Check(t, w.S)
}

// Nodes that submit with the same keys at the same time make one run of each.
func TestTwoNodesSubmitTheSameKeysAtOnce(t *testing.T) {
	const n = 50
	nodes := live(t, storetest.Postgres(t), 2)
	ctx := patient(t)
	var wg sync.WaitGroup
	var created atomic.Int64
	for i := range 4 * n {
		wg.Go(func() {
			op := &life.Submit{Tenant: tenant, Key: fmt.Sprint("k", i/4), Submission: perdure.Submission{Kind: "job"}}
			if err := nodes[i%2].E.Do(ctx, op); err != nil {
				t.Error(err)
			}
			if op.Created {
				created.Add(1)
			}
		})
	}
	wg.Wait()
	runs, err := nodes[0].E.Runs.List(ctx, tenant, filter("job", ""))
	if err != nil || len(runs) != n || created.Load() != n {
		t.Errorf("%d runs of %d keys, created %d times, %v", len(runs), n, created.Load(), err)
	}
	storetest.Check(t, nodes[0].S)
}

package worker_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/client/admin"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/worker"
)

// One tenant submits more runs than the worker has slots, and none of them ends. A run of another tenant
// is executed all the same. When a run of the first one ends, its next one is executed.
func TestTenantLeavesSlotsToOthers(t *testing.T) {
	t.Parallel()
	w := open(t, false, nil)
	as := func(tenant perdure.TenantID) *client.Client {
		k, err := admin.New(w.C).CreateTenantKey(w.Ctx, tenant, api.CreateKey{Name: "k",
			Scopes: []string{string(perdure.ScopeRead), string(perdure.ScopeCreate)}})
		if err != nil {
			t.Fatal(err)
		}
		return client.New(w.URL, k.Secret, client.Options{Transport: w.Wire})
	}
	hostile, other := as("hostile"), as("other")
	for range 20 {
		if _, err := hostile.Start(w.Ctx, perdure.Submission{Kind: "job"}); err != nil {
			t.Fatal(err)
		}
	}
	var stuck, most atomic.Int64
	release := make(chan struct{}, 20)
	wk := worker.New(w.C, worker.Options{AllTenants: true, Slots: 8, TenantSlots: 6})
	worker.Handle(wk, "job", func(ctx context.Context, _ any) (string, error) {
		if info, _ := worker.Info(ctx); info.Tenant == "other" {
			return "done", nil
		}
		if n := stuck.Add(1); n > most.Load() {
			most.Store(n)
		}
		defer stuck.Add(-1)
		select {
		case <-release:
		case <-ctx.Done():
		}
		return "at last", nil
	})
	w.Work(wk)
	eventually.True(t, "the tenant has its slots", func() bool { return stuck.Load() == 6 })
	run, err := other.Start(w.Ctx, perdure.Submission{Kind: "job"})
	if err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "the other tenant's run has ended", func() bool {
		got, err := other.Get(w.Ctx, run.RunID)
		return err == nil && got.State == perdure.Completed
	})
	for range 20 {
		release <- struct{}{}
	}
	eventually.True(t, "the runs of the first tenant have ended", func() bool {
		page, err := hostile.List(w.Ctx, client.Filter{State: perdure.Completed, Limit: 50})
		return err == nil && len(page.Runs) == 20
	})
	if most.Load() != 6 {
		t.Errorf("the tenant had %d runs at once, want 6", most.Load())
	}
}

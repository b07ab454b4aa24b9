package watchdog

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/outbox"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// Nodes that sweep at the same time do each action once. On PostgreSQL the nodes are two servers,
// on SQLite two watchdogs of one server.
func TestConcurrentSweepsActOnce(t *testing.T) {
	const n = 100
	storetest.OnBoth(t, func(t *testing.T, at store.Options) {
		policy := perdure.DefaultPolicy()
		policy.WaiterTTL, policy.WatchdogInterval = 200*time.Millisecond, 5*time.Millisecond
		var dogs []*Watchdog
		var e *engine.Engine
		for i := range 2 {
			if i == 0 || at.URL != "" {
				var err error
				if e, err = engine.New(storetest.Open(t, at), engine.Options{Policy: &policy}); err != nil {
					t.Fatal(err)
				}
			}
			dogs = append(dogs, New(e, nil))
		}
		ctx, stop := context.WithCancel(t.Context())
		do := func(op kernel.Op) {
			t.Helper()
			if err := e.Do(ctx, op); err != nil {
				t.Fatal(err)
			}
		}
		// A parent is suspended on children that will time out. There are also groups of children,
		// runs with waiters that will expire, and an endpoint that is notified of everything.
		do(&outbox.CreateWebhook{Tenant: "t", URL: "https://example.com/hook"})
		do(&life.Submit{Tenant: "t", Submission: perdure.Submission{Kind: "parent", Class: perdure.Agent}})
		poll := &dispatch.Claim{Tenant: "t", Worker: "w", Kinds: []string{"parent"}, Slots: 1, Start: true}
		do(poll)
		parent := poll.Grants[0].Run
		spawn := perdure.Commit{ID: "c", RunID: parent.ID, Epoch: parent.Epoch,
			Outcome: &perdure.Outcome{Type: perdure.OutcomeSuspend}}
		join := perdure.WaitSpec{ID: "j", Type: perdure.WaitChildren}
		for i := range n {
			key := fmt.Sprint(i)
			spawn.Children = append(spawn.Children,
				perdure.Spawn{Key: key, Kind: "kid", Timeout: perdure.Duration(300 * time.Millisecond)})
			join.Keys = append(join.Keys, key)
		}
		spawn.Waits = []perdure.WaitSpec{join}
		commit := &life.Commit{Tenant: "t", Worker: "w", Commit: spawn}
		do(commit)
		var groups []*life.CreateGroup
		for _, c := range commit.Answer.Children[:20] {
			op := &life.CreateGroup{Tenant: "t", RunIDs: []perdure.RunID{c.RunID, parent.ID},
				Timeout: perdure.Duration(250 * time.Millisecond)}
			do(op)
			groups = append(groups, op)
		}
		var waited []perdure.RunID
		for range 20 {
			op := &life.Submit{Tenant: "t",
				Submission: perdure.Submission{Kind: "waited", Class: perdure.Agent, Foreground: true}}
			do(op)
			waited = append(waited, op.Run.ID)
		}
		do(&life.Attach{Tenant: "t", Node: "gone", RunIDs: waited})

		var mu sync.Mutex
		reported := make(map[string]int)
		var wg sync.WaitGroup
		for _, w := range dogs {
			w.OnActions = func(list []Action) {
				mu.Lock()
				defer mu.Unlock()
				for _, a := range list {
					reported[a.Name+" "+string(a.Run)]++
				}
			}
			wg.Go(func() {
				if err := w.Run(ctx); err != nil {
					t.Error(err)
				}
			})
		}
		view := func(f func(v *store.View) error) {
			t.Helper()
			if err := e.Store().View(t.Context(), f); err != nil {
				t.Fatal(err)
			}
		}
		number := func(query string) (n int) {
			view(func(v *store.View) error {
				return v.Rows(query, nil, func(scan func(...any) error) error { return scan(&n) })
			})
			return n
		}
		eventually.True(t, "all children and groups have timed out, and all waiters have expired", func() bool {
			return number("SELECT count(*) FROM runs WHERE state='timeout'") == n &&
				number("SELECT count(*) FROM gatherings WHERE state='timed_out'") == len(groups) &&
				number("SELECT count(*) FROM runs WHERE deferred_at<>0") == len(waited)
		})
		stop()
		wg.Wait()

		want := make(map[string]bool)
		for _, c := range commit.Answer.Children {
			want["deadline "+string(c.RunID)] = true
		}
		for _, g := range groups {
			want["group-deadline "+string(g.Group.ID)] = true
		}
		for _, id := range waited {
			want["waiters "+string(id)] = true
		}
		for what := range want {
			if reported[what] != 1 {
				t.Errorf("action %q: reported %d times, want once", what, reported[what])
			}
		}
		if len(reported) != len(want) {
			t.Errorf("%d different actions were reported, want %d: %v", len(reported), len(want), reported)
		}
		for query, want := range map[string]int{
			"SELECT count(*) FROM watchdog_log":                                len(want),
			"SELECT count(*) FROM events WHERE type='run:timed_out'":           n,
			"SELECT count(*) FROM events WHERE type='worker:completed'":        n,
			"SELECT count(*) FROM events WHERE type='run:resumed'":             1,
			"SELECT count(*) FROM events WHERE type='run:deferred'":            len(waited),
			"SELECT count(*) FROM inbox WHERE type='child'":                    n,
			"SELECT count(*) FROM inbox WHERE type='wait'":                     1,
			"SELECT count(*) FROM outbox WHERE type='run:timed_out'":           n,
			"SELECT count(*) FROM runs WHERE state='timeout' AND epoch=1":      n,
			"SELECT count(*) FROM runs WHERE kind='parent' AND state='queued'": 1,
		} {
			if got := number(query); got != want {
				t.Errorf("%s = %d, want %d", query, got, want)
			}
		}
		storetest.Check(t, e.Store())
	})
}

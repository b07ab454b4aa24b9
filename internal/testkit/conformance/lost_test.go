package conformance

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// insisting repeats an operation until it has an answer. Everything in it has a key, so that it may.
func insisting(ctx context.Context, e *engine.Engine, op kernel.Op) error {
	for {
		err := e.Do(ctx, op)
		if code := perdure.CodeOf(err); err == nil || ctx.Err() != nil ||
			(code != perdure.CodeUnavailable && code != perdure.CodeUnknown) {
			return err
		}
	}
}

// PostgreSQL ends the connections of two nodes at random moments while they work: everything is answered, what was
// acknowledged is there, and nothing is there twice.
func TestConnectionsEndAtRandomMoments(t *testing.T) {
	const kills, callers = 40, 6
	url := storetest.Postgres(t)
	nodes := live(t, url, 2)
	ctx := patient(t)
	killer, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer killer.Close(context.Background())
	over := make(chan struct{})
	var wg sync.WaitGroup
	var mu sync.Mutex
	acknowledged := make(map[perdure.RunID]string) // by the result that it was completed with
	keys := make(map[string]perdure.RunID)
	for c := range callers {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-over:
					return
				default:
				}
				w := nodes[(c+i)%2]
				key := fmt.Sprintf("k%d-%d", c, i)
				sub := &life.Submit{Tenant: tenant, Key: key,
					Submission: perdure.Submission{Kind: fmt.Sprint("job", c)}}
				if err := insisting(ctx, w.E, sub); err != nil {
					t.Errorf("submit: %v", err)
					return
				}
				mu.Lock()
				keys[key] = sub.Run.ID
				mu.Unlock()
				// After a lost answer no worker has the run until it is granted again, so that another run may come
				// instead.
				claim := &dispatch.Claim{Tenant: tenant, Worker: fmt.Sprint("w", c),
					Kinds: []string{fmt.Sprint("job", c)}, Slots: 1, Start: true}
				if err := insisting(ctx, w.E, claim); err != nil {
					t.Errorf("claim: %v", err)
					return
				}
				for _, g := range claim.Grants {
					result := fmt.Sprint(rand.Uint32())
					op := &life.Commit{Tenant: tenant, Worker: g.Run.Worker,
						Commit: perdure.Commit{ID: key, RunID: g.Run.ID, Epoch: g.Run.Epoch, Outcome: done(result)}}
					if err := insisting(ctx, nodes[i%2].E, op); err != nil || op.Refused != nil {
						t.Errorf("commit: %v, %v", err, op.Refused)
						return
					}
					mu.Lock()
					acknowledged[g.Run.ID] = result
					mu.Unlock()
				}
			}
		})
	}
	killed := 0
	for killed < kills && ctx.Err() == nil {
		tag, err := killer.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity
			WHERE datname=current_database() AND application_name LIKE 'perdure/%' ORDER BY random() - CASE state WHEN
'idle' THEN 0 ELSE 0.5 END LIMIT 1) AS x`)
		if err != nil {
			t.Fatal(err)
		}
		killed += int(tag.RowsAffected())
		select {
		case <-ctx.Done():
		case <-time.After(rand.N(40 * time.Millisecond)): // at random moments: nothing is waited for
		}
	}
	close(over)
	wg.Wait()
	w := nodes[0]
	runs := 0
	for c := range callers {
		list, err := w.E.Runs.List(ctx, tenant, filter(fmt.Sprint("job", c), ""))
		if err != nil {
			t.Fatal(err)
		}
		runs += len(list)
	}
	if runs != len(keys) {
		t.Errorf("%d runs of %d keys", runs, len(keys))
	}
	for key, id := range keys {
		r := w.get(id)
		if want, ok := acknowledged[id]; ok && (r.State != perdure.Completed || string(r.Result) != want ||
			w.count(id, "run:completed") != 1) {
			t.Errorf("%s (%s) was completed with %s and is %s with %s", id, key, want, r.State, r.Result)
		}
	}
	storetest.Check(t, w.S)
	t.Logf("%d connections ended; %d runs, %d completed", killed, len(keys), len(acknowledged))
	if killed < kills || len(acknowledged) == 0 {
		t.Errorf("%d connections ended and %d runs completed: that shows nothing", killed, len(acknowledged))
	}
}

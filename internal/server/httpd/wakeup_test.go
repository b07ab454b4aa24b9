package httpd

import (
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/worker"
)

// A wake-up that is lost is repaired by a look a second later, and so looks like a slow answer. Here
// nothing looks again for an hour, and there is no watchdog: a lost wake-up is a run that does not end.
//
// PERDURE_SOAK is how long the test goes on, in rounds of different sizes.
func TestNoWakeUpIsLost(t *testing.T) {
	const patience = 5 * time.Minute
	w := newWorld(t, setup{options: func(o *Options) { o.MaxPollWait = long }})
	hs := httptest.NewServer(w.s.Handler())
	t.Cleanup(hs.Close)
	c := client.New(hs.URL, w.key, client.Options{})
	t.Cleanup(func() { c.Close() })

	wk := worker.New(c, worker.Options{ID: "w", Slots: 200, AgentSlots: 64, PollWait: long})
	one := func(context.Context, int) (int, error) { return 1, nil }
	worker.Handle(wk, "job", one)
	worker.Agent(wk, "children", func(ctx *agent.Context, n int) (int, error) {
		children := make([]*agent.Future[int], n)
		for i := range children {
			children[i] = agent.Spawn[int](ctx, "job", i)
		}
		ones, err := agent.JoinAll(ctx, children...)
		return len(ones), err
	})
	worker.Agent(wk, "steps", func(ctx *agent.Context, n int) (int, error) {
		for i := range n {
			if _, err := agent.Step(ctx, "look", func(ctx context.Context) (int, error) {
				return one(ctx, i)
			}); err != nil {
				return 0, err
			}
		}
		return n, nil
	})
	ctx, stop := context.WithCancel(t.Context())
	worked := make(chan error, 1)
	go func() { worked <- wk.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-worked; err != nil {
			t.Error(err)
		}
	})

	soak, _ := time.ParseDuration(os.Getenv("PERDURE_SOAK"))
	rounds := []struct {
		kind       string
		callers, n int
	}{{"children", 8, 20}, {"steps", 16, 5}, {"job", 64, 1}}
	if soak > 0 {
		rounds = append(rounds, struct {
			kind       string
			callers, n int
		}{"children", 64, 100})
	}
	slowest := make(map[string]time.Duration)
	began, count := time.Now(), 0
	for ; count == 0 || time.Since(began) < soak; count++ {
		for _, r := range rounds {
			name := fmt.Sprintf("%d %s of %d", r.callers, r.kind, r.n)
			start := time.Now()
			var all sync.WaitGroup
			for range r.callers {
				all.Go(func() {
					sub := perdure.Submission{Kind: r.kind, Input: client.JSON(r.n), Timeout: perdure.Duration(long)}
					run, deferred, err := c.Run(t.Context(), sub, patience)
					if err != nil || deferred {
						t.Errorf("round %d, %s: a run has no result after %s: %v", count, name, patience, err)
						return
					}
					if got, err := client.Result[int](run); err != nil || got != r.n {
						t.Errorf("round %d, %s: a run results in %d (%v), want %d", count, name, got, err, r.n)
					}
				})
			}
			if all.Wait(); t.Failed() {
				return
			}
			slowest[name] = max(slowest[name], time.Since(start))
		}
	}
	t.Logf("%d rounds in %s, the slowest of each: %v", count, time.Since(began).Round(time.Second), slowest)
}

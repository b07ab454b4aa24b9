package main

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/worker"
)

// A hundred agents get their answers. No window of a minute has more calls than the limit allows, and while it is
// closed nobody calls but those who had begun.
func TestHundredAgentsBehindOneKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, err := embedded.Open(embedded.Options{Clock: time.Now})
		if err != nil {
			t.Fatal(err)
		}
		defer srv.Close()
		c := client.New("http://perdure", srv.Key(), client.Options{Transport: srv.Transport()})
		w := worker.New(c, worker.Options{Slots: 10, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
		const told, closed, burst = 10, time.Minute, 10
		var mu sync.Mutex
		var at []time.Time
		worker.Agent(w, "ask", Asker{func(_ context.Context, question string) (string, error) {
			mu.Lock()
			defer mu.Unlock()
			if at = append(at, time.Now()); len(at) == told {
				return "", &Refusal{closed}
			}
			return question, nil
		}}.run)
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = w.Run(ctx) })
		defer running.Wait()
		defer stop()
		answers, err := askAll(ctx, c, 100,
			perdure.LimitRate{Count: 500, Per: perdure.Duration(time.Minute), Burst: burst})
		if err != nil || answers != 100 || len(at) != 101 {
			t.Fatalf("%d answers in %d calls, error %v; want 100 in 101", answers, len(at), err)
		}
		// A call that had its units when the limit was closed is made all the same.
		after := 0
		for _, x := range at[told:] {
			if x.Before(at[told-1].Add(closed)) {
				after++
			}
		}
		if after > burst {
			t.Errorf("%d calls were made while the limit was closed, want at most %d that had begun", after, burst)
		}
		// Between the grant of a unit and its call there may be a little time.
		for i := range at {
			n := 0
			for _, x := range at[i:] {
				if x.Before(at[i].Add(10 * time.Second)) {
					n++
				}
			}
			if n > 500/6+burst+1 {
				t.Errorf("%d calls in the 10 s from call %d, want at most %d", n, i, 500/6+burst+1)
			}
		}
	})
}

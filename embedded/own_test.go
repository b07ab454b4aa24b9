package embedded_test

import (
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/eventually"
)

// TestRunsOfOwnWorkersGoOnAfterACrash restarts a server whose own worker held runs, beside one of another process.
// The server knows that its own worker is gone; the other may live.
func TestRunsOfOwnWorkersGoOnAfterACrash(t *testing.T) {
	policy := perdure.DefaultPolicy()
	policy.Lease, policy.ActiveReap = time.Hour, 2*time.Hour
	opt := embedded.Options{Dir: t.TempDir(), Policy: &policy, OwnWorkers: []string{"own"}}
	srv, err := embedded.Open(opt)
	if err != nil {
		t.Fatal(err)
	}
	c := client.New("http://perdure", srv.Key(), client.Options{Transport: srv.Transport()})
	grant := func(worker string, attempts int, start bool) perdure.RunID {
		t.Helper()
		run, err := c.Start(t.Context(), perdure.Submission{Kind: "k", MaxAttempts: attempts})
		if err != nil {
			t.Fatal(err)
		}
		polled, err := c.Poll(t.Context(), worker, api.Poll{RunIDs: []perdure.RunID{run.RunID}, Slots: 1, Start: start})
		if err != nil || len(polled.Runs) != 1 {
			t.Fatalf("polled %+v: %v", polled, err)
		}
		return run.RunID
	}
	own, once, granted, other := grant("own", 3, true), grant("own", 1, true), grant("own", 3, false),
		grant("other", 3, true)
	if err := srv.Close(); err != nil {
		t.Fatal(err)
	}

	if srv, err = embedded.Open(opt); err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	c = client.New("http://perdure", srv.Key(), client.Options{Transport: srv.Transport()})
	see := func(id perdure.RunID) *api.Run {
		t.Helper()
		run, err := c.Get(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		return run
	}
	eventually.True(t, "the worker's runs are taken from it", func() bool {
		return see(own).State == perdure.Queued && see(once).State == perdure.Failed &&
			see(granted).State == perdure.Queued
	})
	if got := see(own); got.Attempt != 2 {
		t.Errorf("attempt of the run that was executed = %d, want 2", got.Attempt)
	}
	if got := see(granted); got.Attempt != 1 {
		t.Errorf("attempt of the run that was not begun = %d, want 1", got.Attempt)
	}
	if got := see(other); got.State != perdure.Running || got.Attempt != 1 {
		t.Errorf("run of the other worker is %s, attempt %d; want it running in its first", got.State, got.Attempt)
	}
	polled, err := c.Poll(t.Context(), "own", api.Poll{Kinds: []string{"k"}, Slots: 2, Start: true,
		Wait: perdure.Duration(time.Minute)})
	if err != nil || len(polled.Runs) == 0 {
		t.Errorf("polled %+v: %v; want one of the runs again", polled, err)
	}
}

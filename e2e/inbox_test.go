package e2e

import (
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/testkit/storetest"
)

// A run has very many pending signals that are due for the watchdog. It suspends and completes
// while signals still arrive and the watchdogs of two nodes look at the same items. Both calls
// succeed at once and soon, because the inbox is not rewritten with the run.
func TestRunWithFullInboxSuspendsAndEnds(t *testing.T) {
	t.Run("SQLite", func(t *testing.T) {
		n := newNode(t)
		fullInbox(t, n, n)
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		at := storetest.Postgres(t)
		fullInbox(t, newNode(t, "--store", at), newNode(t, "--store", at))
	})
}

func fullInbox(t *testing.T, a, b *node) {
	signals, rest, within := 300, time.Duration(0), 10*time.Second
	if os.Getenv("PERDURE_TEST_FULL") != "" {
		signals, rest, within = 10_000, 11*time.Second, 2*time.Second // W9 looks at items that are 10 s old
	}
	id := a.submit(obj{"kind": "full", "class": "agent"}).RunID
	var wg sync.WaitGroup
	send := func(n *node, from, to int) {
		for i := from; i < to; {
			// Two nodes write to one row. A signal that conflicts too often is sent again, as
			// clients do.
			if status, err := n.call("POST", "/api/v1/runs/"+id+"/signals/go", fmt.Sprint("s", i), obj{"data": i},
				nil); err != nil || status >= 300 && status != 409 && status != 503 {
				t.Errorf("signal %d: %d %v", i, status, err)
				return
			} else if status != 503 {
				i++
			}
		}
	}
	for k := range 8 {
		wg.Go(func() { send([]*node{a, b}[k%2], k*signals/8, (k+1)*signals/8) })
	}
	wg.Wait()
	time.Sleep(rest)
	for i, outcome := range []obj{
		{"waits": []obj{{"id": "w", "type": "signal", "name": "never", "timeout": "1s"}},
			"outcome": obj{"type": "suspend"}},
		{"outcome": obj{"type": "complete"}},
	} {
		run := a.take(t, "full", true)
		wg.Go(func() { send(b, signals+50*i, signals+50*i+50) }) // meanwhile
		outcome["commit_id"], outcome["run_id"], outcome["epoch"] = fmt.Sprint("c", i), run.RunID, run.Epoch
		var done struct {
			Results []struct {
				OK    bool `json:"ok"`
				Error any  `json:"error"`
			} `json:"results"`
		}
		began := time.Now()
		status, err := a.call("POST", "/api/v1/workers/w/commit", "", obj{"commits": []obj{outcome}}, &done)
		if took := time.Since(began); err != nil || status != 200 || len(done.Results) != 1 || !done.Results[0].OK ||
			took > within {
			t.Fatalf("outcome %d with %d signals pending: status %d after %s (at most %s), %+v %v", i, signals, status,
				took, within, done, err)
		}
	}
	wg.Wait()
	a.ends(t, id, "completed")
	a.sound()
}

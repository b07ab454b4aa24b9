package e2e

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/testkit/eventually"
)

// A witness follows runs while the nodes of a fleet change their release: by a stream each, and by a
// webhook for all of them.
type witness struct {
	t       *testing.T
	c       *client.Client
	streams sync.WaitGroup

	mu    sync.Mutex
	told  map[string]int // messages of ends, by run
	ended int            // streams that have come to the end
}

// follow makes a webhook of the fleet.
func (f *fleet) follow() *witness {
	f.t.Helper()
	var urls []string
	for _, n := range f.nodes {
		urls = append(urls, "http://"+n.addr)
	}
	x := &witness{t: f.t, told: make(map[string]int), c: client.New(strings.Join(urls, ","), f.key, client.Options{})}
	sink := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var message struct {
			Data struct {
				RunID string `json:"run_id"`
			}
		}
		b, err := io.ReadAll(r.Body)
		if err == nil && json.Unmarshal(b, &message) == nil {
			x.mu.Lock()
			x.told[message.Data.RunID]++
			x.mu.Unlock()
		}
	}))
	f.t.Cleanup(func() {
		sink.Close()
		x.c.Close()
	})
	if s, _ := f.insist("POST", "/api/v1/webhooks", "hook", obj{"url": sink.URL, "events": []string{"run:completed"}},
		nil); s != 201 {
		f.t.Fatalf("a webhook = %d, want 201", s)
	}
	return x
}

// stream follows a run to its end. No event may be missing, or come twice.
func (x *witness) stream(run string) {
	x.streams.Go(func() {
		ctx, cancel := context.WithTimeout(x.t.Context(), eventually.Left(x.t))
		defer cancel()
		var last perdure.LineType
		next := int64(1)
		for e, err := range x.c.Stream(ctx, perdure.RunID(run), 0) {
			if err != nil {
				x.t.Errorf("the stream of run %s after event %d: %v", run, next-1, err)
				return
			}
			if e.Seq != next {
				x.t.Errorf("the stream of run %s has event %d, want %d", run, e.Seq, next)
			}
			next, last = e.Seq+1, e.Type
		}
		if last != perdure.LineCompleted {
			x.t.Errorf("the stream of run %s ends with %q, want %q", run, last, perdure.LineCompleted)
		}
		x.mu.Lock()
		x.ended++
		x.mu.Unlock()
	})
}

// finish waits until all streams have ended and every end was told of.
func (x *witness) finish(ended map[string]bool) {
	x.t.Helper()
	x.streams.Wait()
	eventually.True(x.t, "the webhook is told of every run that has ended", func() bool {
		x.mu.Lock()
		defer x.mu.Unlock()
		for run := range ended {
			if x.told[run] == 0 {
				return false
			}
		}
		return true
	})
	x.t.Logf("%d runs were followed by streams, and %d ends were told of by a webhook",
		x.ended, len(x.told))
}

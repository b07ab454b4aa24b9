package client_test

import (
	"errors"
	"io"
	"net/http"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/servertest"
)

// A swallower is a proxy that accepts streams and sends nothing of them, and passes on other requests.
type swallower struct {
	off    atomic.Bool  // passes on everything
	opened atomic.Int64 // streams that it got
	live   atomic.Int64 // streams that are open now
	polls  atomic.Int64
	passed atomic.Int64 // streams that it passed on
}

func (x *swallower) wrap(next http.RoundTripper) http.RoundTripper {
	return servertest.Tripper(func(r *http.Request) (*http.Response, error) {
		if strings.HasSuffix(r.URL.Path, "/events") {
			x.polls.Add(1)
		}
		res, err := next.RoundTrip(r)
		if err != nil || !strings.HasSuffix(r.URL.Path, "/stream") {
			return res, err
		}
		if x.off.Load() {
			x.passed.Add(1)
			return res, err
		}
		x.opened.Add(1)
		x.live.Add(1)
		res.Body = &swallowed{res.Body, r.Context().Done(), x}
		return res, nil
	})
}

// swallowed is a body of which nothing arrives.
type swallowed struct {
	io.ReadCloser
	left <-chan struct{}
	by   *swallower
}

func (s *swallowed) Read([]byte) (int, error) {
	<-s.left
	return 0, errors.New("the caller has left")
}

func (s *swallowed) Close() error {
	s.by.live.Add(-1)
	return s.ReadCloser.Close()
}

const briefly = 40 * time.Millisecond

// Nothing of a stream arrives. The events are polled, the caller is told that the run is working, and the
// stream stays attached, so that the server counts it as a waiter.
func TestSilentStreamIsPolled(t *testing.T) {
	both(t, func(t *testing.T, w *servertest.Server) {
		ctx, c := within(t), w.Client()
		x := new(swallower)
		run := ok[*api.Run](t)(c.Start(ctx, perdure.Submission{Kind: "job"}))
		worked := make(chan struct{})
		told, attached := 0, false
		still := func(r *api.Run) {
			if r.RunID != run.RunID || !r.State.Live() {
				t.Errorf("the caller was told of run %s in state %s, want %s, live", r.RunID, r.State, run.RunID)
			}
			attached = attached || x.live.Load() == 1
			if told++; told == 4 {
				go func() { defer close(worked); emit(t, c, 30) }()
			}
		}
		got := gather(t, w.Client(x.wrap).Stream(ctx, run.RunID, 0,
			client.StreamOptions{Silence: briefly, StillWorking: still}))
		<-worked
		if want := gather(t, c.Events(ctx, run.RunID, 0)); len(want) != 34 || !reflect.DeepEqual(got, want) {
			t.Errorf("the stream yielded %d events, want the %d of the log: 34", len(got), len(want))
		}
		if told < 4 || x.opened.Load() < 3 || !attached {
			t.Errorf("the caller was told %d times, and %d streams were tried, one during polls: %t; "+
				"want 4, 3 and true", told, x.opened.Load(), attached)
		}
		if x.live.Load() != 0 {
			t.Errorf("%d streams are open after the end, want none", x.live.Load())
		}
	})
}

// When streams work again, polling ends. Every event comes once.
func TestStreamReplacesPollingAgain(t *testing.T) {
	w := open(t, true, nil)
	ctx, c := within(t), w.Client()
	x := new(swallower)
	run := ok[*api.Run](t)(c.Start(ctx, perdure.Submission{Kind: "job"}))
	worked := make(chan struct{})
	var polls int64
	work := func() {
		defer close(worked)
		eventually.True(t, "a stream is tried, and then read", func() bool { return x.passed.Load() >= 2 })
		polls = x.polls.Load()
		emit(t, c, 100)
	}
	got := gather(t, w.Client(x.wrap).Stream(ctx, run.RunID, 0, client.StreamOptions{Silence: briefly,
		StillWorking: func(*api.Run) {
			if !x.off.Swap(true) {
				go work()
			}
		}}))
	<-worked
	if want := gather(t, c.Events(ctx, run.RunID, 0)); len(want) != 104 || !reflect.DeepEqual(got, want) {
		t.Errorf("the stream yielded %d events, want the %d of the log: 104", len(got), len(want))
	}
	if n := x.polls.Load(); n != polls {
		t.Errorf("there were %d polls after streams worked again, want none", n-polls)
	}
}

// A caller who stops, or whose context ends, ends the polling.
func TestPollingEndsWithItsCaller(t *testing.T) {
	w := open(t, false, nil)
	x := new(swallower)
	run := ok[*api.Run](t)(w.Client().Start(t.Context(), perdure.Submission{Kind: "job"}))
	for e, err := range w.Client(x.wrap).Stream(within(t), run.RunID, 0, client.StreamOptions{Silence: briefly}) {
		if err != nil || e.Type != perdure.LineCreated {
			t.Fatalf("the first event = %+v, %v; want that of the creation", e, err)
		}
		break
	}
	if x.live.Load() != 0 {
		t.Errorf("%d streams are open after the caller has stopped, want none", x.live.Load())
	}
}

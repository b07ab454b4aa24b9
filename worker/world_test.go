package worker_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/storetest"
	"github.com/perdure/perdure/worker"
)

// A world is a server and a transport to it.
type world struct {
	t    *testing.T
	ctx  context.Context
	srv  *embedded.Server
	live atomic.Pointer[embedded.Server] // the server that gets the calls; see serve
	dir  string                          // data folder of a server that can be opened again
	url  string
	wire http.RoundTripper
	c    *client.Client // the caller's client, which loses nothing

	patience time.Duration // longest wait for a run
}

// steady returns a policy that retries at once, and under which a busy machine loses no lease and
// grants no run twice.
func steady() *perdure.Policy {
	p := perdure.DefaultPolicy()
	p.DispatchedRetry, p.DispatchedTimeout = p.Lease, 5*p.Lease
	p.BackoffBase = 10 * time.Millisecond
	p.WatchdogInterval = 50 * time.Millisecond
	return &p
}

func open(t *testing.T, socket bool, policy *perdure.Policy) *world {
	t.Helper()
	if policy == nil {
		policy = steady()
	}
	srv, err := embedded.Open(embedded.Options{Store: storetest.Address(t), Policy: policy})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { srv.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), eventually.Left(t))
	t.Cleanup(cancel)
	w := &world{t: t, ctx: ctx, srv: srv, url: "http://perdure", wire: srv.Transport(), patience: eventually.Left(t)}
	if socket {
		l := httptest.NewServer(srv.Handler())
		t.Cleanup(l.Close)
		t.Cleanup(srv.Drain)
		wire := &http.Transport{MaxIdleConnsPerHost: 64}
		t.Cleanup(wire.CloseIdleConnections)
		w.url, w.wire = l.URL, wire
	}
	w.c = w.client(w.wire)
	return w
}

// virtual runs a test in a synctest bubble. Its clock advances only while all goroutines wait.
func virtual(t *testing.T, f func(*world)) {
	t.Helper()
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, ctx: context.Background(), url: "http://perdure", dir: dir, patience: 2 * time.Hour}
		x := tripper(func(r *http.Request) (*http.Response, error) { return w.live.Load().Transport().RoundTrip(r) })
		w.wire, w.srv = x, w.serve()
		w.c = w.client(x)
		t.Cleanup(func() { w.srv.Close() })
		f(w)
	})
}

// serve opens a server on the world's folder, with the bubble's clock.
func (w *world) serve() *embedded.Server {
	w.t.Helper()
	srv, err := embedded.Open(embedded.Options{Dir: w.dir, Clock: time.Now})
	if err != nil {
		w.t.Fatal(err)
	}
	w.live.Store(srv)
	return srv
}

// both runs a test twice: with a server in the process, and over a socket.
func both(t *testing.T, f func(*world)) {
	t.Run("in process", func(t *testing.T) { t.Parallel(); f(open(t, false, nil)) })
	t.Run("over a socket", func(t *testing.T) { t.Parallel(); f(open(t, true, nil)) })
}

func (w *world) client(wire http.RoundTripper) *client.Client {
	return client.New(w.url, w.srv.Key(), client.Options{Transport: wire})
}

// work runs a worker until the test ends or stop is called, which waits for it.
func (w *world) work(wk *worker.Worker) (stop func()) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- wk.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		select {
		case err := <-done:
			if err != nil {
				w.t.Errorf("Run of the worker = %v, want nil", err)
			}
		case <-time.After(w.patience):
			w.t.Errorf("the worker has not ended after %s", w.patience)
		}
	}
	w.t.Cleanup(stop)
	return stop
}

func (w *world) start(sub perdure.Submission) perdure.RunID {
	w.t.Helper()
	run, err := w.c.Start(w.ctx, sub)
	if err != nil {
		w.t.Fatal(err)
	}
	return run.RunID
}

// end waits for a run's end.
func (w *world) end(id perdure.RunID) *api.Run {
	w.t.Helper()
	run, deferred, err := w.c.Join(w.ctx, id, w.patience)
	if err != nil || deferred {
		w.t.Fatalf("run %s: deferred %v, %v, want its end within %s", id, deferred, err, w.patience)
	}
	return run
}

// lines counts a run's log lines by type.
func (w *world) lines(id perdure.RunID) map[perdure.LineType]int {
	w.t.Helper()
	out := make(map[perdure.LineType]int)
	for e, err := range w.c.Events(w.ctx, id, 0) {
		if err != nil {
			w.t.Fatal(err)
		}
		out[e.Type]++
	}
	return out
}

type tripper func(*http.Request) (*http.Response, error)

func (f tripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A wire can be cut, and can lose the answers of commits.
type wire struct {
	next    http.RoundTripper
	cut     atomic.Bool
	lose    atomic.Int64  // number of commit answers to lose
	commits atomic.Int64  // commit calls so far
	failed  chan struct{} // gets a signal for each failed call, if there is room
}

func (x *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	if x.cut.Load() {
		select {
		case x.failed <- struct{}{}:
		default:
		}
		return nil, errors.New("the connection was refused")
	}
	commit := strings.HasSuffix(r.URL.Path, "/commit")
	if commit {
		x.commits.Add(1)
	}
	res, err := x.next.RoundTrip(r)
	if err == nil && commit && x.lose.Add(-1) >= 0 {
		io.Copy(io.Discard, res.Body)
		res.Body.Close()
		return nil, errors.New("the connection was reset")
	}
	return res, err
}

// settled waits until no more goroutines run than before.
func settled(t *testing.T, before int) {
	t.Helper()
	for deadline := time.Now().Add(eventually.Within); runtime.NumGoroutine() > before; {
		if time.Now().After(deadline) {
			buf := make([]byte, 1<<20)
			t.Fatalf("%d goroutines, want at most %d:\n%s", runtime.NumGoroutine(), before,
				buf[:runtime.Stack(buf, true)])
		}
		time.Sleep(5 * time.Millisecond)
	}
}

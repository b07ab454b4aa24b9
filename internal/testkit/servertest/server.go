// Package servertest is a server for the tests of clients, workers and examples: with a caller's client, in the
// process or behind a socket, on the clock of the machine or of a synctest bubble. A Wire loses its calls.
//
// It is not for tests of the server's own rooms, which open an engine on a store (see storetest).
package servertest

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/worker"
)

// A Server is a server that ends with its test, and a caller of it.
type Server struct {
	*embedded.Server
	T *testing.T
	// Ctx ends shortly before the deadline of the test binary. Patience is the longest wait for a run.
	Ctx      context.Context
	Patience time.Duration
	// URL is the server's address, and Wire carries calls there.
	URL  string
	Wire http.RoundTripper
	// C is the caller's client, which loses nothing.
	C *client.Client

	// Options are those of the next Reopen.
	Options embedded.Options

	live atomic.Pointer[embedded.Server]
}

// Open opens a server in the process. With a clock of its own, as in a synctest bubble, its calls have no
// deadline: they wait in the bubble's time.
func Open(t *testing.T, opt embedded.Options) *Server {
	t.Helper()
	s := &Server{T: t, URL: "http://perdure", Options: opt, Ctx: context.Background(), Patience: 2 * time.Hour}
	if opt.Clock == nil {
		s.Patience = eventually.Left(t)
		ctx, cancel := context.WithTimeout(t.Context(), s.Patience)
		t.Cleanup(cancel)
		s.Ctx = ctx
	}
	s.Reopen()
	t.Cleanup(func() { s.Close() })
	s.Wire = Tripper(func(r *http.Request) (*http.Response, error) { return s.Live().Transport().RoundTrip(r) })
	s.C = s.Client()
	return s
}

// Listen opens a server behind a listener.
func Listen(t *testing.T, opt embedded.Options) *Server {
	t.Helper()
	s := Open(t, opt)
	s.Serve(s)
	return s
}

// Serve puts a listener with a handler before the server. The handler passes calls on by ServeHTTP.
func (s *Server) Serve(h http.Handler) {
	l := httptest.NewServer(h)
	s.T.Cleanup(func() {
		l.CloseClientConnections()
		l.Close()
	})
	s.T.Cleanup(func() { s.Drain() }) // answers blocked calls, for which the listener would wait
	wire := &http.Transport{MaxIdleConnsPerHost: 64}
	s.T.Cleanup(wire.CloseIdleConnections)
	s.URL, s.Wire = l.URL, wire
	s.C = s.Client()
}

// ServeHTTP passes a call on to the server. While the server is down, it cuts the connection.
func (s *Server) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	srv := s.Live()
	if srv == nil {
		panic(http.ErrAbortHandler)
	}
	srv.Handler().ServeHTTP(rw, r)
}

// Live returns the server that gets the calls, or nil while it is down.
func (s *Server) Live() *embedded.Server { return s.live.Load() }

// Down ends the server. Its listener stays.
func (s *Server) Down() {
	s.live.Store(nil)
	s.Drain()
	s.Close()
}

// Reopen opens the server again on its folder, after it was closed or ended.
func (s *Server) Reopen() {
	s.T.Helper()
	srv, err := embedded.Open(s.Options)
	if err != nil {
		s.T.Fatal(err)
	}
	s.Server = srv
	s.live.Store(srv)
}

// Client returns a client, whose calls pass through wires.
func (s *Server) Client(wires ...func(http.RoundTripper) http.RoundTripper) *client.Client {
	wire := s.Wire
	for _, wrap := range wires {
		wire = wrap(wire)
	}
	return s.Via(wire)
}

// Via returns a client with a transport.
func (s *Server) Via(wire http.RoundTripper) *client.Client {
	return client.New(s.URL, s.Key(), client.Options{Transport: wire})
}

// Work runs a worker until the test ends or stop is called, which waits for it.
func (s *Server) Work(wk *worker.Worker) (stop func()) {
	s.T.Helper()
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
				s.T.Errorf("Run of the worker = %v, want nil", err)
			}
		case <-time.After(s.Patience):
			s.T.Errorf("the worker has not ended after %s", s.Patience)
		}
	}
	s.T.Cleanup(stop)
	return stop
}

// Start submits a run.
func (s *Server) Start(sub perdure.Submission) perdure.RunID {
	s.T.Helper()
	run, err := s.C.Start(s.Ctx, sub)
	if err != nil {
		s.T.Fatal(err)
	}
	return run.RunID
}

// End waits for a run's end.
func (s *Server) End(id perdure.RunID) *api.Run {
	s.T.Helper()
	run, deferred, err := s.C.Join(s.Ctx, id, s.Patience)
	if err != nil || deferred {
		s.T.Fatalf("run %s: deferred %v, error %v, want its end within %s", id, deferred, err, s.Patience)
	}
	return run
}

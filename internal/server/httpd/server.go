package httpd

import (
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure/internal/server/doorbell"
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/httpd/feed"
	"github.com/perdure/perdure/internal/server/httpd/stream"
	"github.com/perdure/perdure/internal/server/httpd/waiting"
)

// A Server answers the calls of the API.
type Server struct {
	engine  *engine.Engine
	bell    doorbell.Bell
	opt     Options
	log     *slog.Logger
	mux     *http.ServeMux
	names   *http.ServeMux // paths with a name that a caller chose
	routes  []route
	openapi []byte

	// closing is closed when the server shuts down. Blocked calls are answered then.
	closing chan struct{}
	// ready is where ringQueues continues.
	ready dispatch.ReadyRound

	mu     sync.Mutex // guards closed
	closed bool

	// waits has the calls that wait, and waiters counts those for runs in the foreground.
	waits   *waiting.Waits
	waiters *waiting.Waiters
	// reader reads logs for the streams.
	reader *stream.Reader
	// streams counts the streams and sockets that run outside of a request.
	streams sync.WaitGroup
	// checkEvery is the interval at which a blocked write checks whether its stream has to end.
	checkEvery time.Duration
	// pageTime bounds the search for the runs of a page.
	pageTime   time.Duration
	shares     *shares
	keyWatcher keyWatcher
	// feed looks at the store for the sockets.
	feed *feed.Hub

	counts     countCache
	checks     lastCheck
	goodURLs   urlCache
	runTenants runTenants

	storeProbe probe
	// backupMu is held while a backup is made and sent. It is taken before all others.
	backupMu sync.Mutex

	// pollReads counts how often polls have read their queues or news. Tests use it.
	pollReads atomic.Int64
}

// Shutdown answers all blocked calls: waits and joins with 202, polls with an empty list. Streams
// are aborted.
func (s *Server) Shutdown() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.closed = true
		close(s.closing)
	}
}

// goStream runs a stream in its own goroutine, outside of its request. It returns false, and runs
// nothing, if the server shuts down.
func (s *Server) goStream(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.streams.Go(func() {
			defer func() {
				if p := recover(); p != nil {
					s.log.Error("a stream panicked", "panic", p, "stack", string(debug.Stack()))
				}
			}()
			f()
		})
	}
	return !s.closed
}

// awaitStreams waits up to a second for the streams to end, so that they can remove their waiters.
// The waiter of a stream that is blocked in a write expires by itself.
func (s *Server) awaitStreams() {
	s.Shutdown()
	done := make(chan struct{})
	go func() {
		s.streams.Wait()
		close(done)
	}()
	t := time.NewTimer(time.Second)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
	}
}

// Attached returns the number of blocked calls of this node by transport, and the limit of streams,
// sockets and waits.
func (s *Server) Attached() (by map[string]int64, limit int64) { return s.shares.limiter.Attached() }

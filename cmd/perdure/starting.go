package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/embedded"
)

const (
	// startingAfter is how long a start may take before the listener answers that it goes on.
	startingAfter = time.Second
	// waitingEvery is the interval of log lines about a store that can't be reached yet, and warnEvery
	// that of those which are warnings.
	waitingEvery, warnEvery = 10 * time.Second, time.Minute
)

// A frontDoor is the HTTP server of a node. It begins to answer when the node is open, or when that
// takes longer than startingAfter: then /healthz is 200, and every other call 503 with the reason.
type frontDoor struct {
	hs    *http.Server
	url   string
	start func() error
	log   *slog.Logger
	limit time.Duration // of waiting for the store

	handler atomic.Pointer[http.Handler] // nil until the node is open
	reason  atomic.Pointer[string]
	once    sync.Once
	served  chan error

	mu     sync.Mutex
	began  time.Time // of waiting for the store
	told   time.Time // when a line was logged
	warned time.Time // when a warning was
}

// newFrontDoor prepares the HTTP server of a node with these options.
func newFrontDoor(l net.Listener, opt embedded.Options) (*frontDoor, error) {
	d := &frontDoor{log: opt.Logger, limit: opt.StartWait, served: make(chan error, 1)}
	d.setReason("the store is being opened")
	d.hs = server(d, d.log)
	var err error
	if d.hs.TLSConfig, err = opt.TLSConfig(); err != nil {
		return nil, err
	}
	bounded, err := embedded.Bound(d.hs, l, d.hs.TLSConfig == nil, d.log)
	if err != nil {
		return nil, err
	}
	d.url, d.start = "http://"+l.Addr().String(), func() error { return d.hs.Serve(bounded) }
	if d.hs.TLSConfig != nil {
		d.url, d.start = "https://"+l.Addr().String(), func() error { return d.hs.ServeTLS(bounded, "", "") }
	}
	return d, nil
}

func (d *frontDoor) setReason(text string) { d.reason.Store(&text) }

// serve begins to answer, if it has not begun yet.
func (d *frontDoor) serve() {
	d.once.Do(func() { go func() { d.served <- d.start() }() })
}

// waiting records why the store can't be opened yet. It tells whether to go on waiting.
func (d *frontDoor) waiting(ctx context.Context, at string, why error) bool {
	d.setReason("waiting for PostgreSQL at " + at)
	d.serve()
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	if d.began.IsZero() {
		d.began = now
	}
	if now.Sub(d.told) >= waitingEvery {
		d.told = now
		say := d.log.Info
		if now.Sub(d.warned) >= warnEvery {
			d.warned, say = now, d.log.Warn
		}
		say("waiting for PostgreSQL", "at", at, "waited", now.Sub(d.began).Round(time.Second),
			"start_wait", d.limit, "error", why)
	}
	return ctx.Err() == nil
}

// open hands all further calls to the node.
func (d *frontDoor) open(h http.Handler) {
	d.handler.Store(&h)
	d.serve()
}

func (d *frontDoor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h := d.handler.Load(); h != nil {
		(*h).ServeHTTP(w, r)
		return
	}
	status, kind, reason := http.StatusServiceUnavailable, "application/json", *d.reason.Load()
	var body any
	switch r.URL.Path {
	case "/healthz":
		status, body = http.StatusOK, api.Health{Status: "ok"}
	case "/readyz":
		body = api.Health{Status: "not ready", Detail: reason}
	default: // the address of the store is nothing for callers
		kind, body = "application/problem+json", api.NewProblem(perdure.CodeUnavailable, "the server is starting", "")
	}
	text, err := json.Marshal(body)
	if err != nil {
		panic(err) // structures of texts
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Retry-After", "1")
	w.WriteHeader(status)
	w.Write(append(text, '\n'))
}

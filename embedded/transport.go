package embedded

import (
	"context"
	"io"
	"log"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync"
)

// Transport carries requests to the server without a socket. It is what a client's HTTP client uses.
func (s *Server) Transport() http.RoundTripper {
	return transport{s.Handler(), &s.callers, s.log}
}

type transport struct {
	handler http.Handler
	callers *callers
	log     *slog.Logger // nil: as net/http without one
}

// RoundTrip calls the handler. It gives the answer when that is whole, or flushed, or long: most answers are there
// at once, and a stream begins when it says so.
func (t transport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(req.Context())
	in := req.Clone(ctx)
	in.RequestURI = req.URL.RequestURI()
	in.RemoteAddr = "in-process"
	if in.Host == "" {
		in.Host = req.URL.Host
	}
	if in.Body == nil {
		in.Body = http.NoBody
	}
	w := &response{asked: in.Body, header: make(http.Header), ready: make(chan struct{})}
	w.moved.L = &w.mu
	// Not of the handler's own context: who closes the answer needs no goroutine to say so.
	stop := context.AfterFunc(req.Context(), func() { w.abandon(req.Context().Err()) })
	t.callers.do(func() {
		defer func() {
			status, why := http.StatusOK, io.EOF
			if p := recover(); p != nil {
				t.report(in, p)
				status, why = http.StatusInternalServerError, io.ErrUnexpectedEOF // as a connection that was cut
			} else if err := req.Context().Err(); err != nil {
				why = err // it may have stopped in the middle
			}
			in.Body.Close()
			w.WriteHeader(status)
			w.end(why)
		}()
		t.handler.ServeHTTP(w, in)
	})
	body := &body{w, stop, cancel}
	select {
	case <-w.ready:
	case <-ctx.Done():
		body.Close()
		return nil, ctx.Err()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return &http.Response{
		StatusCode: w.status, Status: http.StatusText(w.status), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: w.sent, Body: body, ContentLength: -1, Request: req,
	}, nil
}

// report logs a handler's panic, as net/http does: unless it is the one that means to cut the answer.
func (t transport) report(req *http.Request, p any) {
	switch stack := debug.Stack(); {
	case p == http.ErrAbortHandler:
	case t.log != nil:
		t.log.Error("a handler panicked", "method", req.Method, "path", req.URL.Path, "panic", p, "stack", string(stack))
	default:
		log.Printf("http: panic serving %s: %v\n%s", req.RemoteAddr, p, stack)
	}
}

// callers are goroutines that have served a call and stay for the next one: their stacks have grown to what it takes.
type callers struct {
	mu     sync.Mutex
	idle   []chan func()
	closed bool
}

// maxIdle is how many stay.
const maxIdle = 64

func (c *callers) do(f func()) {
	c.mu.Lock()
	if n := len(c.idle); n > 0 {
		next := c.idle[n-1]
		c.idle = c.idle[:n-1]
		c.mu.Unlock()
		next <- f
		return
	}
	c.mu.Unlock()
	go func() {
		next := make(chan func(), 1)
		for f != nil {
			f()
			if !c.stay(next) {
				return
			}
			f = <-next
		}
	}()
}

// stay has a goroutine wait for a call, unless there are enough that do.
func (c *callers) stay(next chan func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || len(c.idle) >= maxIdle {
		return false
	}
	c.idle = append(c.idle, next)
	return true
}

// close lets them go.
func (c *callers) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, next := range c.idle {
		close(next)
	}
	c.idle = nil
}

// maxUnread is how far a handler may be ahead of who reads its answer.
const maxUnread = 64 << 10

// response is the handler's side of an answer.
type response struct {
	asked  io.Closer // the request's body
	header http.Header

	mu     sync.Mutex
	moved  sync.Cond // something was written, read or ended
	sent   http.Header
	status int
	unread []byte
	err    error // why there is nothing more to read
	gone   error // why nobody reads any more
	ready  chan struct{}
	begun  bool // ready is closed
}

func (w *response) Header() http.Header { return w.header }

func (w *response) WriteHeader(status int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writeHeader(status)
}

func (w *response) writeHeader(status int) {
	if w.status == 0 {
		w.status, w.sent = status, w.header.Clone()
	}
}

func (w *response) Write(b []byte) (n int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writeHeader(http.StatusOK)
	for len(b) > 0 {
		for len(w.unread) >= maxUnread && w.gone == nil {
			w.begin()
			w.moved.Wait()
		}
		if w.gone != nil {
			return n, w.gone
		}
		part := b[:min(len(b), maxUnread-len(w.unread))]
		w.unread = append(w.unread, part...)
		n, b = n+len(part), b[len(part):]
		w.moved.Broadcast()
	}
	return n, nil
}

// Flush lets go of what is written so far.
func (w *response) Flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writeHeader(http.StatusOK)
	w.begin()
}

// begin gives the answer to who asked, with the rest to follow. The caller holds w.mu.
func (w *response) begin() {
	if !w.begun {
		w.begun = true
		close(w.ready)
	}
}

func (w *response) end(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
	w.begin()
	w.moved.Broadcast()
}

// abandon says that nobody reads the answer any more, and has nobody wait for the rest of the request.
func (w *response) abandon(why error) {
	w.mu.Lock()
	if w.gone == nil {
		w.gone = why
	}
	ended := w.err != nil
	w.moved.Broadcast()
	w.mu.Unlock()
	if !ended {
		w.asked.Close()
	}
}

// body is the reader's side.
type body struct {
	w      *response
	stop   func() bool // listening to the caller's context
	cancel context.CancelFunc
}

func (b *body) Read(p []byte) (int, error) {
	w := b.w
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.unread) == 0 && w.err == nil && w.gone == nil {
		w.moved.Wait()
	}
	switch {
	case w.gone != nil:
		return 0, w.gone
	case len(w.unread) == 0:
		return 0, w.err
	}
	n := copy(p, w.unread)
	if w.unread = w.unread[n:]; len(w.unread) == 0 {
		w.unread = nil
	}
	w.moved.Broadcast()
	return n, nil
}

// Close ends the handler: its answer is no longer read.
func (b *body) Close() error {
	b.stop()
	b.cancel()
	b.w.abandon(io.ErrClosedPipe)
	return nil
}

package embedded

import (
	"cmp"
	"context"
	"io"
	"log"
	"log/slog"
	"net/http"
	"path"
	"runtime/debug"
	"sync"
	"time"

	"github.com/perdure/perdure/internal/doors"
)

// The transport connects a client to the API within the process. RoundTrip runs the handler in a
// goroutine, and connects both by a buffer of maxUnread bytes. The handler blocks while the buffer
// is full, and the reader while it is empty.
//
// RoundTrip returns when the answer is complete, is flushed or has filled the buffer. A stream thus
// begins with its first flush, and most answers are complete at once. Closing the body, or the end
// of the caller's context, ends the handler: its context is cancelled, and its writes fail.

// Transport returns a transport that carries requests to the server without a socket, for
// client.Options.
func (s *Server) Transport() http.RoundTripper {
	return transport{s.Handler(), &s.callers, s.log, s.over}
}

type transport struct {
	handler http.Handler
	callers *callers
	log     *slog.Logger // nil means the standard logger, as in net/http
	// over tells whether the server will not serve a call any more.
	over func(*http.Request) bool
}

// over tells whether the server will not serve a call any more. A client joins a run again when the
// server shuts down, because another node may answer. In process there is none.
func (s *Server) over(r *http.Request) bool {
	return s.closed.Load() || s.draining.Load() && r.Method == http.MethodGet && path.Base(r.URL.Path) == "join"
}

// RoundTrip calls the handler and returns its answer.
func (t transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if t.over(req) {
		return nil, http.ErrServerClosed
	}
	ctx, cancel := context.WithCancel(req.Context())
	in := req.Clone(ctx)
	in.RequestURI = req.URL.RequestURI()
	in.RemoteAddr = cmp.Or(doors.RemoteAddr(ctx), "in-process")
	if in.Host == "" {
		in.Host = req.URL.Host
	}
	if in.Body == nil {
		in.Body = http.NoBody
	}
	w := &response{reqBody: in.Body, header: make(http.Header), ready: make(chan struct{})}
	w.changed.L = &w.mu
	// This watches the caller's context and not the handler's: body.Close abandons the answer
	// itself, and needs no goroutine for that.
	stop := context.AfterFunc(req.Context(), func() { w.abandon(req.Context().Err()) })
	t.callers.do(func() {
		defer func() {
			status, why := http.StatusOK, io.EOF
			if p := recover(); p != nil {
				t.report(in, p)
				status, why = http.StatusInternalServerError, io.ErrUnexpectedEOF // as if the connection was cut
			} else if err := req.Context().Err(); err != nil {
				why = err // the handler may have stopped in the middle
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

// report logs a handler's panic, as net/http does. http.ErrAbortHandler is not logged: it cuts the
// answer on purpose.
func (t transport) report(req *http.Request, p any) {
	switch stack := debug.Stack(); {
	case p == http.ErrAbortHandler:
	case t.log != nil:
		t.log.Error("a handler panicked", "method", req.Method, "path", req.URL.Path, "panic", p, "stack",
			string(stack))
	default:
		log.Printf("http: panic serving %s: %v\n%s", req.RemoteAddr, p, stack)
	}
}

// callers is a pool of goroutines that run handlers. A goroutine that has served a call is kept for
// the next one, because its stack has grown to the size that a call needs.
type callers struct {
	mu     sync.Mutex
	idle   []chan func()
	closed bool
}

// maxIdle bounds the idle goroutines of the pool.
const maxIdle = 64

// do runs f in an idle goroutine, or in a new one.
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

// stay adds a goroutine to the pool. It returns false if the pool is full or closed.
func (c *callers) stay(next chan func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || len(c.idle) >= maxIdle {
		return false
	}
	c.idle = append(c.idle, next)
	return true
}

// close ends the idle goroutines.
func (c *callers) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, next := range c.idle {
		close(next)
	}
	c.idle = nil
}

// maxUnread bounds the bytes that a handler has written and the client has not read.
const maxUnread = 64 << 10

// response is the handler's side of an answer.
type response struct {
	reqBody io.Closer
	header  http.Header

	mu sync.Mutex
	// changed is signalled when something was written or read, and at the end.
	changed sync.Cond
	// sent is a copy of the header at the time of WriteHeader.
	sent   http.Header
	status int
	unread []byte
	// err is the reader's error after the unread bytes: io.EOF after a complete answer.
	err error
	// gone is the handler's error after the reader has gone.
	gone error
	// ready is closed when RoundTrip may return, and begun is set then.
	ready chan struct{}
	begun bool
}

func (w *response) Header() http.Header { return w.header }

// SetWriteDeadline does nothing: there is no connection that could be slow.
func (w *response) SetWriteDeadline(time.Time) error { return nil }

// SetReadDeadline is not supported: a body comes from a reader of the caller.
func (w *response) SetReadDeadline(time.Time) error { return http.ErrNotSupported }

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
			w.changed.Wait()
		}
		if w.gone != nil {
			return n, w.gone
		}
		part := b[:min(len(b), maxUnread-len(w.unread))]
		w.unread = append(w.unread, part...)
		n, b = n+len(part), b[len(part):]
		w.changed.Broadcast()
	}
	return n, nil
}

// Flush makes RoundTrip return, with the rest of the answer to follow.
func (w *response) Flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writeHeader(http.StatusOK)
	w.begin()
}

// begin makes RoundTrip return. The caller holds w.mu.
func (w *response) begin() {
	if !w.begun {
		w.begun = true
		close(w.ready)
	}
}

// end ends the answer.
func (w *response) end(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
	w.begin()
	w.changed.Broadcast()
}

// abandon fails the handler's writes. If the handler is still running, it also closes the request's
// body, so that the handler does not wait for the rest of it.
func (w *response) abandon(why error) {
	w.mu.Lock()
	if w.gone == nil {
		w.gone = why
	}
	ended := w.err != nil
	w.changed.Broadcast()
	w.mu.Unlock()
	if !ended {
		w.reqBody.Close()
	}
}

// body is the reader's side of an answer.
type body struct {
	w *response
	// stop ends the watching of the caller's context.
	stop   func() bool
	cancel context.CancelFunc
}

func (b *body) Read(p []byte) (int, error) {
	w := b.w
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.unread) == 0 && w.err == nil && w.gone == nil {
		w.changed.Wait()
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
	w.changed.Broadcast()
	return n, nil
}

// Close ends the handler, because its answer is no longer read.
func (b *body) Close() error {
	b.stop()
	b.cancel()
	b.w.abandon(io.ErrClosedPipe)
	return nil
}

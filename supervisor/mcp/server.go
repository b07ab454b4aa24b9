package mcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// A server is one of the client's servers, with its connection. It is connected when it is needed, by
// one caller at a time. A connection that breaks is not missed before the next call.
type server struct {
	Server
	log *slog.Logger
	// turn is held by the caller that connects or lists.
	turn chan struct{}

	mu      sync.Mutex // taken before the locks of conn and of its program's output
	conn    *connection
	pause   time.Duration // before the next connection
	notTill time.Time
	closed  bool
	// refresh is the listing in the background, or nil. failing is why the last one failed, and nil after
	// one that succeeded.
	refresh *refresh
	failing error

	// ctx ends when the client is closed.
	ctx  context.Context
	stop context.CancelFunc
}

// A connection is a session with a server. down is closed when it has ended.
type connection struct {
	*sdk.ClientSession
	process *process
	release func()
	since   time.Time
	down    chan struct{}
	once    sync.Once

	// tools is the list, and listed the time at which it was read. changes counts what the server has
	// told about it.
	mu      sync.Mutex
	tools   []*tool
	listed  time.Time
	changes int
}

func newServer(s Server, log *slog.Logger) *server {
	ctx, stop := context.WithCancel(context.Background())
	return &server{Server: s, log: log.With("mcp_server", s.Name), turn: make(chan struct{}, 1), ctx: ctx, stop: stop}
}

// errClosed means that the client was closed.
var errClosed = errors.New("the client is closed")

// take waits for the turn. The function that it returns gives it back.
func (s *server) take(ctx context.Context) (func(), error) {
	select {
	case s.turn <- struct{}{}:
		return func() { <-s.turn }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// connect returns the connection, or makes one. Its errors mean that nothing was called.
func (s *server) connect(ctx context.Context) (*connection, error) {
	if c, err := s.current(); c != nil || err != nil {
		return c, err
	}
	done, err := s.take(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	if c, err := s.current(); c != nil || err != nil {
		return c, err
	}
	if err := s.waitPause(ctx); err != nil {
		return nil, err
	}
	c, err := s.dial(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err != nil && ctx.Err() != nil && context.Cause(ctx) != context.DeadlineExceeded:
		return nil, context.Cause(ctx) // the caller has no more interest, which is not the server's fault
	case err != nil:
		s.failed(err)
		return nil, err
	case s.closed:
		c.close()
		return nil, errClosed
	}
	s.conn = c
	go s.watch(c)
	return c, nil
}

// current returns the connection if it is up.
func (s *server) current() (*connection, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosed
	}
	return s.conn, nil
}

// waitPause waits until the server may be connected again. It does not wait if the caller has not the
// time.
func (s *server) waitPause(ctx context.Context) error {
	s.mu.Lock()
	wait := time.Until(s.notTill)
	s.mu.Unlock()
	if wait <= 0 {
		return nil
	}
	if end, ok := ctx.Deadline(); ok && time.Until(end) < wait {
		// Its error may be about the call of another caller.
		return fmt.Errorf("the server has failed, and is tried again in %s", wait.Round(time.Second))
	}
	select {
	case <-time.After(wait):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// failed makes the next connection wait. The lock is held.
func (s *server) failed(err error) {
	s.pause = min(max(2*s.pause, firstPause), longestPause)
	s.notTill = time.Now().Add(s.pause)
	var f *failure
	if errors.As(err, &f) {
		s.log.Warn("mcp server failed", "error", f.cause, "stderr", f.stderr, "next_try_in", s.pause)
		return
	}
	s.log.Warn("mcp server failed", "error", err, "next_try_in", s.pause)
}

// dial connects once.
func (s *server) dial(ctx context.Context) (*connection, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	c := &connection{down: make(chan struct{}), release: func() {}}
	opt := &sdk.ClientOptions{Capabilities: &sdk.ClientCapabilities{}, Logger: slog.New(slog.DiscardHandler),
		MultiRoundTrip:              &sdk.MultiRoundTripOptions{Disabled: true},
		ProgressNotificationHandler: progressed}
	var transport sdk.Transport
	var err error
	switch {
	case s.Command != "":
		if c.process, err = startProcess(&s.Server); err != nil {
			return nil, fmt.Errorf("start %s: %w", s.Command, err)
		}
		transport = c.process.transport()
	case s.URL != "":
		transport, c.release = httpTransport(&s.Server)
	default:
		if transport, err = s.Connect(ctx); err != nil {
			return nil, err
		}
	}
	if s.URL == "" { // an address would need a connection that is open all the time
		opt.ToolListChangedHandler = func(context.Context, *sdk.ToolListChangedRequest) { c.changed() }
	}
	client := sdk.NewClient(&sdk.Implementation{Name: "perdure", Version: "1"}, opt)
	session, err := inTime(ctx, func() (*sdk.ClientSession, error) { return client.Connect(ctx, transport, nil) })
	if err != nil {
		c.close()
		return nil, fmt.Errorf("connect: %w", c.explain(err))
	}
	c.ClientSession, c.since = session, time.Now()
	return c, nil
}

// inTime calls a function that may not end when its context does: a program that does not read its input
// blocks a write. The function ends when the program is killed.
func inTime[T any](ctx context.Context, f func() (T, error)) (out T, err error) {
	done := make(chan struct{})
	var got T
	var failed error
	go func() {
		defer close(done)
		got, failed = f()
	}()
	select {
	case <-done:
		return got, failed
	case <-ctx.Done():
		return out, context.Cause(ctx)
	}
}

// A failure is an error of a program. Its text is for callers, and says nothing that the program has
// written: other callers use the same program, and what it writes is about them too. The operator's log
// has the cause, and the end of the program's standard error.
type failure struct {
	text, stderr string
	cause        error
}

func (f *failure) Error() string { return f.text }
func (f *failure) Unwrap() error { return f.cause }

// explain returns a failure for an error, after the program has ended.
func (c *connection) explain(err error) error {
	if c.process != nil {
		select { // its last words come with its end
		case <-c.process.gone:
		case <-time.After(2 * endTimeout):
		}
	}
	return c.explainNow(err)
}

// explainNow is explain without a wait.
func (c *connection) explainNow(err error) error {
	if c.process == nil {
		return err
	}
	f := &failure{text: "its program has ended", cause: err, stderr: c.process.stderr.String()}
	switch note := c.process.stderr.remark(); {
	case note != "":
		f.text = note
	case errors.Is(err, context.DeadlineExceeded):
		f.text = "its program did not answer in time"
	}
	return f
}

// watch waits for the end of a connection.
func (s *server) watch(c *connection) {
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	var gone chan struct{}
	if c.process != nil {
		gone = c.process.gone
	}
	var err error
	select {
	case err = <-ended:
	case <-gone:
	case <-c.down:
	}
	c.close()
	s.drop(c, cmp.Or(err, errors.New("the connection has ended")))
}

// drop forgets a connection that has ended.
func (s *server) drop(c *connection, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != c {
		return
	}
	s.conn = nil
	if time.Since(c.since) >= steadyAfter {
		s.pause = 0
	}
	if !s.closed {
		s.failed(c.explainNow(why))
	}
}

// close ends a connection, and its program.
func (c *connection) close() {
	c.once.Do(func() {
		close(c.down)
		if c.process != nil {
			c.process.close()
		}
		if c.ClientSession != nil {
			go func() { // an address may take its time to answer
				_ = c.Close()
				c.release()
			}()
		}
	})
}

// probe asks a server for a sign of life, and ends the connection if there is none. An error that the
// server answers with is one.
func (c *connection) probe(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeTimeout)
	defer cancel()
	_, err := inTime(ctx, func() (struct{}, error) { return struct{}{}, c.Ping(ctx, nil) })
	if err == nil || errors.As(err, new(*jsonrpc.Error)) {
		return true
	}
	c.close()
	return false
}

// shut ends the server for good, and waits for the end of its program.
func (s *server) shut() {
	s.mu.Lock()
	s.closed = true
	c, r := s.conn, s.refresh
	s.mu.Unlock()
	s.stop()
	if r != nil {
		<-r.done
	}
	if c == nil {
		return
	}
	c.close()
	if c.process != nil {
		<-c.process.gone
	}
}

// Package connlimit bounds the connections that a server has open, so that clients never take the descriptors
// that the store, files and webhooks need.
//
// A Limiter wraps the listener and is told by net/http what becomes of each connection. While the bound is
// reached, a new connection takes the place of the one that has been idle for longest, or of one whose call does
// not arrive. A call with a valid key marks its connection as busy (see Busy), and a busy connection is never closed. If all are busy, the
// new connection waits a moment, and then gets a short 503 and is closed.
//
// Blocking calls have seats, and there are fewer seats than connections (see Plan). So all connections are busy
// only while that many ordinary calls are under way at once.
package connlimit

import (
	"container/list"
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// refusal is the whole answer to a connection for which there is no place.
var refusal = func() []byte {
	const body = `{"type":"urn:perdure:problem:unavailable","title":"Nothing was changed; try again","status":503,` +
		`"detail":"this node has as many connections as it may; try again","code":"unavailable"}` + "\n"
	return fmt.Appendf(nil, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\nRetry-After: 1\r\n"+
		"Connection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}()

// maxRefusals bounds how many connections are being refused at once. Further ones are closed without a word.
const maxRefusals = 8

// A Limiter bounds open connections. It is safe for concurrent use.
type Limiter struct {
	max   int64
	plain bool
	grace time.Duration

	mu    sync.Mutex
	open  int64
	idle  *list.List // *conn that has had its answer, the one that has been idle for longest first
	young *list.List // *conn that has not sent a whole call, or whose call has no key; the oldest first

	freed    chan struct{} // signalled when a place may have come free
	refusing chan struct{}
	evicted  atomic.Int64
	refused  atomic.Int64
}

// New makes a limiter for so many connections. plain says that the listener's connections speak HTTP without
// TLS: only these are told why they are closed.
func New(maxOpen int64, plain bool) *Limiter {
	return &Limiter{max: max(1, maxOpen), plain: plain, grace: grace, idle: list.New(), young: list.New(), freed: make(chan struct{}, 1), refusing: make(chan struct{}, maxRefusals)}
}

// Attach has a server report to the limiter. The server has to serve a listener that Listen gave.
func (l *Limiter) Attach(s *http.Server) {
	s.ConnState = l.state
	s.ConnContext = func(ctx context.Context, nc net.Conn) context.Context {
		if c := unwrap(nc); c != nil {
			return context.WithValue(ctx, connKey{}, c)
		}
		return ctx
	}
}

// Open is how many connections are open.
func (l *Limiter) Open() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open
}

// Evicted and Refused count connections that were closed for others, and those that found no place.
func (l *Limiter) Evicted() int64 { return l.evicted.Load() }
func (l *Limiter) Refused() int64 { return l.refused.Load() }

// Listen wraps a listener.
func (l *Limiter) Listen(from net.Listener) net.Listener { return &listener{from, l} }

type listener struct {
	net.Listener
	l *Limiter
}

// Accept gives the next connection for which there is a place.
func (l *listener) Accept() (net.Conn, error) {
	for {
		nc, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c := l.l.wait(nc); c != nil {
			return c, nil
		}
		l.l.refuse(nc)
	}
}

// maxAcceptWait is how long a new connection waits for a place. Others wait in the backlog of the listener
// meanwhile, where they cost no descriptor.
const maxAcceptWait = 3 * time.Second

// wait gives a connection a place as soon as there is one, or nil.
func (l *Limiter) wait(nc net.Conn) *conn {
	if c := l.admit(nc); c != nil {
		return c
	}
	t := time.NewTimer(maxAcceptWait)
	defer t.Stop()
	look := time.NewTicker(100 * time.Millisecond) // a connection's grace may be over
	defer look.Stop()
	for {
		select {
		case <-l.freed:
		case <-look.C:
		case <-t.C:
			return nil
		}
		if c := l.admit(nc); c != nil {
			return c
		}
	}
}

// notify wakes a connection that waits for a place.
func (l *Limiter) notify() {
	select {
	case l.freed <- struct{}{}:
	default:
	}
}

// admit gives a connection a place: a free one, or that of the longest quiet one.
func (l *Limiter) admit(nc net.Conn) *conn {
	c := &conn{Conn: nc, l: l}
	l.mu.Lock()
	var oldest *conn
	if l.open >= l.max {
		if oldest = l.oldest(); oldest == nil {
			l.mu.Unlock()
			return nil
		}
		oldest.forget()
	}
	l.open++
	c.counted = true
	c.rest(l.young)
	l.mu.Unlock()
	if oldest != nil {
		l.evicted.Add(1)
		oldest.Conn.Close()
	}
	return c
}

// grace is how long a connection has for its call to arrive and to be admitted, before it has to make way.
const grace = 2 * time.Second

// oldest is the connection that makes way for a new one, or nil.
func (l *Limiter) oldest() *conn {
	if e := l.idle.Front(); e != nil {
		return e.Value.(*conn)
	}
	if e := l.young.Front(); e != nil && time.Since(e.Value.(*conn).since) > l.grace {
		return e.Value.(*conn)
	}
	return nil
}

// refuse answers a connection without a place and closes it. The close waits a moment for the other side, so
// that the answer is not lost with it.
func (l *Limiter) refuse(nc net.Conn) {
	l.refused.Add(1)
	select {
	case l.refusing <- struct{}{}:
	default:
		nc.Close()
		return
	}
	go func() {
		defer func() { <-l.refusing }()
		defer nc.Close()
		if !l.plain {
			return
		}
		_ = nc.SetDeadline(time.Now().Add(time.Second))
		if _, err := nc.Write(refusal); err != nil {
			return
		}
		if half, ok := nc.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
			var b [1 << 10]byte
			for range 16 {
				if _, err := nc.Read(b[:]); err != nil {
					return
				}
			}
		}
	}()
}

// state hears from net/http what becomes of a connection.
func (l *Limiter) state(nc net.Conn, s http.ConnState) {
	c := unwrap(nc)
	if c == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch s {
	case http.StateHijacked:
		c.hijacked = true
		c.work()
	case http.StateActive:
		c.rest(l.young)
	case http.StateIdle:
		c.rest(l.idle)
	}
}

// A conn is a connection with a place. Its fields are guarded by the limiter's lock.
type conn struct {
	net.Conn
	l        *Limiter
	counted  bool
	hijacked bool
	busy     int           // calls under way
	in       *list.List    // the list that it is in; nil: none
	at       *list.Element // its place there
	since    time.Time     // since when
}

// rest puts a connection at the end of a list of those that may make way.
func (c *conn) rest(in *list.List) {
	c.work()
	if c.busy > 0 || c.hijacked || !c.counted {
		return
	}
	c.in, c.since = in, time.Now()
	c.at = in.PushBack(c)
	c.l.notify()
}

// work takes a connection out of its list.
func (c *conn) work() {
	if c.in != nil {
		c.in.Remove(c.at)
		c.in, c.at = nil, nil
	}
}

// forget gives up a connection's place.
func (c *conn) forget() {
	c.work()
	if c.counted {
		c.counted = false
		c.l.open--
		c.l.notify()
	}
}

// Close closes the connection and gives up its place.
func (c *conn) Close() error {
	err := c.Conn.Close()
	c.l.mu.Lock()
	c.forget()
	c.l.mu.Unlock()
	return err
}

// CloseWrite and SyscallConn are those of the connection beneath, where it has them.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return net.ErrClosed
}

func (c *conn) SyscallConn() (syscall.RawConn, error) {
	if s, ok := c.Conn.(syscall.Conn); ok {
		return s.SyscallConn()
	}
	return nil, syscall.EINVAL
}

// unwrap finds the limiter's connection, also beneath TLS.
func unwrap(nc net.Conn) *conn {
	for {
		if c, ok := nc.(*conn); ok {
			return c
		}
		inner, ok := nc.(interface{ NetConn() net.Conn })
		if !ok {
			return nil
		}
		nc = inner.NetConn()
	}
}

type connKey struct{}

// Busy marks the connection of a request as one that is not to be closed, until done is called. A request that
// came another way has none.
func Busy(ctx context.Context) (done func()) {
	c, _ := ctx.Value(connKey{}).(*conn)
	if c == nil {
		return func() {}
	}
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	c.busy++
	c.work()
	return func() {
		c.l.mu.Lock()
		defer c.l.mu.Unlock()
		c.busy--
		c.rest(c.l.young) // its answer is still to be written
	}
}

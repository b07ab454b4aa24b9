// Package connlimit limits the open connections of a server, so that clients never use up the
// descriptors that the store, files and webhooks need.
//
// A [Limiter] wraps the listener and gets the state of each connection from net/http. A request with
// a valid key marks its connection as busy (see [Busy]), and a busy connection is never closed. A
// connection that has completed such a request is known. When the limit is reached, a new connection
// replaces, in this order:
//
//  1. the one that has been idle for longest, of those that are not known;
//  2. one that is not known and whose request has not arrived within a grace period: a slow
//     handshake, slow headers, or a slow body without a valid key;
//  3. the known one that has been idle for longest;
//  4. a known one whose next request has not arrived within the grace period.
//
// A known connection is not replaced while many that are not known are within their grace period: the
// new connection waits for one of these. So callers without a key can't close the connections of
// those with one. A new connection waits up to three seconds, then gets a short 503 and is closed.
//
// Blocking calls are limited separately, to fewer than the connections (see [Plan]). All
// connections can be busy only while there are that many short calls at once.
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

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/fair"
)

// refusal is the complete answer to a refused connection.
var refusal = func() []byte {
	const body = `{"type":"urn:perdure:problem:unavailable","title":"Nothing was changed; try again","status":503,` +
		`"detail":"this node has as many connections as it may; try again","code":"unavailable"}` + "\n"
	return fmt.Appendf(nil, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\n"+
		"Retry-After: 1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}()

// maxRefusals limits the refusals that are being written at once. Further connections are closed
// without an answer.
const maxRefusals = 8

// A Limiter limits open connections. It is safe for concurrent use.
type Limiter struct {
	max   int64
	plain bool
	grace time.Duration

	mu   sync.Mutex
	open int64
	// The lists have connections that can be evicted, the oldest first. Idle ones wait for the next
	// request. Of the others a request is arriving, or has no valid key.
	idle, young           *list.List
	knownIdle, knownYoung *list.List
	tenants               map[perdure.TenantID]int // connections by tenant, for crowd.go

	arrivals   *fair.Gate    // requests of crowds that are being parsed
	maxArrival time.Duration // how long one of them is waited for
	dripPause  time.Duration // between two reads of a request of a crowd that drips
	freed      chan struct{} // signalled when a connection may be admitted
	refusing   chan struct{} // has an entry for each refusal that is being written
	evicted    atomic.Int64
	refused    atomic.Int64
}

// New makes a limiter for a number of connections. plain says that the listener has no TLS; only
// then can a refused connection get an answer.
func New(maxOpen int64, plain bool) *Limiter {
	return &Limiter{
		max: max(1, maxOpen), plain: plain, grace: grace, idle: list.New(), young: list.New(),
		knownIdle: list.New(), knownYoung: list.New(),
		tenants: make(map[perdure.TenantID]int), arrivals: newArrivals(), maxArrival: maxArrival,
		dripPause: dripPause, freed: make(chan struct{}, 1), refusing: make(chan struct{}, maxRefusals),
	}
}

// Attach makes a server report the states of its connections. The server must use a listener from
// Listen.
func (l *Limiter) Attach(s *http.Server) {
	s.ConnState = l.state
	s.ConnContext = func(ctx context.Context, nc net.Conn) context.Context {
		if c := unwrap(nc); c != nil {
			return context.WithValue(ctx, connKey{}, c)
		}
		return ctx
	}
}

// Open returns the number of open connections.
func (l *Limiter) Open() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open
}

// Evicted counts connections that were closed for new ones. Refused counts new connections that
// were refused.
func (l *Limiter) Evicted() int64 { return l.evicted.Load() }
func (l *Limiter) Refused() int64 { return l.refused.Load() }

// Listen wraps a listener.
func (l *Limiter) Listen(from net.Listener) net.Listener { return &listener{from, l} }

type listener struct {
	net.Listener
	l *Limiter
}

// Accept returns the next connection that is admitted.
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

// maxAcceptWait is how long a new connection waits to be admitted. Others wait in the listener's
// backlog meanwhile, where they use no descriptor.
const maxAcceptWait = 3 * time.Second

// wait admits a connection as soon as possible. It returns nil after maxAcceptWait.
func (l *Limiter) wait(nc net.Conn) *conn {
	if c := l.admit(nc); c != nil {
		return c
	}
	t := time.NewTimer(maxAcceptWait)
	defer t.Stop()
	look := time.NewTicker(100 * time.Millisecond) // notices that a grace period is over
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

// notify wakes a connection that waits to be admitted.
func (l *Limiter) notify() {
	select {
	case l.freed <- struct{}{}:
	default:
	}
}

// admit admits a connection, if need be in place of an idle one. It returns nil if all are busy.
func (l *Limiter) admit(nc net.Conn) *conn {
	c := &conn{Conn: nc, l: l, closed: make(chan struct{})}
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
	c.count(1)
	c.resting.Store(true)
	c.rest(false)
	l.mu.Unlock()
	if oldest != nil {
		l.evicted.Add(1)
		oldest.cut()
	}
	return c
}

// grace is the time in which a request must arrive and be authenticated before its connection can
// be evicted.
const grace = 2 * time.Second

// newcomers is the share of the connections, as a divisor, that may be within their grace period
// before a new one waits for them instead of replacing a known one.
const newcomers = 8

// oldest returns the connection to evict for a new one, or nil.
func (l *Limiter) oldest() *conn {
	if e := l.idle.Front(); e != nil {
		return e.Value.(*conn)
	}
	if c := l.overdue(l.young); c != nil {
		return c
	}
	if int64(l.young.Len()) > l.max/newcomers {
		return nil
	}
	if e := l.knownIdle.Front(); e != nil {
		return e.Value.(*conn)
	}
	return l.overdue(l.knownYoung)
}

// overdue returns the oldest connection of a list, if its grace period is over.
func (l *Limiter) overdue(of *list.List) *conn {
	if e := of.Front(); e != nil && time.Since(e.Value.(*conn).since) > l.grace {
		return e.Value.(*conn)
	}
	return nil
}

// refuse answers a connection with 503 and closes it. It first waits briefly for the other side to
// close, or the answer could be lost.
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

// state handles a change of a connection's state, reported by net/http.
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
		c.rest(false)
	case http.StateIdle:
		c.resting.Store(true)
		c.rest(true)
	}
}

// A conn is an admitted connection. The limiter's lock guards its fields.
type conn struct {
	net.Conn
	l        *Limiter
	counted  bool
	hijacked bool
	busy     int           // authenticated requests under way
	known    bool          // an authenticated request was completed
	in       *list.List    // the list that it is in, or nil
	at       *list.Element // its element in that list
	since    time.Time     // when it was added to the list
	// tenant is the one of its requests; shared is set if several tenants have sent some.
	tenant perdure.TenantID
	shared bool

	// These have no lock. The next bytes that are read begin a request if resting is set. arrival ends
	// the request's turn among those of a crowd.
	resting atomic.Bool
	arrival atomic.Pointer[func()]
	drips   int // small reads of the request so far; the one who reads has it
	once    sync.Once
	closed  chan struct{}
}

// rest adds a connection to a list of connections that can be evicted, unless it is busy.
func (c *conn) rest(idle bool) {
	c.work()
	if c.busy > 0 || c.hijacked || !c.counted {
		return
	}
	in := c.l.young
	switch {
	case idle && c.known:
		in = c.l.knownIdle
	case idle:
		in = c.l.idle
	case c.known:
		in = c.l.knownYoung
	}
	c.in, c.since = in, time.Now()
	c.at = in.PushBack(c)
	c.l.notify()
}

// work removes a connection from its list.
func (c *conn) work() {
	if c.in != nil {
		c.in.Remove(c.at)
		c.in, c.at = nil, nil
	}
}

// forget stops counting a connection.
func (c *conn) forget() {
	c.work()
	if c.counted {
		c.count(-1)
		c.counted = false
		c.l.open--
		c.l.notify()
	}
}

// Close closes the connection and stops counting it.
func (c *conn) Close() error {
	err := c.cut()
	c.endArrival()
	c.l.mu.Lock()
	c.forget()
	c.l.mu.Unlock()
	return err
}

// cut closes the connection, and then wakes a reader that pauses: it has nothing left to read.
func (c *conn) cut() error {
	err := c.Conn.Close()
	c.once.Do(func() { close(c.closed) })
	return err
}

// CloseWrite and SyscallConn call the underlying connection, if it has them.
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

// unwrap returns the limiter's connection, also from under TLS.
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

// Busy protects the connection of a request of a tenant from eviction until done is called. The
// tenant is empty for a request without a key. It has no effect for a request that did not come
// through a Limiter.
func Busy(ctx context.Context, of perdure.TenantID) (done func()) {
	c, _ := ctx.Value(connKey{}).(*conn)
	if c == nil {
		return func() {}
	}
	c.endArrival()
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	c.belongs(of)
	c.busy++
	c.work()
	c.l.notify() // there is one newcomer less
	return func() {
		c.l.mu.Lock()
		defer c.l.mu.Unlock()
		c.busy--
		c.known = true
		c.rest(false) // not idle yet: its answer is still being written
	}
}

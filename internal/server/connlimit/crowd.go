package connlimit

import (
	"context"
	"math/rand/v2"
	"runtime"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/fair"
)

// A crowd is a tenant with many connections. Thousands of requests can arrive on them at once, and
// all would be parsed before anybody knows whose they are; the requests of other tenants would wait
// for a processor meanwhile. Therefore the requests of a crowd line up in front of the parser: few
// of one tenant are parsed at a time.
//
// The tenant of a connection is the one of its first request with a valid key. Connections without
// such a request are a crowd of their own: a newcomer waits behind the others, and nobody else does.
// A connection that has served several tenants belongs to a proxy, and does not line up.
const (
	// crowdSize is the number of connections of one tenant from which on its requests line up.
	crowdSize = 256
	// maxArrival is how long a request keeps others of its tenant waiting, if it is not authenticated
	// meanwhile: the store may be slow.
	maxArrival = 100 * time.Millisecond
)

// A drip is a read of few bytes in the middle of a request. A request without a key that drips, in a
// crowd of such, is read at intervals instead of whenever a byte has come: thousands that send a line
// each at the same moment would otherwise take the processors, and again half a second later.
const (
	// dripSize is the size below which a read is a drip.
	dripSize = 256
	// freeDrips are read at once. A TLS handshake has two, and a request may come in two parts.
	freeDrips = 4
	// dripPause is the mean time between two reads after that.
	dripPause = 2 * time.Second
)

func newArrivals() *fair.Gate {
	return fair.NewGate(fair.Limits{Size: 1 << 30, Share: int64(runtime.GOMAXPROCS(0)), Strict: true})
}

// Read reads from the connection. The first bytes of a request of a crowd are returned when it is the
// request's turn. The turn ends when the request is authenticated, or at the next read: it then waits
// for more bytes, or has no body and is parsed.
func (c *conn) Read(b []byte) (int, error) {
	c.endArrival()
	if c.drips > freeDrips && !c.resting.Load() && c.dripsInCrowd() {
		c.pause(c.l.dripPause/2 + rand.N(c.l.dripPause))
	}
	n, err := c.Conn.Read(b)
	if n > 0 && c.resting.CompareAndSwap(true, false) {
		c.drips = 0
		if of, ok := c.crowd(); ok {
			c.lineUp(of)
		}
	}
	if n < dripSize {
		c.drips++
	}
	return n, err
}

// dripsInCrowd tells if a connection has a request that nobody has been authenticated for, among many.
func (c *conn) dripsInCrowd() bool {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	return c.busy == 0 && !c.hijacked && c.tenant == "" && c.l.tenants[""] > crowdSize
}

// pause waits for a time, or until the connection is closed.
func (c *conn) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-c.closed:
	}
}

// crowd returns the tenant of a connection, if the tenant's requests line up.
func (c *conn) crowd() (of perdure.TenantID, ok bool) {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	return c.tenant, !c.shared && c.l.tenants[c.tenant] > crowdSize
}

// lineUp waits for a request's turn.
func (c *conn) lineUp(of perdure.TenantID) {
	leave, ok := c.l.arrivals.TryEnter(of, 1)
	if !ok {
		var err error
		if leave, err = c.l.arrivals.Enter(context.Background(), of, 1); err != nil {
			return
		}
		// A goroutine that is woken by another one runs before those that are waiting for a processor.
		// In a line that is so for each, and the others would wait for long.
		runtime.Gosched()
	}
	late := time.AfterFunc(c.l.maxArrival, leave)
	end := func() {
		late.Stop()
		leave()
	}
	c.arrival.Store(&end)
}

// endArrival lets the next request of a crowd go on.
func (c *conn) endArrival() {
	if leave := c.arrival.Swap(nil); leave != nil {
		(*leave)()
	}
}

// belongs records that a connection has had a request of a tenant. The caller holds the limiter's lock.
func (c *conn) belongs(t perdure.TenantID) {
	if c.shared || t == c.tenant || t == "" {
		return
	}
	c.count(-1)
	c.shared, c.tenant = c.tenant != "", t
	c.count(1)
}

// count counts a connection as one of its tenant's. The caller holds the limiter's lock.
func (c *conn) count(by int) {
	if !c.counted || c.shared {
		return
	}
	if c.l.tenants[c.tenant] += by; c.l.tenants[c.tenant] == 0 {
		delete(c.l.tenants, c.tenant)
	}
}

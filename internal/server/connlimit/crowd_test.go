package connlimit

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/testkit/eventually"
)

// A doorman serves requests whose path is the name of a tenant. While it is closed, it authenticates none.
type doorman struct {
	l       *Limiter
	addr    string
	closed  atomic.Pointer[chan struct{}]
	parsing atomic.Int64 // requests that are not authenticated yet
}

func newDoorman(t *testing.T) *doorman {
	return newDoormanOn(t, func(l net.Listener) net.Listener { return l })
}

func newDoormanOn(t *testing.T, wrap func(net.Listener) net.Listener) *doorman {
	d := &doorman{l: New(4*crowdSize, true)}
	d.l.maxArrival = time.Hour
	hs := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d.parsing.Add(1)
		if c := d.closed.Load(); c != nil && r.Header.Get("Hurry") == "" {
			<-*c
		}
		defer Busy(r.Context(), perdure.TenantID(r.URL.Path))()
		d.parsing.Add(-1)
		fmt.Fprint(w, "ok")
	}))
	hs.Listener = d.l.Listen(wrap(hs.Listener))
	d.l.Attach(hs.Config)
	hs.Start()
	t.Cleanup(hs.Close)
	d.addr = hs.Listener.Addr().String()
	return d
}

// A caller has one connection.
type caller struct {
	t *testing.T
	c net.Conn
	r *bufio.Reader
}

func (d *doorman) caller(t *testing.T, path string) *caller {
	c, r := dial(t, d.addr, "")
	x := &caller{t, c, r}
	x.send(path, "")
	x.answered()
	return x
}

func (x *caller) send(path, header string) {
	fmt.Fprintf(x.c, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n%s\r\n{}", path, header)
}

func (x *caller) answered() {
	x.t.Helper()
	if code, body := status(x.t, x.r); code != 200 {
		x.t.Fatalf("answer = %d %s, want 200", code, body)
	}
}

// close makes the doorman authenticate nobody until open is called.
func (d *doorman) close() (open func()) {
	c := make(chan struct{})
	d.closed.Store(&c)
	return func() {
		d.closed.Store(nil)
		close(c)
	}
}

// Of a tenant with very many connections few requests are parsed at a time. Nobody else waits for them, and all are
// served.
func TestRequestsOfACrowdLineUp(t *testing.T) {
	d := newDoorman(t)
	var many []*caller
	for range crowdSize + 20 {
		many = append(many, d.caller(t, "/crowd"))
	}
	other, proxy := d.caller(t, "/other"), d.caller(t, "/crowd")
	proxy.send("/other", "")
	proxy.answered()

	open := d.close()
	for _, c := range many {
		c.send("/crowd", "")
	}
	few := int64(runtime.GOMAXPROCS(0))
	eventually.True(t, "a few requests are parsed", func() bool { return d.parsing.Load() == few })
	for _, c := range []*caller{other, proxy} {
		c.send("/other", "Hurry: yes\r\n")
		c.answered()
	}
	if n := d.parsing.Load(); n != few {
		t.Errorf("%d requests of the crowd are parsed at once, want %d", n, few)
	}
	open()
	for _, c := range many {
		c.answered()
	}
	if n := d.l.arrivals.Used(); n != 0 {
		t.Errorf("%d places are taken after all were served", n)
	}
}

// A request that is not authenticated in time, or only half sent, does not hold up the others of its tenant.
func TestSlowRequestsDoNotHoldUpTheirCrowd(t *testing.T) {
	d := newDoorman(t)
	var many []*caller
	for range crowdSize + 20 {
		many = append(many, d.caller(t, "/crowd"))
	}
	for _, c := range many[:10] { // more than are parsed at a time
		fmt.Fprint(c.c, "GET /crowd HTTP/1.1\r\nHalf")
	}
	for _, c := range many[10:] {
		c.send("/crowd", "")
	}
	for _, c := range many[10:] {
		c.answered()
	}
	d.l.maxArrival = time.Millisecond
	open := d.close()
	for _, c := range many[10:] {
		c.send("/crowd", "")
	}
	eventually.True(t, "all are parsed", func() bool { return d.parsing.Load() == int64(len(many)-10) })
	open()
	for _, c := range many[10:] {
		c.answered()
	}
}

// A counted listener counts the reads that returned something on its connections.
type counted struct {
	net.Listener
	reads *atomic.Int64
}

func (l counted) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return countedConn{c, l.reads}, err
}

type countedConn struct {
	net.Conn
	reads *atomic.Int64
}

func (c countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.reads.Add(1)
	}
	return n, err
}

// A request that comes in drips, in a crowd without keys, is read at intervals; one that comes in a few
// parts is read at once.
func TestDripsOfACrowdAreReadAtIntervals(t *testing.T) {
	var reads atomic.Int64
	d := newDoormanOn(t, func(l net.Listener) net.Listener { return counted{l, &reads} })
	d.l.dripPause = time.Hour
	for range crowdSize {
		dial(t, d.addr, "")
	}
	eventually.True(t, "all are connected", func() bool { return d.l.Open() == crowdSize })
	slow, answer := dial(t, d.addr, "")
	fmt.Fprint(slow, "GET /slow HTTP/1.1\r\n")
	eventually.True(t, "the first line is read", func() bool { return reads.Load() == 1 })
	for i := range int64(freeDrips) {
		fmt.Fprint(slow, "X: y\r\n")
		eventually.True(t, "a part is read", func() bool { return reads.Load() == 2+i })
	}
	fmt.Fprint(slow, "Host: localhost\r\n\r\n")
	before := reads.Load()
	d.caller(t, "/quick")
	if got := reads.Load() - before; got != 1 {
		t.Errorf("reads while another request was answered = %d, want its own alone", got)
	}

	// It goes on when it is closed.
	d.l.mu.Lock()
	oldest := d.l.young.Back().Value.(*conn)
	d.l.mu.Unlock()
	oldest.Close()
	if _, err := answer.ReadByte(); err == nil {
		t.Error("the connection that was closed has an answer")
	}
}

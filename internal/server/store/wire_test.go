package store

import (
	"bytes"
	"net"
	"net/url"
	"sync"
	"testing"
)

// A wire is a TCP proxy to PostgreSQL that records what is sent, and can cut connections.
type wire struct {
	url    string
	server string

	mu     sync.Mutex
	output bytes.Buffer // the data that was sent to the server
	cut    func(toServer bool, b []byte) cutting
	closed bool
	conns  []net.Conn
}

// cutting says what happens to a piece of data.
type cutting int

const (
	forward     cutting = iota
	cutBefore           // the connection is closed before the data is sent
	cutAfter            // the connection is closed after the data is sent
	cutAnswered         // the connection is closed when the answer arrives, which is not forwarded
)

// newWire gives a wire to the server of an address.
func newWire(t *testing.T, address string) *wire {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{server: u.Host}
	u.Host = l.Addr().String()
	w.url = u.String()
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", w.server)
			if err != nil {
				in.Close()
				continue
			}
			c := &connection{w: w, in: in, out: out}
			w.mu.Lock()
			if w.conns = append(w.conns, in, out); w.closed {
				c.end()
			}
			w.mu.Unlock()
			wg.Go(func() { c.pump(in, out, true) })
			wg.Go(func() { c.pump(out, in, false) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		w.mu.Lock()
		w.closed = true
		for _, c := range w.conns {
			c.Close()
		}
		w.mu.Unlock()
		wg.Wait()
	})
	return w
}

func (w *wire) sent() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.output.String()
}

// set sets the function that decides about each piece of data from now on.
func (w *wire) set(cut func(toServer bool, b []byte) cutting) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = cut
}

type connection struct {
	w       *wire
	in, out net.Conn
	mute    bool // the answer is not forwarded; guarded by w.mu
}

func (c *connection) end() {
	c.in.Close()
	c.out.Close()
}

func (c *connection) pump(from, to net.Conn, toServer bool) {
	defer c.end()
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		if n == 0 || err != nil {
			return
		}
		c.w.mu.Lock()
		what := forward
		switch {
		case !toServer && c.mute:
			what = cutBefore
		case c.w.cut != nil:
			what = c.w.cut(toServer, b[:n])
		}
		if toServer {
			c.w.output.Write(b[:n])
		}
		c.mute = c.mute || what == cutAnswered
		c.w.mu.Unlock()
		if what == cutBefore {
			return
		}
		if _, err := to.Write(b[:n]); err != nil || what == cutAfter {
			return
		}
	}
}

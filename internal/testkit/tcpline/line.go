// Package tcpline is a TCP proxy for tests, whose line can be cut, slow, silent, or silent in one direction. It is for
// tests of processes: what it carries are real connections.
//
// A line does not lose bytes of a connection that lives: TCP would send them again. Bytes that are held back arrive
// when the line is well again, if Reset does not close their connection before.
package tcpline

import (
	"bytes"
	"cmp"
	"net"
	"sync"
	"testing"
	"time"
)

// A State is what is wrong with a line. The zero value is a line that is well.
type State struct {
	// Cut closes the connections, and every new one.
	Cut bool
	// HoldUp holds back what goes to the server, and HoldDown what comes from it. Connections stay, and new
	// ones are accepted. With both of them a connection is half open: each side still believes in it.
	HoldUp, HoldDown bool
	// Delay is how much later each piece of data arrives, in both directions.
	Delay time.Duration
}

// A Line is a proxy in front of one server.
type Line struct {
	to string
	l  net.Listener

	mu      sync.Mutex
	changed *sync.Cond
	state   State
	trap    *trap
	conns   map[*conn]bool
	closed  bool
}

// A conn is a connection that is carried: the caller's side and the server's.
type conn struct {
	caller, server net.Conn
	gone           bool
}

// New starts a line to an address, until the test ends.
func New(t testing.TB, to string) *Line {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &Line{to: to, l: listener, conns: make(map[*conn]bool)}
	l.changed = sync.NewCond(&l.mu)
	go l.accept()
	t.Cleanup(l.close)
	return l
}

// Addr is the address that callers use.
func (l *Line) Addr() string { return l.l.Addr().String() }

// Set changes the state of the line.
func (l *Line) Set(s State) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state = s
	if s.Cut {
		l.drop()
	}
	l.changed.Broadcast()
}

// A trap cuts the line when callers have sent texts, one after the other.
type trap struct {
	texts  []string // that have not come yet
	after  bool
	sprung chan struct{}
}

// CutAt cuts the line when a caller sends the last of these texts, after the ones before were sent over any
// connection. The last one gets lost, or arrives if after is set, and its answer gets lost. A text has to be sent in
// one piece. The channel is closed when the line is cut.
func (l *Line) CutAt(after bool, texts ...string) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trap = &trap{texts, after, make(chan struct{})}
	return l.trap.sprung
}

// watch looks for the texts of the trap in data that a caller sends. It tells whether the data gets lost, and gives
// what to do after that or after it was sent, or nil.
func (l *Line) watch(data []byte) (lost bool, then func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.trap
	if t == nil {
		return false, nil
	}
	for len(t.texts) > 0 {
		i := bytes.Index(data, []byte(t.texts[0]))
		if i < 0 {
			return false, nil
		}
		data, t.texts = data[i:], t.texts[1:]
	}
	l.trap = nil
	return !t.after, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.state = State{Cut: true}
		close(t.sprung)
		l.drop()
	}
}

// Reset closes all connections, with what they hold back. New ones are taken.
func (l *Line) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop()
}

func (l *Line) close() {
	l.l.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.drop()
}

// drop closes all connections. The line is locked.
func (l *Line) drop() {
	for c := range l.conns {
		l.end(c)
	}
	l.changed.Broadcast()
}

// end closes one connection. The line is locked.
func (l *Line) end(c *conn) {
	c.gone = true
	c.caller.Close()
	c.server.Close()
	delete(l.conns, c)
}

func (l *Line) accept() {
	for {
		caller, err := l.l.Accept()
		if err != nil {
			return
		}
		go l.open(caller)
	}
}

// open connects to the server, and carries data until one side ends the connection.
func (l *Line) open(caller net.Conn) {
	l.mu.Lock()
	cut := l.state.Cut || l.closed
	l.mu.Unlock()
	if cut {
		caller.Close()
		return
	}
	server, err := net.Dial("tcp", l.to)
	if err != nil {
		caller.Close()
		return
	}
	c := &conn{caller: caller, server: server}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[c] = true
	if l.state.Cut || l.closed {
		l.end(c)
		return
	}
	go l.carry(c, caller, server, true)
	go l.carry(c, server, caller, false)
}

// carry copies one direction of a connection. The end of a side is data, too: a line that holds back does not tell it.
func (l *Line) carry(c *conn, from, to net.Conn, up bool) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if delay := l.pass(c, up); delay > 0 {
			time.Sleep(delay)
		}
		if n > 0 {
			err = cmp.Or(l.send(to, buf[:n], up), err)
		}
		if err != nil {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.end(c)
			l.changed.Broadcast()
			return
		}
	}
}

// send sends data, unless it springs the trap.
func (l *Line) send(to net.Conn, data []byte, up bool) (err error) {
	lost, sprung := false, (func())(nil)
	if up {
		lost, sprung = l.watch(data)
	}
	if !lost {
		_, err = to.Write(data)
	}
	if sprung != nil {
		sprung()
	}
	return err
}

// pass waits until the line carries this direction, or the connection is gone, and returns the delay.
func (l *Line) pass(c *conn, up bool) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	for !c.gone && (up && l.state.HoldUp || !up && l.state.HoldDown) {
		l.changed.Wait()
	}
	return l.state.Delay
}

package stream

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A Conn is where a stream is written to. Each send is on its way when it returns; one that fails, or takes too
// long, was the last.
type Conn interface {
	send(piece) bool
	left() <-chan struct{} // closed when nobody reads any more
	broken() bool          // a send failed because the connection is closed, and not because it took too long
}

// Borrow gives a Conn that writes to the answer of a request, which is served as long as the stream
// goes on.
func Borrow(w http.ResponseWriter, r *http.Request, patience time.Duration) Conn {
	return &borrowed{w: w, rc: http.NewResponseController(w), gone: r.Context().Done(), patience: patience}
}

// borrowed writes to the answer of a request that is still being served: in a process without sockets, and for
// connections that can't be taken over.
type borrowed struct {
	w        http.ResponseWriter
	rc       *http.ResponseController
	gone     <-chan struct{}
	patience time.Duration
	failed   bool
}

func (o *borrowed) broken() bool { return o.failed }

func (o *borrowed) left() <-chan struct{} { return o.gone }

func (o *borrowed) send(p piece) bool {
	_ = o.rc.SetWriteDeadline(time.Now().Add(o.patience)) // in process there is none to set
	_, err := o.w.Write(p.text)
	if err == nil {
		if err = o.rc.Flush(); errors.Is(err, http.ErrNotSupported) {
			err = nil
		}
	}
	o.failed = err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
	return err == nil
}

// Hijacked writes to a connection of its own, in chunks as HTTP/1.1 has them. A request that is being served holds
// buffers and a stack that are ten times what a stream needs, and most streams are silent most of the time.
type Hijacked struct {
	conn   net.Conn
	gone   chan struct{}
	failed bool
	Bounds
}

// Bounds are what ends a write to a connection.
type Bounds struct {
	Patience         time.Duration   // how long a write may take
	Glance           time.Duration   // how long it may take before is looked whether the stream has to end
	Revoked, Closing <-chan struct{} // the stream has to end, also in the middle of a write
}

// Hijack takes the connection of a request over and writes the head of the answer. It gives nil
// where that can't be done.
func Hijack(w http.ResponseWriter, r *http.Request, b Bounds) *Hijacked {
	if !r.ProtoAtLeast(1, 1) || r.ProtoMajor != 1 {
		return nil
	}
	head := []byte("HTTP/1.1 200 OK\r\nDate: " + time.Now().UTC().Format(http.TimeFormat) + "\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n")
	for name, values := range w.Header() {
		for _, v := range values { // names and values of our own: none has a line break
			head = append(head, name+": "+v+"\r\n"...)
		}
	}
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil
	}
	o := &Hijacked{conn: conn, gone: make(chan struct{}), Bounds: b}
	o.hurry()
	o.write(append(head, "\r\n"...)) // if this fails, so does the first frame
	go o.listen()
	return o
}

// silence is how long the other side may leave what was sent unacknowledged. Without a bound, one whose network is
// gone would be kept for a quarter of an hour.
const silence = 30 * time.Second

func (o *Hijacked) hurry() {
	t, ok := socketOf(o.conn).(syscall.Conn)
	if !ok {
		return
	}
	if raw, err := t.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silence.Milliseconds()))
		})
	}
}

// socketOf is the connection below TLS, or the connection itself.
func socketOf(c net.Conn) net.Conn {
	if t, ok := c.(interface{ NetConn() net.Conn }); ok {
		return t.NetConn()
	}
	return c
}

// listen notices when the other side closes the connection. Whatever it sends is of no interest, and not much of it
// is listened to.
func (o *Hijacked) listen() {
	defer close(o.gone)
	var b [64]byte
	for range 64 {
		if _, err := o.conn.Read(b[:]); err != nil {
			return
		}
	}
}

func (o *Hijacked) left() <-chan struct{} { return o.gone }

func (o *Hijacked) broken() bool { return o.failed }

func (o *Hijacked) send(p piece) bool { return o.write(p.chunk) }

// Closed tells whether a channel is.
func Closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Glance is the usual Bounds.Glance.
const Glance = 500 * time.Millisecond

func (o *Hijacked) write(b []byte) bool {
	if t, ok := o.conn.(*tls.Conn); ok {
		return o.writeTLS(t, b)
	}
	for began := time.Now(); ; {
		if o.conn.SetWriteDeadline(time.Now().Add(min(o.Glance, o.Patience))) != nil {
			return false
		}
		n, err := o.conn.Write(b)
		if b = b[n:]; err == nil {
			return true
		}
		o.failed = !errors.Is(err, os.ErrDeadlineExceeded)
		if o.failed || Closed(o.Revoked) || Closed(o.Closing) || time.Since(began) > o.Patience {
			return false
		}
	}
}

// writeTLS writes in one go: after a write that timed out a TLS connection can't be written to any more. A timer looks
// meanwhile whether the stream has to end, and then ends the write by its deadline.
func (o *Hijacked) writeTLS(conn *tls.Conn, b []byte) bool {
	if conn.SetWriteDeadline(time.Now().Add(o.Patience)) != nil {
		return false
	}
	written := make(chan struct{})
	defer close(written)
	defer time.AfterFunc(o.Glance, func() {
		every := time.NewTicker(o.Glance)
		defer every.Stop()
		for !Closed(o.Revoked) && !Closed(o.Closing) {
			select {
			case <-written:
				return
			case <-every.C:
			}
		}
		_ = conn.SetWriteDeadline(time.Now()) // the stream ends: no write follows that this could hurt
	}).Stop()
	_, err := conn.Write(b)
	o.failed = err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
	return err == nil
}

// Finish ends the answer if everything was told, and closes the connection. Without the last chunk the other side
// knows that the answer was cut off.
func (o *Hijacked) Finish(how Ending) {
	if how == Told {
		o.write([]byte("0\r\n\r\n"))
	}
	if how == Told {
		o.conn.Close()
		return
	}
	// Not through TLS, which would wait to say goodbye to a reader that takes nothing.
	socketOf(o.conn).Close()
}

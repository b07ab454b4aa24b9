package httpd

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A piece is some text of a stream, and the same as a chunk of HTTP/1.1. Those who are told the same share it.
type piece struct{ text, chunk []byte }

// pieceOf wraps a text.
func pieceOf(text []byte) piece {
	b := make([]byte, 0, len(text)+16)
	b = append(strconv.AppendInt(b, int64(len(text)), 16), "\r\n"...)
	at := len(b)
	b = append(b, text...)
	return piece{text: b[at:len(b):len(b)], chunk: append(b, "\r\n"...)}
}

// An outlet is where a stream is written to. Each send is on its way when it returns; one that fails, or takes too
// long, was the last.
type outlet interface {
	send(piece) bool
	left() <-chan struct{} // closed when nobody reads any more
	broken() bool          // a send failed because the connection is closed, and not because it took too long
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

// taken writes to a connection of its own, in chunks as HTTP/1.1 has them. A request that is being served holds
// buffers and a stack that are ten times what a stream needs, and most streams are silent most of the time.
type taken struct {
	conn     net.Conn
	gone     chan struct{}
	patience time.Duration
	glance   time.Duration
	failed   bool

	revoked, closing <-chan struct{} // the stream has to end, also in the middle of a write
}

// takeOver takes a connection over and writes the head of the answer. It gives nil where that can't be done.
func takeOver(c *call, f *follower) *taken {
	if !c.ProtoAtLeast(1, 1) || c.ProtoMajor != 1 {
		return nil
	}
	head := []byte("HTTP/1.1 200 OK\r\nDate: " + time.Now().UTC().Format(http.TimeFormat) + "\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n")
	for name, values := range c.w.Header() {
		for _, v := range values { // names and values of our own: none has a line break
			head = append(head, name+": "+v+"\r\n"...)
		}
	}
	conn, _, err := http.NewResponseController(c.w).Hijack()
	if err != nil {
		return nil
	}
	o := &taken{conn: conn, gone: make(chan struct{}), patience: c.s.opt.Patience, glance: c.s.glance, revoked: f.revoked, closing: f.s.closing}
	o.hurry()
	o.write(append(head, "\r\n"...)) // if this fails, so does the first frame
	go o.listen()
	return o
}

// silence is how long the other side may leave what was sent unacknowledged. Without a bound, one whose network is
// gone would be kept for a quarter of an hour.
const silence = 30 * time.Second

func (o *taken) hurry() {
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
func (o *taken) listen() {
	defer close(o.gone)
	var b [64]byte
	for range 64 {
		if _, err := o.conn.Read(b[:]); err != nil {
			return
		}
	}
}

func (o *taken) left() <-chan struct{} { return o.gone }

func (o *taken) broken() bool { return o.failed }

func (o *taken) send(p piece) bool { return o.write(p.chunk) }

// closed tells whether a channel is.
func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// glance is how long a write may take before is looked whether the stream has to end.
const glance = 500 * time.Millisecond

func (o *taken) write(b []byte) bool {
	if t, ok := o.conn.(*tls.Conn); ok {
		return o.writeTLS(t, b)
	}
	for began := time.Now(); ; {
		if o.conn.SetWriteDeadline(time.Now().Add(min(o.glance, o.patience))) != nil {
			return false
		}
		n, err := o.conn.Write(b)
		if b = b[n:]; err == nil {
			return true
		}
		o.failed = !errors.Is(err, os.ErrDeadlineExceeded)
		if o.failed || closed(o.revoked) || closed(o.closing) || time.Since(began) > o.patience {
			return false
		}
	}
}

// writeTLS writes in one go: after a write that timed out a TLS connection can't be written to any more. A timer looks
// meanwhile whether the stream has to end, and then ends the write by its deadline.
func (o *taken) writeTLS(conn *tls.Conn, b []byte) bool {
	if conn.SetWriteDeadline(time.Now().Add(o.patience)) != nil {
		return false
	}
	written := make(chan struct{})
	defer close(written)
	defer time.AfterFunc(o.glance, func() {
		every := time.NewTicker(o.glance)
		defer every.Stop()
		for !closed(o.revoked) && !closed(o.closing) {
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

// finish ends the answer if everything was told, and closes the connection. Without the last chunk the other side
// knows that the answer was cut off.
func (o *taken) finish(how ending) {
	if how == told {
		o.write([]byte("0\r\n\r\n"))
	}
	if how == told {
		o.conn.Close()
		return
	}
	// Not through TLS, which would wait to say goodbye to a reader that takes nothing.
	socketOf(o.conn).Close()
}

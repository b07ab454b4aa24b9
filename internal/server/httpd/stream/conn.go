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

// A Conn is the connection of a stream.
type Conn interface {
	// send writes a piece and flushes it. After it has returned false, nothing more is sent.
	send(piece) bool
	// gone is closed when the client has closed the connection.
	gone() <-chan struct{}
	// broken tells that a send failed because the connection is closed, and not because of its
	// timeout.
	broken() bool
}

// FromResponse returns a Conn that writes to the response of a request. The handler has to run as
// long as the stream.
func FromResponse(w http.ResponseWriter, r *http.Request, writeTimeout time.Duration) Conn {
	return &response{w: w, rc: http.NewResponseController(w), done: r.Context().Done(), writeTimeout: writeTimeout}
}

// response is the Conn of calls in process, which have no socket, and of connections that can't be
// hijacked.
type response struct {
	w            http.ResponseWriter
	rc           *http.ResponseController
	done         <-chan struct{}
	writeTimeout time.Duration
	failed       bool
}

func (o *response) broken() bool { return o.failed }

func (o *response) gone() <-chan struct{} { return o.done }

func (o *response) send(p piece) bool {
	_ = o.rc.SetWriteDeadline(time.Now().Add(o.writeTimeout)) // a call in process has no deadline to set
	_, err := o.w.Write(p.text)
	if err == nil {
		if err = o.rc.Flush(); errors.Is(err, http.ErrNotSupported) {
			err = nil
		}
	}
	o.failed = err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
	return err == nil
}

// Hijacked writes chunks of HTTP/1.1 to a connection that was taken over from the HTTP server. It
// saves memory: a request in a handler holds buffers and a stack ten times as large as a stream
// needs.
type Hijacked struct {
	conn   net.Conn
	closed chan struct{}
	failed bool
	Bounds
}

// Bounds are the conditions that end a write to a connection.
type Bounds struct {
	// WriteTimeout bounds a write.
	WriteTimeout time.Duration
	// CheckEvery is the interval at which a blocked write checks Revoked and Closing.
	CheckEvery time.Duration
	// Revoked and Closing end the stream when they are closed, also in the middle of a write.
	Revoked, Closing <-chan struct{}
}

// Hijack takes over the connection of a request and writes the head of the response. It returns nil
// if the connection can't be hijacked; the request is then unchanged.
func Hijack(w http.ResponseWriter, r *http.Request, b Bounds) *Hijacked {
	if !r.ProtoAtLeast(1, 1) || r.ProtoMajor != 1 {
		return nil
	}
	head := []byte("HTTP/1.1 200 OK\r\nDate: " + time.Now().UTC().Format(http.TimeFormat) +
		"\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n")
	for name, values := range w.Header() {
		for _, v := range values { // the server sets these itself: none has a line break
			head = append(head, name+": "+v+"\r\n"...)
		}
	}
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil
	}
	o := &Hijacked{conn: conn, closed: make(chan struct{}), Bounds: b}
	o.setUserTimeout()
	o.write(append(head, "\r\n"...)) // if this fails, the first frame fails too
	go o.detectClose()
	return o
}

// userTimeout bounds the time in which the peer has to acknowledge data. Linux would otherwise keep
// a connection to a lost network for a quarter of an hour.
const userTimeout = 30 * time.Second

// setUserTimeout sets TCP_USER_TIMEOUT. Connections that are not TCP are left as they are.
func (o *Hijacked) setUserTimeout() {
	t, ok := socketOf(o.conn).(syscall.Conn)
	if !ok {
		return
	}
	if raw, err := t.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout.Milliseconds()))
		})
	}
}

// socketOf returns the connection below TLS, or the connection itself.
func socketOf(c net.Conn) net.Conn {
	if t, ok := c.(interface{ NetConn() net.Conn }); ok {
		return t.NetConn()
	}
	return c
}

// detectClose reads until the peer closes the connection. Received bytes are discarded. A peer that
// sends more than 4 KiB is taken for gone.
func (o *Hijacked) detectClose() {
	defer close(o.closed)
	var b [64]byte
	for range 64 {
		if _, err := o.conn.Read(b[:]); err != nil {
			return
		}
	}
}

func (o *Hijacked) gone() <-chan struct{} { return o.closed }

func (o *Hijacked) broken() bool { return o.failed }

func (o *Hijacked) send(p piece) bool { return o.write(p.chunk) }

// Closed tells whether a channel is closed. It may only be used for channels that nothing is sent
// to.
func Closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// CheckEvery is the usual Bounds.CheckEvery.
const CheckEvery = 500 * time.Millisecond

// write writes all of b. It sets short deadlines, and after each checks whether the stream has to
// end.
func (o *Hijacked) write(b []byte) bool {
	if t, ok := o.conn.(*tls.Conn); ok {
		return o.writeTLS(t, b)
	}
	for began := time.Now(); ; {
		if o.conn.SetWriteDeadline(time.Now().Add(min(o.CheckEvery, o.WriteTimeout))) != nil {
			return false
		}
		n, err := o.conn.Write(b)
		if b = b[n:]; err == nil {
			return true
		}
		o.failed = !errors.Is(err, os.ErrDeadlineExceeded)
		if o.failed || Closed(o.Revoked) || Closed(o.Closing) || time.Since(began) > o.WriteTimeout {
			return false
		}
	}
}

// writeTLS writes with a single deadline: a TLS connection can't be used after a write has timed
// out. A timer checks meanwhile whether the stream has to end, and then ends the write by its
// deadline.
func (o *Hijacked) writeTLS(conn *tls.Conn, b []byte) bool {
	if conn.SetWriteDeadline(time.Now().Add(o.WriteTimeout)) != nil {
		return false
	}
	written := make(chan struct{})
	defer close(written)
	defer time.AfterFunc(o.CheckEvery, func() {
		every := time.NewTicker(o.CheckEvery)
		defer every.Stop()
		for !Closed(o.Revoked) && !Closed(o.Closing) {
			select {
			case <-written:
				return
			case <-every.C:
			}
		}
		_ = conn.SetWriteDeadline(time.Now()) // the stream ends, so no write follows
	}).Stop()
	_, err := conn.Write(b)
	o.failed = err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
	return err == nil
}

// Finish closes the connection. The last chunk is written only for a complete stream: without it
// the client knows that the response was cut off.
func (o *Hijacked) Finish(how Ending) {
	if how == Complete {
		o.write([]byte("0\r\n\r\n"))
		o.conn.Close()
		return
	}
	// Closing a TLS connection would write an alert, and block on a client that does not read.
	socketOf(o.conn).Close()
}

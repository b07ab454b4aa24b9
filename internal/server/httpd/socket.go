package httpd

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine/reads"
	"github.com/perdure/perdure/internal/server/httpd/feed"
	"github.com/perdure/perdure/internal/server/httpd/stream"
)

// A socket is an open WebSocket.
type socket struct {
	s    *Server
	key  perdure.Key
	conn *websocket.Conn
	wire *wire
	// deflated is set if the client takes compressed messages.
	deflated bool
	// plain is set if the socket was opened with a list to watch. It ignores messages without a type.
	plain bool
	// revoked is closed when the key is no longer valid.
	revoked <-chan struct{}
	client  *feed.Client
	// replies are answers to messages of the client.
	replies chan []byte

	mu sync.Mutex
	// after has the lines that the client has, for each watch that was just made.
	after map[string]cursors
}

// cursors are the last lines that a client has of some runs.
type cursors struct {
	tenant perdure.TenantID
	// root is the root of the tree that is watched, if a tree is.
	root perdure.RunID
	runs map[perdure.RunID]int64
}

// A wire is the connection of a socket. Each of its writes is one or more whole frames.
type wire struct {
	net.Conn
	timeout time.Duration
	mu      sync.Mutex
}

// Write writes a control frame of the library.
func (w *wire) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.Conn.Write(b)
}

// send writes frames within the timeout. It returns false if that failed.
func (w *wire) send(frames []byte) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.SetWriteDeadline(time.Now().Add(w.timeout)) != nil {
		return false
	}
	if _, err := w.Conn.Write(frames); err != nil {
		return false
	}
	return w.SetWriteDeadline(time.Time{}) == nil
}

// serve sends what the client watches. It ends when the client is gone, the key is revoked or the
// server shuts down.
func (w *socket) serve(first feed.Delivery) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer w.conn.CloseNow()
	gone := make(chan struct{})
	go func() { // the library answers pings and closes only while something reads
		defer close(gone)
		w.listen(ctx)
	}()
	cut := func() { // ends a blocked write
		cancel()
		w.conn.CloseNow()
	}
	go w.ping(ctx, cut)
	go w.cutBlockedWrite(ctx, cut)
	if first.Message != nil && !w.deliver(ctx, first) {
		return
	}
	first = feed.Delivery{} // free it: a socket lasts long
	for {
		select {
		case <-gone:
			return
		case <-w.revoked:
			w.conn.Close(websocket.StatusPolicyViolation, "the key is not valid any more")
			return
		case <-w.s.closing:
			w.conn.Close(websocket.StatusServiceRestart, "the server shuts down")
			return
		case b := <-w.replies:
			if !w.wire.send(feed.AppendFrame(nil, b, w.deflated)) {
				return
			}
		case <-w.client.Ready():
			if !w.drain(ctx) {
				return
			}
		}
	}
}

// drain sends the messages that are queued. It returns false if that failed.
func (w *socket) drain(ctx context.Context) bool {
	for !stream.Closed(w.revoked) && !stream.Closed(w.s.closing) {
		d, ok := w.client.Next()
		if !ok {
			return true
		}
		if !w.deliver(ctx, d) {
			return false
		}
	}
	return true // serve ends the socket
}

// deliver sends a message. It returns false if that failed.
func (w *socket) deliver(ctx context.Context, d feed.Delivery) bool {
	if d.Err != nil {
		return w.wire.send(feed.AppendFrame(nil, w.s.socketProblem(d.ID, d.Err), w.deflated))
	}
	if !w.wire.send(d.Message.Frames(d.ID, d.Plain, w.deflated)) {
		return false
	}
	w.mu.Lock()
	missed, ok := w.after[d.ID]
	delete(w.after, d.ID)
	w.mu.Unlock()
	return !ok || w.sendMissed(ctx, d.ID, missed)
}

// sendMissed sends the lines that a client has missed of the runs that it has begun to watch. If
// the store can't be read, the client finds out by their numbers that lines are missing.
func (w *socket) sendMissed(ctx context.Context, id string, missed cursors) bool {
	leave, err := w.s.feed.Gate.Enter(ctx, w.key.Tenant, 1)
	if err != nil {
		return false
	}
	m, err := feed.Missed(ctx, &feed.Runs{Engine: w.s.engine, Show: w.s.showRow, Tenant: missed.tenant,
		Page: reads.RunFilter{RootID: missed.root}}, missed.runs)
	leave()
	if err != nil || m == nil {
		return ctx.Err() == nil
	}
	return w.wire.send(m.Frames(id, false, w.deflated))
}

// A socket may send messagesAtOnce messages, and then so many in a second.
const messagesAtOnce = 50

// listen reads the messages of the client until it is gone.
func (w *socket) listen(ctx context.Context) {
	began, n := time.Now(), 0
	for {
		_, b, err := w.conn.Read(ctx)
		if err != nil {
			return
		}
		if reply := w.obey(b); reply != nil {
			select {
			case w.replies <- reply:
			case <-ctx.Done():
				return
			}
		}
		if n++; n < messagesAtOnce {
			continue
		}
		pause := time.NewTimer(time.Until(began.Add(time.Second)))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return
		}
		began, n = time.Now(), 0
	}
}

// socketProblem encodes a refusal.
func (s *Server) socketProblem(id string, err error) []byte {
	b, _ := stream.Encode(&api.SocketProblem{Type: api.SocketError, ID: id, Error: *refusal(s.refused(err))})
	return b
}

// showRow returns a run as lists show it.
func (s *Server) showRow(r *perdure.Run, now perdure.Instant) *api.Run {
	return s.show(&reads.Detail{Run: *r}, now)
}

// cutBlockedWrite waits until the socket has to end, and cuts it if it has not ended shortly after:
// it is then blocked in a write.
func (w *socket) cutBlockedWrite(ctx context.Context, cut func()) {
	select {
	case <-w.revoked:
	case <-w.s.closing:
	case <-ctx.Done():
		return
	}
	t := time.NewTimer(stream.CheckEvery)
	defer t.Stop()
	select {
	case <-t.C:
		cut()
	case <-ctx.Done():
	}
}

// ping pings the client at an interval, and ends the socket if it does not answer.
func (w *socket) ping(ctx context.Context, end func()) {
	defer end()
	t := time.NewTicker(pingEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		answer, cancel := context.WithTimeout(ctx, w.s.opt.StreamWriteTimeout)
		err := w.conn.Ping(answer)
		cancel()
		if err != nil {
			return
		}
	}
}

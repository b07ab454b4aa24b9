package httpd

import (
	"bufio"
	"cmp"
	"encoding/base64"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/coder/websocket"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/httpd/feed"
	"github.com/perdure/perdure/internal/server/httpd/stream"
)

// A WebSocket tells its client what happens to runs and to other lists. Package feed looks at the
// store, once for all sockets that ask the same; a socket passes its messages on.
//
// The library reads the connection: it makes the handshake, joins and unmasks frames, and answers
// pings and closes. Messages to the client are written past it, as frames that all sockets of a
// question share (wire in socket.go).
//
// ws.go opens a socket, socket.go serves it, watches.go turns messages of the client into
// questions.

const (
	// pingEvery is the interval between pings, and maxIncoming bounds a message of the client.
	pingEvery   = 15 * time.Second
	maxIncoming = 64 << 10
)

// openSocket opens a socket. One with filters in its address watches a list from the beginning. Its
// snapshot is read before the upgrade, so that errors are ordinary problems.
func openSocket(c *call) error {
	empty, q, err := firstQuestion(c)
	if err != nil {
		return err
	}
	if err := checkUpgrade(c); err != nil {
		return err
	}
	if err := block(c, stream.Socket); err != nil {
		return err
	}
	held := c.share.move()
	valid, forget := c.s.keyWatcher.watch(c.key.ID)
	w := &socket{s: c.s, key: c.key, plain: !empty, revoked: valid.Done(), client: c.s.feed.Open(),
		replies: make(chan []byte, 4)}
	close := func() {
		w.client.Close()
		forget()
		held.release()
	}
	var first feed.Delivery
	if err = c.checkKey(); err == nil && !empty {
		first, err = w.firstSnapshot(c, q)
	}
	if err != nil {
		close()
		return err
	}
	out := &hijacker{ResponseWriter: c.w, timeout: c.s.opt.StreamWriteTimeout}
	// checkUpgrade has checked the origin.
	w.conn, err = websocket.Accept(out, c.Request, &websocket.AcceptOptions{InsecureSkipVerify: true,
		CompressionMode: websocket.CompressionNoContextTakeover})
	if err != nil {
		close()
		return nil // Accept has answered
	}
	w.wire, w.deflated = out.wire, c.w.Header().Get("Sec-WebSocket-Extensions") != ""
	w.conn.SetReadLimit(maxIncoming)
	if !c.s.goStream(func() {
		defer close()
		w.serve(first)
	}) {
		close()
		w.conn.Close(websocket.StatusServiceRestart, "the server shuts down")
	}
	return nil
}

// firstQuestion returns the question of a socket's address. With watch=none there is none.
func firstQuestion(c *call) (none bool, q feed.Question, err error) {
	params := c.URL.Query()
	switch params.Get("watch") {
	case "":
	case "none":
		for name := range params {
			if name != "watch" && name != tokenParam {
				return false, q, perdure.Invalid(name, "does not go with watch=none")
			}
		}
		return true, q, nil
	default:
		return false, q, perdure.Invalid("watch", "takes none")
	}
	f, err := runFilter(c, 200)
	if err != nil {
		return false, q, err
	}
	lines := true
	switch params.Get("events") {
	case "", "true":
	case "false":
		lines = false
	default:
		return false, q, perdure.Invalid("events", "takes true or false")
	}
	return false, c.s.plainRuns(c.tenant(), f, lines), nil
}

// firstSnapshot begins to watch the list of a socket's address, and waits for its snapshot.
func (w *socket) firstSnapshot(c *call, q feed.Question) (feed.Delivery, error) {
	if err := w.client.Watch("", true, q); err != nil {
		return feed.Delivery{}, err
	}
	for {
		if d, ok := w.client.Next(); ok {
			return d, d.Err
		}
		select {
		case <-w.client.Ready():
		case <-w.revoked:
			return feed.Delivery{}, errKey
		case <-c.Context().Done():
			return feed.Delivery{}, cmp.Or(c.keyEnded(), c.Context().Err())
		case <-c.s.closing:
			return feed.Delivery{}, perdure.Errorf(perdure.CodeUnavailable, "the server shuts down")
		}
	}
}

// A hijacker gives the library a connection whose writes are whole frames, so that others may write
// frames between them.
type hijacker struct {
	http.ResponseWriter
	timeout time.Duration
	wire    *wire
}

// controlBuffer is the size of the library's buffer. It writes control frames only, of at most 131
// bytes, each with one write.
const controlBuffer = 256

// Hijack implements http.Hijacker.
func (h *hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, b, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	h.wire = &wire{Conn: conn, timeout: h.timeout}
	return h.wire, bufio.NewReadWriter(b.Reader, bufio.NewWriterSize(h.wire, controlBuffer)), nil
}

// checkUpgrade refuses requests that are no WebSocket handshake, and pages of origins that are not
// configured. Browsers let any page open a socket to any server.
func checkUpgrade(c *call) error {
	if origin := c.Header.Get("Origin"); origin != "" && !sameOrigin(origin, c.Request) && !c.s.namedOrigin(origin) {
		return perdure.Errorf(api.CodeOrigin, "add the page's origin to the server's origins")
	}
	has := func(name, token string) bool {
		values := strings.Split(strings.Join(c.Header.Values(name), ","), ",")
		return slices.ContainsFunc(values, func(v string) bool {
			return strings.EqualFold(strings.TrimSpace(v), token)
		})
	}
	_, hijackable := c.w.(http.Hijacker)
	nonce, err := base64.StdEncoding.DecodeString(strings.TrimSpace(c.Header.Get("Sec-WebSocket-Key")))
	validKey := err == nil && len(nonce) == 16 && len(c.Header.Values("Sec-WebSocket-Key")) == 1
	if !hijackable || !c.ProtoAtLeast(1, 1) || !has("Connection", "Upgrade") || !has("Upgrade", "websocket") ||
		c.Header.Get("Sec-WebSocket-Version") != "13" || !validKey {
		c.w.Header().Set("Upgrade", "websocket")
		c.w.Header().Set("Sec-WebSocket-Version", "13")
		return perdure.Errorf(api.CodeUpgrade, "open this path as a WebSocket, version 13")
	}
	return nil
}

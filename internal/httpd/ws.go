package httpd

import (
	"encoding/base64"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/coder/websocket"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/httpd/stream"
)

// A WebSocket shows many runs: a snapshot of the runs that match a filter, then their changes.
//
// The socket keeps an entry for each run that it watches: the last line that it has sent and the
// last status. These are the runs that match, and live ones that may come to match. The doorbell
// tells that something may have changed. The socket then surveys the store: it reads the heads of
// the runs that it watches and of new runs, and then the rows and lines of those that differ from
// their entries. The difference is sent.
//
// The store is the only source, and there is no cursor over all runs: a global sequence would miss
// rows that commit late on PostgreSQL. While a client reads slowly, its socket reads nothing, and
// the next survey finds the latest state. Changes in between are merged.
//
// ws.go opens a socket. socket.go has its entries, its loop and its surveys.

const (
	// maxWatched bounds the runs that a socket watches. It watches the newest ones.
	maxWatched = 1000
	// socketPause is the least time between two surveys of a socket.
	socketPause = 100 * time.Millisecond
	// lingering is how long a run is watched after its end, because lines may follow. A survey
	// looks for new runs as far back, because a run may commit after a newer one.
	lingering = 10 * time.Second
	// changeLines and changeBytes bound the lines of one change, and surveyBytes those of a survey.
	changeLines = 100
	changeBytes = 64 << 10
	surveyBytes = 1 << 20
	// maxSocketReads bounds the sockets that survey at the same time, so that readers of the store
	// are left for other calls.
	maxSocketReads = 2

	// pingEvery is the interval between pings, and maxIncoming bounds a message of the client.
	pingEvery   = 15 * time.Second
	maxIncoming = 4 << 10
)

// openSocket opens a socket. The snapshot is read before the upgrade, so that errors are ordinary
// problems.
func openSocket(c *call) error {
	f, err := c.runFilter(200)
	if err != nil {
		return err
	}
	lines := true
	switch c.URL.Query().Get("events") {
	case "", "true":
	case "false":
		lines = false
	default:
		return perdure.Invalid("events", "takes true or false")
	}
	if err := c.checkUpgrade(); err != nil {
		return err
	}
	release, err := c.acquire(stream.Socket)
	if err != nil {
		return err
	}
	valid, forget := c.s.keyWatcher.watch(c.key.ID)
	w := &socket{s: c.s, tenant: c.tenant(), filter: f, lines: lines, revoked: valid.Done(),
		watched: make(map[perdure.RunID]watched)}
	close := func() {
		w.unlisten()
		forget()
		release()
	}
	w.listen() // before the snapshot is read, so that no change is missed
	var first *api.Snapshot
	if err = c.checkKey(); err == nil {
		first, err = w.snapshot(c.Context())
	}
	if err != nil {
		close()
		return err
	}
	// checkUpgrade has checked the origin.
	w.conn, err = websocket.Accept(c.w, c.Request, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		close()
		return nil // Accept has answered
	}
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

// checkUpgrade refuses requests that are no WebSocket handshake, and pages of origins that are not
// configured. Browsers let any page open a socket to any server.
func (c *call) checkUpgrade() error {
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

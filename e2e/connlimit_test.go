package e2e

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/tlstest"
)

// A server with the maximum of streams still answers other callers, each on a new connection.
func TestStreamsLeaveFileDescriptorsForTheRest(t *testing.T) {
	n := prepareNode(t)
	n.files = 700
	n.start()
	const streams = 700 * 3 / 4
	id := n.submit(obj{"kind": "job", "queue": "nobody"}).RunID
	attach := func() int {
		c, err := net.Dial("tcp", n.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		fmt.Fprintf(c, "GET /api/v1/runs/%s/stream HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n",
			id, n.key)
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode
	}
	for i := range streams {
		if status := attach(); status != 200 {
			t.Fatalf("stream %d of %d: %d", i, streams, status)
		}
	}
	for range 3 {
		if status := attach(); status != 503 {
			t.Errorf("stream beyond the limit: status %d, want 503", status)
		}
	}
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(func() {
			c := &http.Client{Transport: &http.Transport{}}
			defer c.CloseIdleConnections()
			for path, want := range map[string]int{"/healthz": 200, "/api/v1/runs/" + id: 200,
				"/api/v1/runs/" + id + "/join?timeout=1h": 202} {
				res, _, err := exchange(c, n.key, "GET", "http://"+n.addr+path, "", nil)
				if err != nil || res.StatusCode != want {
					t.Errorf("GET %s beside all streams: %v (error %v), want status %d", path, res, err, want)
				}
			}
		})
	}
	wg.Wait()
}

// Idle connections don't keep others out, however many there are and whatever they requested
// before.
func TestIdleConnectionsLeaveFileDescriptorsForTheRest(t *testing.T) {
	n := prepareNode(t)
	n.files = 256
	n.start()
	idle := make([]*bufio.Reader, 400)
	for i := range idle {
		c, err := net.Dial("tcp", n.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		idle[i] = bufio.NewReader(c)
		fmt.Fprint(c, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
		res, err := http.ReadResponse(idle[i], nil)
		if err != nil || res.StatusCode != 200 {
			t.Fatalf("connection %d of %d: health is %v %v, want 200", i+1, len(idle), res, err)
		}
		if _, err := io.Copy(io.Discard, res.Body); err != nil {
			t.Fatal(err)
		}
	}
	id := n.submit(obj{"kind": "job", "queue": "nobody"}).RunID
	if got := n.get(id).State; got != "queued" {
		t.Errorf("run %s: state = %s, want queued", id, got)
	}
	if _, err := idle[0].ReadByte(); err != io.EOF {
		t.Errorf("the connection that was idle for longest: %v, want that the server closed it", err)
	}
}

// Clients that send half a TLS handshake, a byte at a time, take all connections that they can get.
// Those of callers with a key stay open, and such a caller can connect anew.
func TestHalfHandshakesCloseNoConnectionWithAKey(t *testing.T) {
	t.Parallel()
	ca, dir := tlstest.New(t), t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	ca.Issue(cert, key, time.Now().Add(time.Hour))
	n := prepareNode(t, "--tls-cert", cert, "--tls-key", key)
	n.files, n.tls, n.log = 128, ca.Pool(), io.Discard
	n.start()
	authorized := func(c *http.Client, when string) (reused bool) {
		t.Helper()
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			GotConn: func(i httptrace.GotConnInfo) { reused = i.Reused }})
		req, err := http.NewRequestWithContext(ctx, "GET", "https://"+n.addr+"/api/v1/runs", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+n.key)
		res, err := c.Do(req)
		if err != nil {
			t.Fatalf("call with a key %s: %v", when, err)
		}
		defer res.Body.Close()
		if _, err := io.Copy(io.Discard, res.Body); err != nil || res.StatusCode != 200 {
			t.Fatalf("call with a key %s: %d %v, want 200", when, res.StatusCode, err)
		}
		return reused
	}
	newClient := func() *http.Client {
		tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.Pool()}}
		t.Cleanup(tr.CloseIdleConnections)
		return &http.Client{Transport: tr}
	}
	callers := make([]*http.Client, 10)
	for i := range callers {
		callers[i] = newClient()
		authorized(callers[i], "before")
	}
	var attack sync.WaitGroup
	defer attack.Wait()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var made atomic.Int64
	for range 120 {
		attack.Go(func() {
			for ctx.Err() == nil {
				halfHandshake(ctx, n.addr, &made)
			}
		})
	}
	eventually.True(t, "half handshakes take all connections, several times", func() bool { return made.Load() > 190 })
	for _, c := range callers {
		if !authorized(c, "during half handshakes") {
			t.Error("the connection of a caller with a key was closed")
		}
	}
	authorized(newClient(), "of a new caller during half handshakes")
}

// halfHandshake connects, and sends half a ClientHello, slowly, until it is cut off.
func halfHandshake(ctx context.Context, addr string, made *atomic.Int64) {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return
	}
	defer c.Close()
	made.Add(1)
	// The header of a ClientHello of 512 bytes, and some of it.
	for _, b := range append([]byte{22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3}, make([]byte, 256)...) {
		if _, err := c.Write([]byte{b}); err != nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

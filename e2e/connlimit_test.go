package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
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

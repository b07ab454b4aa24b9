package e2e

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"sync"
	"testing"
)

// A server with as many streams as it may have answers everybody else, each on a new connection.
func TestStreamsLeaveFileDescriptorsForTheRest(t *testing.T) {
	n := prepareNode(t)
	n.files = 700
	n.start()
	const seats = 700 - 512
	id := n.submit(obj{"kind": "job", "queue": "nobody"}).RunID
	attach := func() int {
		c, err := net.Dial("tcp", n.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		fmt.Fprintf(c, "GET /api/v1/runs/%s/stream HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n", id, n.key)
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode
	}
	for i := range seats {
		if status := attach(); status != 200 {
			t.Fatalf("stream %d of %d: %d", i, seats, status)
		}
	}
	for range 3 {
		if status := attach(); status != 503 {
			t.Errorf("one too many: %d", status)
		}
	}
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(func() {
			c := &http.Client{Transport: &http.Transport{}}
			defer c.CloseIdleConnections()
			for path, want := range map[string]int{"/healthz": 200, "/api/v1/runs/" + id: 200, "/api/v1/runs/" + id + "/join?timeout=1h": 202} {
				res, _, err := exchange(c, n.key, "GET", "http://"+n.addr+path, "", nil)
				if err != nil || res.StatusCode != want {
					t.Errorf("%s: %v %v", path, res, err)
				}
			}
		})
	}
	wg.Wait()
}

package httpd

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// A body that never comes costs its connection, and a call that blocks for longer than a body may take does not.
func TestSlowBodies(t *testing.T) {
	w := newWorld(t, setup{})
	w.s.opt.BodyTimeout = 200 * time.Millisecond
	hs := httptest.NewServer(w.s.Handler())
	defer hs.Close()

	conn, err := net.Dial("tcp", hs.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST /api/v1/runs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{", w.admin)
	conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || res.StatusCode != http.StatusBadRequest {
		t.Errorf("%v %v", res, err)
	}

	begin := time.Now()
	polled := w.as(w.admin).do("POST", "/api/v1/workers/w/poll", `{"slots":1,"wait":"700ms"}`)
	if polled.is(200); time.Since(begin) < 600*time.Millisecond {
		t.Errorf("the poll came back after %s", time.Since(begin))
	}
}

package httpd

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/testkit/eventually"
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
	fmt.Fprintf(conn, "POST /api/v1/runs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: "+
		"application/json\r\nContent-Length: 100\r\n\r\n{", w.admin)
	conn.SetReadDeadline(time.Now().Add(eventually.Within))
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

// A client that writes all of its body before it reads still gets the answer to one that is too large, and not a broken
// pipe.
func TestClientThatWritesFirstSeesTooLarge(t *testing.T) {
	w := newWorld(t, setup{})
	w.e.Policy().ArtifactMaxBytes = 1 << 20
	hs := httptest.NewServer(w.s.Handler())
	defer hs.Close()
	g := w.running(`{"kind":"job"}`)
	artifact := fmt.Sprintf("PUT /api/v1/runs/%s/artifacts/x?epoch=%v", g["run_id"], g["epoch"])
	for _, c := range []struct{ name, call, length string }{
		{"with a length", "POST /api/v1/runs", fmt.Sprint("Content-Length: ", 2*maxBody)},
		{"in chunks", "POST /api/v1/runs", "Transfer-Encoding: chunked"},
		{"an artifact", artifact, fmt.Sprint("Content-Length: ", 2*maxBody)},
	} {
		conn, err := net.Dial("tcp", hs.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(eventually.Within))
		fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: "+
			"application/json\r\n%s\r\n\r\n", c.call, w.key, c.length)
		body := io.WriteCloser(plainBody{conn})
		if c.name == "in chunks" {
			body = httputil.NewChunkedWriter(conn)
		}
		if _, err := io.CopyN(body, spaces{}, 2*maxBody); err != nil {
			t.Errorf("%s: the body can't be written: %v", c.name, err)
			continue
		}
		body.Close()
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || res.StatusCode != http.StatusRequestEntityTooLarge {
			t.Errorf("%s: %v %v, want 413", c.name, res, err)
		}
	}
}

// spaces are as many as are read.
type spaces struct{}

func (spaces) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = ' '
	}
	return len(b), nil
}

type plainBody struct{ io.Writer }

func (plainBody) Close() error { return nil }

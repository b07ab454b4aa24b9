package connlimit

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/testkit/eventually"
)

func TestPlanDividesDescriptors(t *testing.T) {
	for _, c := range []struct{ descriptors, conns, streams int64 }{
		{64, 16, 12}, {128, 80, 75}, {256, 208, 192}, {512, 448, 384}, {1024, 896, 768}, {20000, 19488, 15000},
	} {
		p := PlanFor(c.descriptors)
		if p.Conns != c.conns || p.Streams != c.streams {
			t.Errorf("%d descriptors: %d connections and %d streams, want %d and %d",
				c.descriptors, p.Conns, p.Streams, c.conns, c.streams)
		}
		if p.Blocking >= p.Conns || p.Polls > p.Blocking || p.Conns >= p.Descriptors {
			t.Errorf("%d descriptors: %+v leaves no connection for short calls", c.descriptors, p)
		}
	}
	if Check(MinDescriptors-1) == nil || Check(MinDescriptors) != nil {
		t.Errorf("Check does not begin to accept at %d descriptors", MinDescriptors)
	}
}

// serve starts a server with a limiter. /busy blocks with a busy connection, /known is a call with a valid key; other
// paths answer at once.
func serve(t *testing.T, conns int64) (l *Limiter, addr string, release chan struct{}) {
	t.Helper()
	l, hs, release := prepare(t, conns, true)
	hs.Start()
	return l, hs.Listener.Addr().String(), release
}

// prepare makes such a server, which is not started yet.
func prepare(t *testing.T, conns int64, plain bool) (l *Limiter, hs *httptest.Server, release chan struct{}) {
	t.Helper()
	l, release = New(conns, plain), make(chan struct{})
	l.grace = 50 * time.Millisecond
	hs = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/busy" {
			defer Busy(r.Context(), "someone")()
			<-release
		}
		if r.URL.Path == "/known" {
			defer Busy(r.Context(), "someone")()
		}
		if r.URL.Path == "/slow" {
			io.Copy(io.Discard, r.Body)
		}
		fmt.Fprint(w, "ok")
	}))
	hs.Listener = l.Listen(hs.Listener)
	l.Attach(hs.Config)
	t.Cleanup(hs.Close)
	return l, hs, release
}

func dial(t *testing.T, addr, path string) (net.Conn, *bufio.Reader) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(eventually.Within))
	if path != "" {
		fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path)
	}
	return c, bufio.NewReader(c)
}

func status(t *testing.T, r *bufio.Reader) (int, string) {
	t.Helper()
	res, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatalf("read an answer: %v", err)
	}
	defer res.Body.Close()
	var b [1 << 10]byte
	n, _ := res.Body.Read(b[:])
	return res.StatusCode, string(b[:n])
}

func TestLongestIdleConnectionIsEvicted(t *testing.T) {
	l, addr, release := serve(t, 4)
	dial(t, addr, "/busy")
	eventually.True(t, "the busy call is under way", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.tenants["someone"] == 1
	})
	var idle []*bufio.Reader
	for i := range 3 {
		_, r := dial(t, addr, "/")
		if code, _ := status(t, r); code != 200 {
			t.Fatalf("status = %d, want 200", code)
		}
		idle = append(idle, r)
		eventually.True(t, "it is idle, and longer than the next one", func() bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.idle.Len() == i+1
		})
	}
	for i := range 3 {
		_, r := dial(t, addr, "/")
		if code, body := status(t, r); code != 200 {
			t.Fatalf("newcomer %d at a full server: %d %s, want 200", i, code, body)
		}
		if _, err := idle[i].ReadByte(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("idle connection %d is still open: %v", i, err)
		}
	}
	if l.Open() != 4 || l.Evicted() != 3 || l.Refused() != 0 {
		t.Errorf("open %d, evicted %d, refused %d, want 4, 3, 0", l.Open(), l.Evicted(), l.Refused())
	}
	close(release)
}

func TestConnectionOverTheLimitGets503(t *testing.T) {
	l, addr, release := serve(t, 2)
	for n := range int64(2) {
		dial(t, addr, "/busy")
		eventually.True(t, "the busy call is under way", func() bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.open == n+1 && l.idle.Len()+l.young.Len() == 0
		})
	}
	_, r := dial(t, addr, "/")
	if code, body := status(t, r); code != 503 || !strings.Contains(body, `"code":"unavailable"`) {
		t.Errorf("over the limit: %d %s, want 503 unavailable", code, body)
	}
	if l.Refused() != 1 || l.Open() != 2 {
		t.Errorf("refused %d, open %d, want 1 and 2", l.Refused(), l.Open())
	}
	close(release)
	eventually.True(t, "the connection of a finished call is evicted", func() bool {
		c, r := dial(t, addr, "/")
		defer c.Close()
		code, _ := status(t, r)
		return code == 200
	})
}

func TestConnectionsWithPartialRequestsAreEvicted(t *testing.T) {
	l, addr, _ := serve(t, 3)
	for range 3 {
		c, _ := dial(t, addr, "")
		fmt.Fprint(c, "GET / HT")
	}
	eventually.True(t, "they are connected", func() bool { return l.Open() == 3 })
	_, r := dial(t, addr, "/")
	if code, _ := status(t, r); code != 200 {
		t.Errorf("status = %d, want 200", code)
	}
}

func TestClosedConnectionsAreNotCounted(t *testing.T) {
	l, addr, _ := serve(t, 8)
	for range 5 {
		c, r := dial(t, addr, "/")
		status(t, r)
		c.Close()
	}
	eventually.True(t, "no connection is counted", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.open == 0 && l.idle.Len()+l.young.Len() == 0
	})
}

// Callers without a key close their own connections and those of others without a key, whatever they do slowly. They
// close no connection of a caller with a key, idle or not.
func TestHalfRequestsWithoutAKeyCloseNoConnectionOfOthers(t *testing.T) {
	for name, begin := range map[string]string{
		"nothing, as in half a handshake": "",
		"slow headers":                    "GET /known HTTP/1.1\r\nHost: localh",
		"a slow body":                     "POST /slow HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nx",
	} {
		t.Run(name, func(t *testing.T) {
			const conns = 16
			l, addr, blocked := serve(t, conns)
			release := sync.OnceFunc(func() { close(blocked) })
			defer release()
			_, busy := dial(t, addr, "/busy")
			type caller struct {
				net.Conn
				*bufio.Reader
			}
			var known []caller
			for range conns/2 - 1 {
				c, r := dial(t, addr, "/known")
				if code, _ := status(t, r); code != 200 {
					t.Fatalf("a call with a key at a server with room: %d, want 200", code)
				}
				known = append(known, caller{c, r})
			}
			for range 2 * conns { // each closes one of its own kind when the server is full
				c, _ := dial(t, addr, "")
				fmt.Fprint(c, begin)
			}
			eventually.True(t, "every half request was let in", func() bool { return l.Evicted() == 2*conns-conns/2 })
			for i, c := range known {
				fmt.Fprint(c, "GET /known HTTP/1.1\r\nHost: localhost\r\n\r\n")
				if code, _ := status(t, c.Reader); code != 200 {
					t.Errorf("connection %d of a caller with a key: %d, want 200", i, code)
				}
			}
			// Somebody new with a key gets in, too.
			_, r := dial(t, addr, "/known")
			if code, body := status(t, r); code != 200 {
				t.Errorf("a new caller with a key: %d %s, want 200", code, body)
			}
			release()
			if code, _ := status(t, busy); code != 200 {
				t.Errorf("the call that was in progress: %d, want 200", code)
			}
		})
	}
}

// A half handshake of TLS is a connection without a key, however slowly it goes on. It closes no
// connection of a caller with a key, and keeps nobody with a key out.
func TestHalfHandshakesCloseNoConnectionOfOthers(t *testing.T) {
	const conns = 16
	l, hs, blocked := prepare(t, conns, false)
	hs.StartTLS()
	release := sync.OnceFunc(func() { close(blocked) })
	defer release()
	trust := hs.Client().Transport.(*http.Transport).TLSClientConfig
	secure := func(path string) (net.Conn, *bufio.Reader) {
		t.Helper()
		raw, _ := dial(t, hs.Listener.Addr().String(), "")
		c := tls.Client(raw, &tls.Config{RootCAs: trust.RootCAs, ServerName: "example.com"})
		fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path)
		return c, bufio.NewReader(c)
	}
	_, busy := secure("/busy")
	type caller struct {
		net.Conn
		*bufio.Reader
	}
	var known []caller
	for range conns/2 - 1 {
		c, r := secure("/known")
		if code, _ := status(t, r); code != 200 {
			t.Fatalf("a call with a key at a server with room: %d, want 200", code)
		}
		known = append(known, caller{c, r})
	}
	// The header of a ClientHello of 512 bytes, and a byte of it now and then.
	hello := append([]byte{22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3}, make([]byte, 256)...)
	stop := make(chan struct{})
	var slow sync.WaitGroup
	defer slow.Wait()
	defer close(stop)
	for range 2 * conns {
		c, _ := dial(t, hs.Listener.Addr().String(), "")
		slow.Go(func() {
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			for _, b := range hello {
				if _, err := c.Write([]byte{b}); err != nil {
					return
				}
				select {
				case <-tick.C:
				case <-stop:
					return
				}
			}
		})
	}
	eventually.True(t, "every half handshake was let in", func() bool { return l.Evicted() >= 2*conns-conns/2 })
	for i, c := range known {
		fmt.Fprint(c, "GET /known HTTP/1.1\r\nHost: localhost\r\n\r\n")
		if code, _ := status(t, c.Reader); code != 200 {
			t.Errorf("connection %d of a caller with a key: %d, want 200", i, code)
		}
	}
	_, r := secure("/known")
	if code, body := status(t, r); code != 200 {
		t.Errorf("a new caller with a key: %d %s, want 200", code, body)
	}
	release()
	if code, _ := status(t, busy); code != 200 {
		t.Errorf("the call that was in progress: %d, want 200", code)
	}
}

// If all connections are those of callers with a key, the longest idle makes room.
func TestKnownConnectionsMakeRoomForOneAnother(t *testing.T) {
	l, addr, _ := serve(t, 8)
	var readers []*bufio.Reader
	for range 20 {
		_, r := dial(t, addr, "/known")
		if code, body := status(t, r); code != 200 {
			t.Fatalf("a call with a key: %d %s, want 200", code, body)
		}
		readers = append(readers, r)
	}
	if l.Refused() != 0 {
		t.Errorf("%d connections were refused, want none", l.Refused())
	}
	if _, err := readers[0].ReadByte(); err == nil {
		t.Error("the connection that was idle for longest is still open")
	}
}

package webhook

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"
)

var loopback = &Guard{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}}

// soon is the timeout of attempts that are expected to time out.
const soon = 150 * time.Millisecond

func sender(t *testing.T, opt HTTPOptions) *HTTP {
	s := NewHTTP(opt)
	t.Cleanup(s.Close)
	return s
}

func to(url string) Message {
	return Message{ID: "dlv_1", URL: url, Secrets: []string{one}, Body: []byte(`{"type":"run:completed"}`)}
}

// A sink is an HTTP receiver that counts its requests.
type sink struct {
	*httptest.Server
	hits atomic.Int32
}

func newSink(t *testing.T, secure bool, answer func(w http.ResponseWriter, r *http.Request)) *sink {
	t.Helper()
	s := &sink{}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.hits.Add(1)
		body, _ := io.ReadAll(r.Body) // a handler notices that the sender is gone only after reading the body
		r.Body = io.NopCloser(bytes.NewReader(body))
		answer(w, r)
	}))
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	if secure {
		s.EnableHTTP2 = true
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return s
}

// raw starts a TCP server that reads a request and answers with raw bytes. It returns the URL.
func raw(t *testing.T, answer func(net.Conn)) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
					answer(c)
				}
			}()
		}
	}()
	return "http://" + l.Addr().String()
}

func TestMessageArrivesSigned(t *testing.T) {
	var failed atomic.Pointer[string]
	s := newSink(t, false, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		complain := func(text string) { failed.Store(&text) }
		if err := verify(t, one, r.Header, body); err != nil {
			complain(err.Error())
		}
		if r.Method != "POST" || r.Header.Get("Content-Type") != "application/json" || r.UserAgent() != "perdure/7" ||
			r.Header.Get("Accept-Encoding") != "" || r.ContentLength != int64(len(body)) {
			complain(fmt.Sprint("unexpected request: ", r.Method, r.Header))
		}
		io.WriteString(w, "thank you")
	})
	m := to(s.URL + "/hook?a=b")
	m.Secrets = []string{two, one}
	r := sender(t, HTTPOptions{Guard: loopback, Agent: "perdure/7"}).Send(t.Context(), m)
	if f := failed.Load(); f != nil {
		t.Errorf("the receiver complains: %s", *f)
	}
	if r.Status != 200 || r.Err != "" || r.Response != "thank you" || r.Took <= 0 {
		t.Errorf("result: %+v, want 200 with \"thank you\"", r)
	}
}

func TestAnyStatusIsAResult(t *testing.T) {
	for _, status := range []int{200, 201, 202, 204, 299, 304, 400, 404, 410, 429, 500, 503} {
		s := newSink(t, false, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
		if r := sender(t, HTTPOptions{Guard: loopback}).Send(t.Context(), to(s.URL)); r.Status != status ||
			r.Err != "" {
			t.Errorf("a receiver that answers %d: %+v, want that status and no error", status, r)
		}
	}
}

func TestRedirectIsNotFollowed(t *testing.T) {
	target := newSink(t, false, func(http.ResponseWriter, *http.Request) {})
	for _, status := range []int{301, 302, 303, 307, 308} {
		s := newSink(t, false, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, target.URL, status) })
		r := sender(t, HTTPOptions{Guard: loopback}).Send(t.Context(), to(s.URL))
		if r.Status != status || s.hits.Load() != 1 {
			t.Errorf("a receiver that redirects with %d: %+v after %d requests, want that status after 1",
				status, r, s.hits.Load())
		}
	}
	if n := target.hits.Load(); n != 0 {
		t.Errorf("the target of the redirect got %d requests, want 0", n)
	}
}

func TestRetryAfterInSecondsOrAsDate(t *testing.T) {
	now := time.Date(2026, 11, 15, 8, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Duration{
		"": 0, "0": 0, "7": 7 * time.Second, " 120 ": 2 * time.Minute, "86400": 24 * time.Hour,
		"86401": 24 * time.Hour, "99999999999999999999": 24 * time.Hour,
		"-1": 0, "1.5": 0, "soon": 0, "1e3": 0,
		now.Add(90 * time.Second).Format(http.TimeFormat): 90 * time.Second,
		now.Add(-time.Hour).Format(http.TimeFormat):       0,
		now.AddDate(5, 0, 0).Format(http.TimeFormat):      24 * time.Hour,
	} {
		if got := retryAfter(text, now); got != want {
			t.Errorf("retryAfter(%q) = %s, want %s", text, got, want)
		}
	}
	s := newSink(t, false, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "30")
		w.WriteHeader(429)
	})
	r := sender(t, HTTPOptions{Guard: loopback}).Send(t.Context(), to(s.URL))
	if r.Status != 429 || r.RetryAfter != 30*time.Second {
		t.Errorf("result: %+v, want 429 and Retry-After 30s", r)
	}
}

// The receivers are at the other end of a pipe, so that time is virtual and the attempt takes
// exactly its timeout.
func TestAttemptEndsWithItsTimeout(t *testing.T) {
	hang := func(c net.Conn) { io.Copy(io.Discard, c) }
	drip := func(first, then string) func(net.Conn) {
		return func(c net.Conn) {
			if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
				return
			}
			for _, err := io.WriteString(c, first); err == nil; _, err = io.WriteString(c, then) {
				time.Sleep(20 * time.Millisecond)
			}
		}
	}
	for _, x := range []struct {
		name, scheme string
		answer       func(net.Conn)
		status       int
	}{
		{"hangs", "http", hang, 0},
		{"never speaks TLS", "https", hang, 0},
		{"drips its headers", "http", drip("HTTP/1.1 200 OK\r\n", "X: y\r\n"), 0},
		{"drips its status", "http", drip(" ", " "), 0},
		{"drips its body", "http", drip("HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", "."), 200},
		{"drips chunks", "http", drip("HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n", "1\r\n.\r\n"), 500},
	} {
		synctest.Test(t, func(t *testing.T) {
			var peer sync.WaitGroup
			h := sender(t, HTTPOptions{Guard: loopback})
			// The receiver is started here, not in the dial. An attempt that ends by its timeout
			// does not synchronize with the transport's dial goroutine, so Add there would race
			// with Wait here.
			ours, theirs := net.Pipe()
			peer.Go(func() {
				defer theirs.Close()
				x.answer(theirs)
			})
			defer peer.Wait() // it ends when the transport has closed its connection
			var dials atomic.Int32
			h.by[x.scheme].DialContext = func(context.Context, string, string) (net.Conn, error) {
				if n := dials.Add(1); n > 1 {
					return nil, fmt.Errorf("dial %d of one attempt", n)
				}
				return ours, nil
			}
			want := ""
			if x.status == 0 {
				want = "no answer within 15s"
			}
			r := h.Send(t.Context(), to(x.scheme+"://127.0.0.1"))
			if r.Status != x.status || r.Err != want || r.Took != AttemptTimeout {
				t.Errorf("a receiver that %s: %+v, want status %d and %q after %s", x.name, r, x.status, want,
					AttemptTimeout)
			}
		})
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts in the kernel, and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for _, scheme := range []string{"http", "https"} {
		h := sender(t, HTTPOptions{Guard: loopback, Timeout: soon})
		r := h.Send(t.Context(), to(scheme+"://"+silent.Addr().String()))
		if r.Status != 0 || r.Err != "no answer within 150ms" || r.Took < soon {
			t.Errorf("a receiver that never answers by %s: %+v, want a timeout after %s", scheme, r, soon)
		}
	}
}

func TestAnswerSizeIsLimited(t *testing.T) {
	endless := newSink(t, false, func(w http.ResponseWriter, _ *http.Request) {
		b := bytes.Repeat([]byte("é"), 1<<15)
		for {
			if _, err := w.Write(b); err != nil {
				return
			}
		}
	})
	r := sender(t, HTTPOptions{Guard: loopback}).Send(t.Context(), to(endless.URL))
	if n := len(r.Response); r.Status != 200 || n > keptAnswer || n < keptAnswer-1 || !utf8.ValidString(r.Response) {
		t.Errorf("an endless body: %d bytes kept, want about %d: %+v", n, keptAnswer, r)
	}

	headers := raw(t, func(c net.Conn) {
		long := strings.Repeat("X-Long: "+strings.Repeat("x", 1000)+"\r\n", 40)
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n"+long+"\r\n")
	})
	if r := sender(t, HTTPOptions{Guard: loopback}).Send(t.Context(), to(headers)); r.Status != 0 || r.Err == "" {
		t.Errorf("40 KB of headers: %+v, want an error", r)
	}

	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	z.Write(make([]byte, 10<<20))
	z.Close()
	packed := newSink(t, false, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		w.Write(bomb.Bytes())
	})
	r = sender(t, HTTPOptions{Guard: loopback}).Send(t.Context(), to(packed.URL))
	if r.Status != 200 || len(r.Response) > bomb.Len() {
		t.Errorf("a compressed answer: %+v, want it not decompressed", r)
	}
}

func TestStoredAnswerHasNoControlCharacters(t *testing.T) {
	for in, want := range map[string]string{
		"plain": "plain", "": "", " \n two\nlines\t ": "two lines", "a\x00b\x1b[31mc\x7f": "ab[31mc",
		"bad\xff\xfeutf": "badutf", "\u202eevil\u200b": "evil", "grün ✓": "grün ✓",
	} {
		if got := printable([]byte(in)); got != want {
			t.Errorf("printable(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestConnectionIsReusedUnlessTheAnswerIsTooLong(t *testing.T) {
	for _, x := range []struct{ size, conns int }{{10, 1}, {maxAnswer, 1}, {maxAnswer + 4096, 3}} {
		var mu sync.Mutex
		conns := make(map[string]bool)
		s := newSink(t, false, func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			conns[r.RemoteAddr] = true
			mu.Unlock()
			w.Write(make([]byte, x.size))
		})
		h := sender(t, HTTPOptions{Guard: loopback})
		for range 3 {
			h.Send(t.Context(), to(s.URL))
		}
		mu.Lock()
		if len(conns) != x.conns {
			t.Errorf("answers of %d bytes: %d connections for three messages, want %d", x.size, len(conns), x.conns)
		}
		mu.Unlock()
	}
}

func TestErrorsContainNoAddresses(t *testing.T) {
	secure := newSink(t, true, func(http.ResponseWriter, *http.Request) {})
	plain := newSink(t, false, func(http.ResponseWriter, *http.Request) {})
	var nowhere atomic.Pointer[netip.Addr]
	unknown := *loopback
	unknown.Resolver = nameserver(t, &nowhere)
	for _, x := range []struct {
		name, url, want string
		guard           *Guard
	}{
		{"refuses", "http://127.0.0.1:1", "the connection was refused", loopback},
		{"resets", raw(t, func(c net.Conn) { c.(*net.TCPConn).SetLinger(0) }),
			"the connection was closed without an answer", loopback},
		{"hangs up", raw(t, func(net.Conn) {}), "the connection was closed without an answer", loopback},
		{"speaks another protocol", raw(t, func(c net.Conn) { io.WriteString(c, "220 mail.example ESMTP\r\n") }),
			"the answer could not be read", loopback},
		{"has an untrusted certificate", secure.URL, "the certificate is not trusted", loopback},
		{"has no TLS", strings.Replace(plain.URL, "http:", "https:", 1), "TLS could not be agreed on", loopback},
		{"has no name", "https://nobody.example", "the name does not exist", &unknown},
		{"is private", secure.URL, "the address is not public, and its network is not allowed", &Guard{}},
		{"has a URL that is no longer valid", "ftp://example.com", "the URL can't be used any more", loopback},
	} {
		r := sender(t, HTTPOptions{Guard: x.guard}).Send(t.Context(), to(x.url))
		if r.Status != 0 || r.Err != x.want {
			t.Errorf("a receiver that %s: %+v, want %q", x.name, r, x.want)
		}
	}
	if secure.hits.Load()+plain.hits.Load() != 0 {
		t.Error("a message was sent over an untrusted connection")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := sender(t, HTTPOptions{Guard: loopback}).Send(ctx, to(plain.URL))
	if want := "the attempt was given up: the server shuts down"; r.Err != want {
		t.Errorf("with an ended context: %+v, want %q", r, want)
	}
}

func TestCertificateMustBeForTheName(t *testing.T) {
	s := newSink(t, true, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Proto) })
	h := sender(t, HTTPOptions{Guard: loopback})
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	h.by["https"].TLSClientConfig.RootCAs = pool
	if r := h.Send(t.Context(), to(s.URL)); r.Status != 200 || r.Response != "HTTP/2.0" {
		t.Errorf("the right name: %+v, want 200 over HTTP/2.0", r)
	}
	_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	if r := h.Send(t.Context(), to("https://localhost:"+port)); r.Err != "the certificate is for another name" {
		t.Errorf("another name: %+v, want an error about the name", r)
	}
	old := httptest.NewUnstartedServer(http.NotFoundHandler())
	old.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	old.TLS = &tls.Config{MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10}
	old.StartTLS()
	defer old.Close()
	if r := h.Send(t.Context(), to(old.URL)); r.Status != 0 || r.Err != "TLS could not be agreed on" {
		t.Errorf("TLS 1.1: %+v, want an error about TLS", r)
	}
}

func TestNameIsCheckedAgainWhenDialled(t *testing.T) {
	s := newSink(t, true, func(http.ResponseWriter, *http.Request) {})
	_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	const want = "the address is not public, and its network is not allowed"
	if r := sender(t, HTTPOptions{}).Send(t.Context(), to("https://localhost:"+port)); r.Err != want {
		t.Errorf("localhost: %+v, want %q", r, want)
	}
	if r := sender(t, HTTPOptions{}).Send(t.Context(), to("http://localhost:"+port)); r.Err != want {
		t.Errorf("localhost by http: %+v, want %q", r, want)
	}

	// The name resolves to a public address when it is saved, and to a private one when it is
	// dialled.
	var answer atomic.Pointer[netip.Addr]
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	g := &Guard{Resolver: nameserver(t, &answer), Ports: []int{n}}
	before, after := netip.MustParseAddr("8.8.8.8"), netip.MustParseAddr("127.0.0.1")
	answer.Store(&before)
	url := "https://rebound.example:" + port
	if err := g.CheckURL(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	answer.Store(&after)
	if r := sender(t, HTTPOptions{Guard: g}).Send(t.Context(), to(url)); r.Err != want {
		t.Errorf("a name that was rebound: %+v, want %q", r, want)
	}
	if n := s.hits.Load(); n != 0 {
		t.Errorf("%d requests arrived, want 0", n)
	}
}

func TestNoProxyIsUsed(t *testing.T) {
	proxy := newSink(t, false, func(http.ResponseWriter, *http.Request) {})
	t.Setenv("HTTP_PROXY", proxy.URL)
	t.Setenv("HTTPS_PROXY", proxy.URL)
	t.Setenv("NO_PROXY", "")
	h := sender(t, HTTPOptions{Timeout: soon})
	h.Send(t.Context(), to("https://127.0.0.1:1/"))
	if n := proxy.hits.Load(); n != 0 {
		t.Errorf("the proxy got %d requests, want 0", n)
	}
	// Go never uses the proxy of the environment for loopback addresses, so the check above is not
	// enough.
	for scheme, tr := range h.by {
		if tr.Proxy != nil {
			t.Errorf("the transport of %s has a proxy function, want none", scheme)
		}
	}
}

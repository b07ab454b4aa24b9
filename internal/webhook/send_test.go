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

// soon is the timeout of attempts that are meant to run into it.
const soon = 150 * time.Millisecond

func sender(t *testing.T, opt HTTPOptions) *HTTP {
	s := NewHTTP(opt)
	t.Cleanup(s.Close)
	return s
}

func to(url string) Message {
	return Message{ID: "dlv_1", URL: url, Secrets: []string{one}, Body: []byte(`{"type":"run:completed"}`)}
}

// A sink is a receiver that counts what it gets.
type sink struct {
	*httptest.Server
	hits atomic.Int32
}

func newSink(t *testing.T, secure bool, answer func(w http.ResponseWriter, r *http.Request)) *sink {
	t.Helper()
	s := &sink{}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.hits.Add(1)
		body, _ := io.ReadAll(r.Body) // whoever has not read the body does not notice that the sender has gone
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

// raw is a receiver that writes bytes of its own.
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

func TestAMessageArrivesSigned(t *testing.T) {
	var failed atomic.Pointer[string]
	s := newSink(t, false, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		complain := func(text string) { failed.Store(&text) }
		if err := verify(t, one, r.Header, body); err != nil {
			complain(err.Error())
		}
		if r.Method != "POST" || r.Header.Get("Content-Type") != "application/json" || r.UserAgent() != "perdure/7" || r.Header.Get("Accept-Encoding") != "" || r.ContentLength != int64(len(body)) {
			complain(fmt.Sprint(r.Method, r.Header))
		}
		io.WriteString(w, "thank you")
	})
	m := to(s.URL + "/hook?a=b")
	m.Secrets = []string{two, one}
	r := sender(t, HTTPOptions{Guard: loopback, Agent: "perdure/7"}).Send(t.Context(), m)
	if f := failed.Load(); f != nil {
		t.Error(*f)
	}
	if r.Status != 200 || r.Err != "" || r.Response != "thank you" || r.Took <= 0 {
		t.Errorf("%+v", r)
	}
}

func TestAnyStatusIsAResult(t *testing.T) {
	for _, status := range []int{200, 201, 202, 204, 299, 304, 400, 404, 410, 429, 500, 503} {
		s := newSink(t, false, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
		if r := sender(t, HTTPOptions{Guard: loopback}).Send(t.Context(), to(s.URL)); r.Status != status || r.Err != "" {
			t.Errorf("%d: %+v", status, r)
		}
	}
}

func TestARedirectIsNotFollowed(t *testing.T) {
	target := newSink(t, false, func(http.ResponseWriter, *http.Request) {})
	for _, status := range []int{301, 302, 303, 307, 308} {
		s := newSink(t, false, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, target.URL, status) })
		if r := sender(t, HTTPOptions{Guard: loopback}).Send(t.Context(), to(s.URL)); r.Status != status || s.hits.Load() != 1 {
			t.Errorf("%d: %+v after %d requests", status, r, s.hits.Load())
		}
	}
	if n := target.hits.Load(); n != 0 {
		t.Errorf("the target was asked %d times", n)
	}
}

func TestRetryAfterIsReadInBothForms(t *testing.T) {
	now := time.Date(2026, 11, 15, 8, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Duration{
		"": 0, "0": 0, "7": 7 * time.Second, " 120 ": 2 * time.Minute, "86400": 24 * time.Hour, "86401": 24 * time.Hour, "99999999999999999999": 24 * time.Hour,
		"-1": 0, "1.5": 0, "soon": 0, "1e3": 0,
		now.Add(90 * time.Second).Format(http.TimeFormat): 90 * time.Second, now.Add(-time.Hour).Format(http.TimeFormat): 0,
		now.AddDate(5, 0, 0).Format(http.TimeFormat): 24 * time.Hour,
	} {
		if got := retryAfter(text, now); got != want {
			t.Errorf("%q: %s, not %s", text, got, want)
		}
	}
	s := newSink(t, false, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "30")
		w.WriteHeader(429)
	})
	if r := sender(t, HTTPOptions{Guard: loopback}).Send(t.Context(), to(s.URL)); r.Status != 429 || r.RetryAfter != 30*time.Second {
		t.Errorf("%+v", r)
	}
}

// What a receiver makes of the time that it has is tried over pipes, where time is virtual: an attempt takes as long as it may,
// however busy the machine is.
func TestAReceiverThatTakesItsTimeIsGivenUp(t *testing.T) {
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
			// The receiver is started here and not by the dial: an attempt that ends by its timeout does not
			// synchronize with the transport's dial goroutine, so that Add there would race with Wait here.
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
			if r := h.Send(t.Context(), to(x.scheme+"://127.0.0.1")); r.Status != x.status || r.Err != want || r.Took != AttemptTimeout {
				t.Errorf("one that %s: %+v", x.name, r)
			}
		})
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts in the kernel, and never says a word
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for _, scheme := range []string{"http", "https"} {
		if r := sender(t, HTTPOptions{Guard: loopback, Timeout: soon}).Send(t.Context(), to(scheme+"://"+silent.Addr().String())); r.Status != 0 || r.Err != "no answer within 150ms" || r.Took < soon {
			t.Errorf("one that never says a word by %s: %+v", scheme, r)
		}
	}
}

func TestTooMuchIsNotRead(t *testing.T) {
	endless := newSink(t, false, func(w http.ResponseWriter, _ *http.Request) {
		b := bytes.Repeat([]byte("é"), 1<<15)
		for {
			if _, err := w.Write(b); err != nil {
				return
			}
		}
	})
	r := sender(t, HTTPOptions{Guard: loopback}).Send(t.Context(), to(endless.URL))
	if r.Status != 200 || len(r.Response) > keptAnswer || len(r.Response) < keptAnswer-1 || !utf8.ValidString(r.Response) {
		t.Errorf("%d bytes kept: %+v", len(r.Response), r)
	}

	headers := raw(t, func(c net.Conn) {
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n"+strings.Repeat("X-Long: "+strings.Repeat("x", 1000)+"\r\n", 40)+"\r\n")
	})
	if r := sender(t, HTTPOptions{Guard: loopback}).Send(t.Context(), to(headers)); r.Status != 0 || r.Err == "" {
		t.Errorf("long headers: %+v", r)
	}

	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	z.Write(make([]byte, 10<<20))
	z.Close()
	packed := newSink(t, false, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		w.Write(bomb.Bytes())
	})
	if r := sender(t, HTTPOptions{Guard: loopback}).Send(t.Context(), to(packed.URL)); r.Status != 200 || len(r.Response) > bomb.Len() {
		t.Errorf("a bomb: %+v", r)
	}
}

func TestWhatAReceiverAnswersIsStoredWithoutControlCharacters(t *testing.T) {
	for in, want := range map[string]string{
		"plain": "plain", "": "", " \n two\nlines\t ": "two lines", "a\x00b\x1b[31mc\x7f": "ab[31mc", "bad\xff\xfeutf": "badutf", "\u202eevil\u200b": "evil", "grün ✓": "grün ✓",
	} {
		if got := printable([]byte(in)); got != want {
			t.Errorf("%q: %q, not %q", in, got, want)
		}
	}
}

func TestAConnectionIsUsedAgainUnlessSomethingIsLeftInIt(t *testing.T) {
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
			t.Errorf("answers of %d bytes: %d connections for three messages, not %d", x.size, len(conns), x.conns)
		}
		mu.Unlock()
	}
}

func TestWhatWentWrongIsToldWithoutAddresses(t *testing.T) {
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
		{"resets", raw(t, func(c net.Conn) { c.(*net.TCPConn).SetLinger(0) }), "the connection was closed without an answer", loopback},
		{"hangs up", raw(t, func(net.Conn) {}), "the connection was closed without an answer", loopback},
		{"talks nonsense", raw(t, func(c net.Conn) { io.WriteString(c, "220 mail.example ESMTP\r\n") }), "the answer could not be read", loopback},
		{"has a certificate of nobody", secure.URL, "the certificate is not trusted", loopback},
		{"has no TLS", strings.Replace(plain.URL, "http:", "https:", 1), "TLS could not be agreed on", loopback},
		{"has no name", "https://nobody.example", "the name does not exist", &unknown},
		{"is private", secure.URL, "the address is not public, and its network is not allowed", &Guard{}},
		{"has a URL of old", "ftp://example.com", "the URL can't be used any more", loopback},
	} {
		r := sender(t, HTTPOptions{Guard: x.guard}).Send(t.Context(), to(x.url))
		if r.Status != 0 || r.Err != x.want {
			t.Errorf("one that %s: %+v", x.name, r)
		}
	}
	if secure.hits.Load()+plain.hits.Load() != 0 {
		t.Error("a message was sent over a connection that is not trusted")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r := sender(t, HTTPOptions{Guard: loopback}).Send(ctx, to(plain.URL)); r.Err != "the attempt was given up: the server shuts down" {
		t.Errorf("%+v", r)
	}
}

func TestACertificateIsCheckedAgainstTheName(t *testing.T) {
	s := newSink(t, true, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Proto) })
	h := sender(t, HTTPOptions{Guard: loopback})
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	h.by["https"].TLSClientConfig.RootCAs = pool
	if r := h.Send(t.Context(), to(s.URL)); r.Status != 200 || r.Response != "HTTP/2.0" {
		t.Errorf("the right name: %+v", r)
	}
	_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	if r := h.Send(t.Context(), to("https://localhost:"+port)); r.Err != "the certificate is for another name" {
		t.Errorf("another name: %+v", r)
	}
	old := httptest.NewUnstartedServer(http.NotFoundHandler())
	old.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	old.TLS = &tls.Config{MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10}
	old.StartTLS()
	defer old.Close()
	if r := h.Send(t.Context(), to(old.URL)); r.Status != 0 || r.Err != "TLS could not be agreed on" {
		t.Errorf("TLS 1.1: %+v", r)
	}
}

func TestANameIsCheckedWhenItIsDialled(t *testing.T) {
	s := newSink(t, true, func(http.ResponseWriter, *http.Request) {})
	_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	const want = "the address is not public, and its network is not allowed"
	if r := sender(t, HTTPOptions{}).Send(t.Context(), to("https://localhost:"+port)); r.Err != want {
		t.Errorf("localhost: %+v", r)
	}
	if r := sender(t, HTTPOptions{}).Send(t.Context(), to("http://localhost:"+port)); r.Err != want {
		t.Errorf("localhost by http: %+v", r)
	}

	// A name that was public when it was saved, and is not when it is dialled.
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
		t.Errorf("rebound: %+v", r)
	}
	if n := s.hits.Load(); n != 0 {
		t.Errorf("%d requests arrived", n)
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
		t.Errorf("the proxy was asked %d times", n)
	}
	for scheme, tr := range h.by { // a proxy named in the environment never sees a loopback address, so that the above alone would prove little
		if tr.Proxy != nil {
			t.Errorf("%s goes through a proxy", scheme)
		}
	}
}

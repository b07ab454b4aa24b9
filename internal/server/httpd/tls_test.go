package httpd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/server/engine/access"
	"github.com/perdure/perdure/internal/server/tlscert"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/tlstest"
)

// narrowTLS is narrow with TLS, as "perdure serve" has it.
func (w *world) narrowTLS() (*httptest.Server, *http.Client) {
	w.t.Helper()
	ca, dir := tlstest.New(w.t), w.t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	ca.Issue(cert, key, time.Now().Add(time.Hour))
	pair, err := tlscert.Load(cert, key, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	const holds = 64 << 10 // less than a record of TLS, 16 KiB, makes each one wait for the window
	hs := httptest.NewUnstartedServer(w.s.Handler())
	hs.Config.Protocols = new(http.Protocols)
	hs.Config.Protocols.SetHTTP1(true)
	hs.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		c.(*tls.Conn).NetConn().(*net.TCPConn).SetWriteBuffer(holds)
		return ctx
	}
	hs.TLS = pair.Config()
	held, _ := hs.TLS.GetCertificate(nil)
	hs.TLS.Certificates = []tls.Certificate{*held} // or else it has one of its own for clients that name no host
	hs.Config.ErrorLog = log.New(io.Discard, "", 0)
	hs.StartTLS()
	w.t.Cleanup(hs.Close)
	return hs, &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.Pool()},
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, network, address)
			if err == nil {
				c.(*net.TCPConn).SetReadBuffer(holds)
			}
			return c, err
		}}}
}

// stuck waits until the server can write no more.
func (w *world) stuck() {
	last, same := -1, 0
	eventually.True(w.t, "the stream is stuck", func() bool {
		at := w.s.reader.CacheIndex()
		if same++; at != last {
			last, same = at, 0
		}
		return same > 50
	})
}

func TestStreamsOverTLS(t *testing.T) {
	big := `"events":[` + strings.TrimSuffix(strings.Repeat(`{"type":"x:big","data":"`+strings.Repeat("b", 60<<10)+
		`"},`, 20), ",") + `]`
	begin := func(t *testing.T, patience time.Duration) (w *world, g obj, s *sseReader, key string) {
		w = newWorld(t, setup{options: func(o *Options) { o.StreamWriteTimeout = patience }})
		w.s.checkEvery = time.Millisecond
		g = w.running(`{"kind":"job"}`)
		w.commits(g, big)
		key = w.newKey("a", nil)
		hs, client := w.narrowTLS()
		return w, g, w.as(key).attachBy(client.Transport, hs.URL, g["run_id"].(string), ""), strings.Split(key, "_")[1]
	}
	t.Run("a reader that pauses misses nothing", func(t *testing.T) {
		w, g, s, _ := begin(t, long)
		if s.res.ProtoMajor != 1 {
			t.Errorf("the stream came over %s, want HTTP/1.1", s.res.Proto)
		}
		s.next("stream:attached")
		w.stuck()
		w.commits(g, complete)
		frames, err := s.rest()
		if id := g["run_id"].(string); err != io.EOF || !slices.Equal(frames[:max(0, len(frames)-1)], w.logOf(id)) {
			t.Errorf("%d frames of %d lines, then %v; want all of them, then EOF", len(frames), len(w.logOf(id)), err)
		}
	})
	t.Run("a reader that is too slow is dropped", func(t *testing.T) {
		w, _, s, _ := begin(t, 100*time.Millisecond)
		eventually.True(t, "the reader is dropped", func() bool { return w.streams() == 0 })
		if frames, err := s.rest(); !errors.Is(err, io.ErrUnexpectedEOF) &&
			!strings.Contains(fmt.Sprint(err), "reset") {
			t.Errorf("%d frames, then %v; want a stream that was cut off", len(frames), err)
		}
	})
	t.Run("a key that is revoked ends a stream in the middle of a write", func(t *testing.T) {
		w, _, s, key := begin(t, long)
		s.next("stream:attached")
		w.stuck()
		if err := w.e.Do(context.Background(), &access.RevokeKey{Tenant: "a", ID: key}); err != nil {
			t.Fatal(err)
		}
		eventually.True(t, "the stream is over", func() bool { return w.streams() == 0 })
	})
	t.Run("a WebSocket works", func(t *testing.T) {
		w := newWorld(t, setup{})
		hs, client := w.narrowTLS()
		id := w.start(`{"kind":"job"}`)
		if _, first := w.watchAt(hs.URL, client, ""); len(first.Runs) != 1 || string(first.Runs[0].RunID) != id {
			t.Errorf("snapshot over TLS has %d runs, want %s", len(first.Runs), id)
		}
	})
}

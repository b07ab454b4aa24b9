package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/storetest"
	"github.com/perdure/perdure/internal/wire/session"
)

// A world is a server and a transport to it.
type world struct {
	srv  *embedded.Server
	url  string
	wire http.RoundTripper
}

func open(t *testing.T, socket bool, policy *perdure.Policy) *world {
	t.Helper()
	srv, err := embedded.Open(embedded.Options{Store: storetest.Address(t), Policy: policy})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { srv.Close() })
	w := &world{srv: srv, url: "http://perdure", wire: srv.Transport()}
	if socket {
		l := httptest.NewServer(srv.Handler())
		t.Cleanup(l.Close)
		t.Cleanup(srv.Drain) // answers blocked calls, for which the listener would wait
		wire := &http.Transport{MaxIdleConnsPerHost: 64}
		t.Cleanup(wire.CloseIdleConnections)
		w.url, w.wire = l.URL, wire
	}
	return w
}

// both runs a test twice: with a server in the process, and over a socket.
func both(t *testing.T, f func(t *testing.T, w *world)) {
	t.Run("in process", func(t *testing.T) { f(t, open(t, false, nil)) })
	t.Run("over a socket", func(t *testing.T) { f(t, open(t, true, nil)) })
}

func (w *world) client(wrap ...func(http.RoundTripper) http.RoundTripper) *client.Client {
	wire := w.wire
	for _, f := range wrap {
		wire = f(wire)
	}
	return client.New(w.url, w.srv.Key(), client.Options{Transport: wire})
}

type tripper func(*http.Request) (*http.Response, error)

func (f tripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A wire loses requests and answers.
type wire struct {
	sent      atomic.Int64
	loseNext  atomic.Int64 // number of answers to lose after the server has given them
	dropNext  atomic.Int64 // number of requests that do not arrive
	onlyPaths string       // suffix of the paths that are affected; empty for all

	mu   sync.Mutex
	keys []string // Idempotency-Keys seen
}

func (x *wire) wrap(next http.RoundTripper) http.RoundTripper {
	return tripper(func(r *http.Request) (*http.Response, error) {
		if x.onlyPaths != "" && !strings.HasSuffix(r.URL.Path, x.onlyPaths) {
			return next.RoundTrip(r)
		}
		x.sent.Add(1)
		x.mu.Lock()
		x.keys = append(x.keys, r.Header.Get("Idempotency-Key"))
		x.mu.Unlock()
		if x.dropNext.Add(-1) >= 0 {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
		}
		res, err := next.RoundTrip(r)
		if err == nil && x.loseNext.Add(-1) >= 0 {
			io.Copy(io.Discard, res.Body)
			res.Body.Close()
			return nil, errors.New("the connection was reset")
		}
		return res, err
	})
}

// finish leases the next run, completes it and returns its id.
func finish(t *testing.T, c *client.Client, result string) perdure.RunID {
	t.Helper()
	id, err := complete(c, result)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func complete(c *client.Client, result string) (perdure.RunID, error) {
	ctx := context.Background()
	polled, err := session.Of(c).Poll(ctx, "w", api.Poll{Slots: 1, Start: true})
	if err != nil || len(polled.Runs) != 1 {
		return "", fmt.Errorf("%+v %w", polled, err)
	}
	g := polled.Runs[0]
	res, err := session.Of(c).Commit(ctx, "w", perdure.Commit{ID: "c", RunID: g.RunID, Epoch: g.Epoch,
		Outcome: &perdure.Outcome{Type: perdure.OutcomeComplete, Result: []byte(result)}})
	if err != nil || len(res) != 1 || !res[0].OK || res[0].State != perdure.Completed {
		return "", fmt.Errorf("%+v %w", res, err)
	}
	return g.RunID, nil
}

// ok returns the value of a call, and fails the test if the call has an error.
func ok[T any](t *testing.T) func(v T, err error) T {
	t.Helper()
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), eventually.Left(t))
	t.Cleanup(cancel)
	return ctx
}

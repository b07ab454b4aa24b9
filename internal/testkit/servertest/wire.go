package servertest

import (
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
)

// A Tripper is a function that carries calls.
type Tripper func(*http.Request) (*http.Response, error)

func (f Tripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A Wire carries calls, and loses requests and answers.
type Wire struct {
	Next http.RoundTripper
	// Cut has all calls fail. Failed gets a signal for each, if there is room.
	Cut    atomic.Bool
	Failed chan struct{}
	// Only is the suffix of the paths that the rest is about; empty for all.
	Only string
	// Sent counts the calls.
	Sent atomic.Int64
	// Drop is the number of requests that do not arrive, and Lose that of answers that are lost.
	Drop, Lose atomic.Int64

	mu   sync.Mutex
	keys []string
}

// Wrap makes the wire carry calls to another one.
func (x *Wire) Wrap(next http.RoundTripper) http.RoundTripper {
	x.Next = next
	return x
}

func (x *Wire) RoundTrip(r *http.Request) (*http.Response, error) {
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
	if x.Cut.Load() {
		select {
		case x.Failed <- struct{}{}:
		default:
		}
		return nil, refused
	}
	if !strings.HasSuffix(r.URL.Path, x.Only) {
		return x.Next.RoundTrip(r)
	}
	x.Sent.Add(1)
	x.mu.Lock()
	x.keys = append(x.keys, r.Header.Get("Idempotency-Key"))
	x.mu.Unlock()
	if x.Drop.Add(-1) >= 0 {
		return nil, refused
	}
	res, err := x.Next.RoundTrip(r)
	if err == nil && x.Lose.Add(-1) >= 0 {
		io.Copy(io.Discard, res.Body)
		res.Body.Close()
		return nil, errors.New("the connection was reset")
	}
	return res, err
}

// Keys returns the idempotency keys of the calls.
func (x *Wire) Keys() []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.keys
}

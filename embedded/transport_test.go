package embedded

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/testkit/eventually"
)

// ask sends a request to a handler, in process.
func ask(t *testing.T, ctx context.Context, body io.Reader, log *slog.Logger, f http.HandlerFunc) (*http.Response,
	error) {
	t.Helper()
	var c callers
	t.Cleanup(c.close)
	req, err := http.NewRequestWithContext(ctx, "POST", "http://perdure/", body)
	if err != nil {
		t.Fatal(err)
	}
	return transport{f, &c, log, func(*http.Request) bool { return false }}.RoundTrip(req)
}

// soon fails the test if it does not happen.
func soon[T any](t *testing.T, what string, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(eventually.Within):
		t.Fatalf("never: %s", what)
	}
	return v
}

func TestUnreadHandlerNoticesThatCallerIsGone(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	wrote := make(chan error, 1)
	res, err := ask(t, ctx, nil, nil, func(w http.ResponseWriter, r *http.Request) {
		_, err := w.Write(make([]byte, 2*maxUnread))
		wrote <- err
	})
	if err != nil {
		t.Fatal(err)
	}
	cancel() // the answer is neither read nor closed
	if err := soon(t, "the handler's write ends", wrote); err == nil {
		t.Error("all of it was written")
	}
	if _, err := io.ReadAll(res.Body); !errors.Is(err, context.Canceled) {
		t.Errorf("read: %v", err)
	}
}

// A cancelled stream ends with the error of its context, however soon the handler returns.
func TestCancelledStreamHasNoEOF(t *testing.T) {
	for range 200 {
		ctx, cancel := context.WithCancel(t.Context())
		res, err := ask(t, ctx, nil, nil, func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		})
		if err != nil {
			t.Fatal(err)
		}
		go cancel()
		if _, err := io.ReadAll(res.Body); !errors.Is(err, context.Canceled) {
			t.Fatalf("read: %v", err)
		}
		res.Body.Close()
	}
}

// closing is a body that says when it was closed.
type closing struct {
	io.Reader
	closed chan struct{}
	once   atomic.Bool
}

func (c *closing) Close() error {
	if c.once.CompareAndSwap(false, true) {
		close(c.closed)
	}
	if p, ok := c.Reader.(*io.PipeReader); ok {
		p.Close()
	}
	return nil
}

func TestRequestBodyIsClosed(t *testing.T) {
	in := &closing{Reader: strings.NewReader("x"), closed: make(chan struct{})}
	res, err := ask(t, t.Context(), in, nil, func(http.ResponseWriter, *http.Request) {})
	if err != nil {
		t.Fatal(err)
	}
	soon(t, "the body is closed", in.closed)
	if b, err := io.ReadAll(res.Body); err != nil || len(b) != 0 {
		t.Errorf("%q %v", b, err)
	}

	// One that never comes to its end holds nobody whose caller is gone.
	r, _ := io.Pipe()
	in = &closing{Reader: r, closed: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	read := make(chan error, 1)
	begun := make(chan struct{})
	go func() { <-begun; cancel() }()
	if _, err := ask(t, ctx, in, nil, func(w http.ResponseWriter, r *http.Request) {
		close(begun)
		_, err := io.ReadAll(r.Body)
		read <- err
	}); !errors.Is(err, context.Canceled) {
		t.Errorf("error of the call = %v, want context.Canceled", err)
	}
	if err := soon(t, "the handler's read ends", read); err == nil {
		t.Error("it was read to its end")
	}
}

func TestHandlerPanicIsLogged(t *testing.T) {
	for _, c := range []struct {
		with   any
		logged bool
	}{{"oh no", true}, {http.ErrAbortHandler, false}} {
		var out bytes.Buffer
		res, err := ask(t, t.Context(), nil, slog.New(slog.NewTextHandler(&out, nil)),
			func(http.ResponseWriter, *http.Request) { panic(c.with) })
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(res.Body); res.StatusCode != 500 || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%d, read: %v", res.StatusCode, err)
		}
		if text := out.String(); strings.Contains(text, "oh no") != c.logged ||
			strings.Contains(text, "transport_test.go") != c.logged || !c.logged && text != "" {
			t.Errorf("%v: logged %q", c.with, text)
		}
	}
}

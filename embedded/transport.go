package embedded

import (
	"context"
	"io"
	"net/http"
	"sync"
)

// Transport carries requests to the server without a socket. It is what a client's HTTP client uses.
func (s *Server) Transport() http.RoundTripper { return transport{s.Handler()} }

type transport struct{ handler http.Handler }

// RoundTrip calls the handler and gives its answer as soon as the header is written; the body streams.
func (t transport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(req.Context())
	in := req.Clone(ctx)
	in.RequestURI = req.URL.RequestURI()
	in.RemoteAddr = "in-process"
	if in.Host == "" {
		in.Host = req.URL.Host
	}
	if in.Body == nil {
		in.Body = http.NoBody
	}
	body, pipe := io.Pipe()
	w := &response{header: make(http.Header), pipe: pipe, begun: make(chan struct{})}
	go func() {
		defer func() {
			if p := recover(); p != nil {
				w.WriteHeader(http.StatusInternalServerError)
				pipe.CloseWithError(io.ErrUnexpectedEOF) // as a connection that was cut
				return
			}
			w.WriteHeader(http.StatusOK)
			pipe.Close()
		}()
		t.handler.ServeHTTP(w, in)
	}()
	select {
	case <-w.begun:
	case <-ctx.Done():
		cancel()
		body.CloseWithError(ctx.Err())
		return nil, ctx.Err()
	}
	return &http.Response{
		StatusCode: w.status, Status: http.StatusText(w.status), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: w.sent, Body: &closer{body, cancel}, ContentLength: -1, Request: req,
	}, nil
}

// closer ends the handler when the answer is no longer read.
type closer struct {
	*io.PipeReader
	cancel context.CancelFunc
}

func (c *closer) Close() error {
	c.cancel()
	return c.PipeReader.Close()
}

// response is the handler's side of an answer.
type response struct {
	header http.Header
	sent   http.Header
	status int
	pipe   *io.PipeWriter
	once   sync.Once
	begun  chan struct{}
}

func (w *response) Header() http.Header { return w.header }

func (w *response) WriteHeader(status int) {
	w.once.Do(func() {
		w.status, w.sent = status, w.header.Clone()
		close(w.begun)
	})
}

func (w *response) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.pipe.Write(b)
}

// Flush has nothing to do: what is written is there.
func (w *response) Flush() {}

package mcp

import (
	"fmt"
	"io"
	"net/http"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// httpTransport returns the connection to an address. Redirects are not followed, as they would send the
// headers elsewhere.
func httpTransport(s *Server) (sdk.Transport, func()) {
	base := http.DefaultTransport.(*http.Transport).Clone()
	c := &http.Client{Transport: &bounded{base, s.header()},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return &sdk.StreamableClientTransport{Endpoint: s.URL, HTTPClient: c, MaxRetries: 1, DisableStandaloneSSE: true,
		MaxEventSize: maxMessage}, base.CloseIdleConnections
}

// bounded adds headers to requests, and limits the size of answers.
type bounded struct {
	next   http.RoundTripper
	header http.Header
}

func (b *bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	for name, values := range b.header {
		r.Header[name] = values
	}
	res, err := b.next.RoundTrip(r)
	if err == nil {
		res.Body = &boundedBody{res.Body, maxUnasked}
	}
	return res, err
}

type boundedBody struct {
	io.ReadCloser
	left int
}

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, fmt.Errorf("the answer has more than %d bytes", maxUnasked)
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

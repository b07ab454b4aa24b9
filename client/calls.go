package client

import (
	"context"
	"io"
	"net/http"

	"github.com/perdure/perdure/internal/wire/session"
)

// Packages client/admin and worker make their calls with a client of a program, by its transport. That
// is not among the methods that programs see.
func init() {
	session.CallerOf = func(c any) session.Caller { return caller{c.(*Client)} }
	session.Of = func(c any) session.Protocol { return protocol{c.(*Client)} }
}

// A caller makes calls of package client/admin.
type caller struct{ c *Client }

// Do makes a call, with retries, and decodes its answer into out, which may be nil.
func (x caller) Do(ctx context.Context, call *session.Call, out any) error {
	opts, _ := call.Options.([]CallOptions)
	r := requestOf(call)
	_, err := x.c.do(ctx, r, out, opts...)
	call.Keyed = r.callerKey
	return err
}

// Open makes a call once, without a timeout of its own, and returns its answer unread.
func (x caller) Open(ctx context.Context, call *session.Call) (*http.Response, error) {
	r := requestOf(call)
	req, err := x.c.request(ctx, r)
	if err != nil {
		return nil, err
	}
	res, err := x.c.http.Do(req)
	if err != nil {
		return nil, r.explain(ctx, &failure{err: err}, false)
	}
	if res.StatusCode != http.StatusOK {
		defer res.Body.Close()
		b, _ := io.ReadAll(io.LimitReader(res.Body, 64<<10))
		return nil, r.explain(ctx, x.c.explainTenant(readProblem(res, b)), false)
	}
	return res, nil
}

// Retries is how often a failed call is sent again.
func (x caller) Retries() int { return x.c.opt.Retries }

func requestOf(call *session.Call) *request {
	return &request{method: call.Method, path: call.Path, query: call.Query, body: call.Body}
}

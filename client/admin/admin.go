package admin

import (
	"context"
	"net/url"

	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/wire/session"
)

const v1 = api.Prefix

// Client makes the calls of operators. Any number of goroutines may use it.
type Client struct {
	calls session.Caller
}

// New returns a client for operators that uses the connections, the key, the tenant and the retries of
// c. It costs nothing, and is not closed: c is.
func New(c *client.Client) *Client { return &Client{session.CallerOf(c)} }

// path formats a path with escaped ids.
func path(format string, ids ...string) string { return session.Path(format, ids...) }

// get makes a call that changes nothing, and returns its decoded answer.
func get[T any](ctx context.Context, c *Client, path string, query url.Values) (*T, error) {
	out := new(T)
	if err := c.calls.Do(ctx, &session.Call{Method: "GET", Path: path, Query: query}, out); err != nil {
		return nil, err
	}
	return out, nil
}

// send makes a call that changes something, and returns its decoded answer.
func send[T any](
	ctx context.Context, c *Client, method, path string, body any, opts []client.CallOptions,
) (*T, error) {
	out := new(T)
	if err := c.calls.Do(ctx, &session.Call{Method: method, Path: path, Body: body, Options: opts}, out); err != nil {
		return nil, err
	}
	return out, nil
}

// pages reads all pages of a list.
func pages[P, T any](
	ctx context.Context, c *Client, path string, entries func(*P) (list []T, next string),
) ([]T, error) {
	return session.Pages(func(q url.Values) (*P, error) { return get[P](ctx, c, path, q) }, entries)
}

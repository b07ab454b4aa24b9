package client

import (
	"context"

	"github.com/perdure/perdure/api"
)

// PutLimit makes a limit, or changes the one of this name. A deploy may repeat it.
func (c *Client) PutLimit(ctx context.Context, name string, in api.PutLimit, opts ...CallOptions) (*api.Limit, error) {
	return answer[api.Limit](ctx, c, &request{method: "PUT", path: path(v1+"/limits/%s", name), body: in}, opts...)
}

// Limits lists the limits of the tenant by name.
func (c *Client) Limits(ctx context.Context) ([]api.Limit, error) {
	return pages(ctx, c, v1+"/limits", func(p *api.Limits) ([]api.Limit, string) { return p.Limits, p.NextCursor })
}

// Limit returns a limit, with some of the runs that hold its slots and of those that wait there.
func (c *Client) Limit(ctx context.Context, name string) (*api.Limit, error) {
	return answer[api.Limit](ctx, c, &request{method: "GET", path: path(v1+"/limits/%s", name)})
}

// DeleteLimit deletes a limit. Runs that wait there go on.
func (c *Client) DeleteLimit(ctx context.Context, name string, opts ...CallOptions) error {
	_, err := c.do(ctx, &request{method: "DELETE", path: path(v1+"/limits/%s", name)}, nil, opts...)
	return err
}

// CloseLimit closes a limit, or a key of it: nothing is granted under it until then.
func (c *Client) CloseLimit(
	ctx context.Context, name string, in api.CloseLimit, opts ...CallOptions,
) (*api.Limit, error) {
	r := &request{method: "POST", path: path(v1+"/limits/%s/close", name), body: in}
	return answer[api.Limit](ctx, c, r, opts...)
}

// OpenLimit opens a limit, or a key of it.
func (c *Client) OpenLimit(
	ctx context.Context, name string, in api.OpenLimit, opts ...CallOptions,
) (*api.Limit, error) {
	r := &request{method: "POST", path: path(v1+"/limits/%s/open", name), body: in}
	return answer[api.Limit](ctx, c, r, opts...)
}

// LimitKeys lists the keys of a limit that are in use, closed, or have values of their own.
func (c *Client) LimitKeys(ctx context.Context, name string) ([]api.LimitKey, error) {
	return pages(ctx, c, path(v1+"/limits/%s/keys", name), func(p *api.LimitKeys) ([]api.LimitKey, string) {
		return p.Keys, p.NextCursor
	})
}

// PutLimitKey gives a key of a limit values of its own.
func (c *Client) PutLimitKey(
	ctx context.Context, name, key string, in api.PutLimitKey, opts ...CallOptions,
) (*api.LimitKey, error) {
	r := &request{method: "PUT", path: path(v1+"/limits/%s/keys/%s", name, key), body: in}
	return answer[api.LimitKey](ctx, c, r, opts...)
}

// DeleteLimitKey gives a key the values of the limit again.
func (c *Client) DeleteLimitKey(ctx context.Context, name, key string, opts ...CallOptions) (*api.LimitKey, error) {
	r := &request{method: "DELETE", path: path(v1+"/limits/%s/keys/%s", name, key)}
	return answer[api.LimitKey](ctx, c, r, opts...)
}

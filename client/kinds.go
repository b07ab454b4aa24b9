package client

import (
	"context"

	"github.com/perdure/perdure/api"
)

// Kinds lists the kinds of the registry by name: what is known of each, and whether somebody serves
// it.
func (c *Client) Kinds(ctx context.Context) ([]api.Kind, error) {
	return pages(ctx, c, v1+"/kinds", func(p *api.Kinds) ([]api.Kind, string) { return p.Kinds, p.NextCursor })
}

// Kind returns a kind of the registry.
func (c *Client) Kind(ctx context.Context, kind string) (*api.Kind, error) {
	return answer[api.Kind](ctx, c, &request{method: "GET", path: path(v1+"/kinds/%s", kind)})
}

// ChangeKind overrides fields of a kind, or removes overrides. An override has precedence over
// everything that workers announce.
func (c *Client) ChangeKind(
	ctx context.Context, kind string, in api.ChangeKind, opts ...CallOptions,
) (*api.Kind, error) {
	return answer[api.Kind](ctx, c, &request{method: "PATCH", path: path(v1+"/kinds/%s", kind), body: in}, opts...)
}

// DeleteKind deletes a kind from the registry. It appears again when a worker announces it.
func (c *Client) DeleteKind(ctx context.Context, kind string, opts ...CallOptions) error {
	_, err := c.do(ctx, &request{method: "DELETE", path: path(v1+"/kinds/%s", kind)}, nil, opts...)
	return err
}

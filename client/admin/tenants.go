package admin

import (
	"context"
	"net/url"
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/wire/session"
)

// Tenant returns a tenant. It needs a platform key.
func (c *Client) Tenant(ctx context.Context, tenant perdure.TenantID) (*api.Tenant, error) {
	return get[api.Tenant](ctx, c, path("/api/admin/tenants/%s", string(tenant)), nil)
}

// A TenantFilter selects a page of tenants. The zero value is the first page with the default
// length.
type TenantFilter struct {
	Cursor string // the NextCursor of the page before
	Limit  int
}

// Tenants returns a page of tenants, in the order of their names. It needs a platform key.
func (c *Client) Tenants(ctx context.Context, f TenantFilter) (*api.Tenants, error) {
	q := url.Values{}
	if f.Cursor != "" {
		q.Set("cursor", f.Cursor)
	}
	if f.Limit > 0 {
		q.Set("limit", strconv.Itoa(f.Limit))
	}
	return get[api.Tenants](ctx, c, "/api/admin/tenants", q)
}

// ChangeTenant changes settings of a tenant, and creates the tenant if it does not exist. It needs
// a platform key.
func (c *Client) ChangeTenant(
	ctx context.Context, tenant perdure.TenantID, in api.ChangeTenant, opts ...client.CallOptions,
) (*api.Tenant, error) {
	return send[api.Tenant](ctx, c, "PUT", path("/api/admin/tenants/%s", string(tenant)), in, opts)
}

// DeletePlatformKind deletes the platform's entry of a kind, as [client.Client.DeleteKind] does the
// tenant's. It needs a platform key.
func (c *Client) DeletePlatformKind(ctx context.Context, kind string, opts ...client.CallOptions) error {
	call := &session.Call{Method: "DELETE", Path: path(v1+"/kinds/%s", kind),
		Query: url.Values{"platform": {"true"}}, Options: opts}
	return c.calls.Do(ctx, call, nil)
}

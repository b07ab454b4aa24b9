package admin

import (
	"context"
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/wire/session"
)

// CreateKey creates a key for the tenant of this client's key. The secret is only in the answer. If
// the answer is lost, CreateKey revokes the key and creates another one. With a
// [client.IdempotencyKey], a second call returns the key without its secret instead.
func (c *Client) CreateKey(ctx context.Context, in api.CreateKey, opts ...client.CallOptions) (*api.NewKey, error) {
	return c.createKey(ctx, v1+"/keys", in, opts)
}

// CreateTenantKey creates a key for any tenant, and the tenant if it does not exist. It needs a
// platform key. Otherwise it is like [Client.CreateKey].
func (c *Client) CreateTenantKey(
	ctx context.Context, tenant perdure.TenantID, in api.CreateKey, opts ...client.CallOptions,
) (*api.NewKey, error) {
	return c.createKey(ctx, path("/api/admin/tenants/%s/keys", string(tenant)), in, opts)
}

// CreatePlatformKey creates a platform key. It needs a platform key, and the new key can only have
// scopes of the caller's key. Otherwise it is like [Client.CreateKey].
func (c *Client) CreatePlatformKey(
	ctx context.Context, in api.CreateKey, opts ...client.CallOptions,
) (*api.NewKey, error) {
	return c.createKey(ctx, "/api/admin/keys", in, opts)
}

// createKey creates keys until it gets one with its secret. If an answer was lost, the repeated
// call returns the key without its secret. Such a key is revoked, because no caller has its secret.
func (c *Client) createKey(
	ctx context.Context, keys string, in api.CreateKey, opts []client.CallOptions,
) (*api.NewKey, error) {
	for n := 0; ; n++ {
		key := new(api.NewKey)
		call := &session.Call{Method: "POST", Path: keys, Body: in, Options: opts}
		if err := c.calls.Do(ctx, call, key); err != nil {
			return nil, err
		}
		if key.Secret != "" || call.Keyed {
			return key, nil
		}
		if _, err := send[perdure.Key](ctx, c, "DELETE", keys+path("/%s", key.ID), nil, nil); err != nil {
			return nil, fmt.Errorf("the answer with the secret of key %s was lost, and the key could not be "+
				"revoked: %w", key.ID, err)
		}
		if n >= c.calls.Retries() {
			return nil, api.NewProblem(perdure.CodeUnavailable,
				"the answers with the secrets of new keys were lost; these keys are revoked", "")
		}
	}
}

// Keys lists the tenant's keys, without their secrets.
func (c *Client) Keys(ctx context.Context) ([]perdure.Key, error) {
	return pages(ctx, c, v1+"/keys", func(p *api.Keys) ([]perdure.Key, string) { return p.Keys, p.NextCursor })
}

// LoginLink makes a link that opens the dashboard once, without typing a key. It works for ten minutes.
// A call that is repeated because its answer was lost makes another one.
func (c *Client) LoginLink(
	ctx context.Context, in api.OpenSession, opts ...client.CallOptions,
) (*api.LoginLink, error) {
	return send[api.LoginLink](ctx, c, "POST", v1+"/session/links", &in, opts)
}

// RevokeKey revokes a key at once.
func (c *Client) RevokeKey(ctx context.Context, id string, opts ...client.CallOptions) (*perdure.Key, error) {
	return send[perdure.Key](ctx, c, "DELETE", path(v1+"/keys/%s", id), nil, opts)
}

// RevokeTenantKey revokes a key of any tenant at once. It needs a platform key.
func (c *Client) RevokeTenantKey(
	ctx context.Context, tenant perdure.TenantID, id string, opts ...client.CallOptions,
) (*perdure.Key, error) {
	return send[perdure.Key](ctx, c, "DELETE", path("/api/admin/tenants/%s/keys/%s", string(tenant), id), nil, opts)
}

// RevokePlatformKey revokes a platform key at once. It needs a platform key.
func (c *Client) RevokePlatformKey(ctx context.Context, id string, opts ...client.CallOptions) (*perdure.Key, error) {
	return send[perdure.Key](ctx, c, "DELETE", path("/api/admin/keys/%s", id), nil, opts)
}

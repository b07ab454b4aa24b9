package httpd

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine/access"
)

func createKey(c *call, in *api.CreateKey) (int, *api.NewKey, error) {
	return newKey(c, c.tenant(), in)
}

func createTenantKey(c *call, in *api.CreateKey) (int, *api.NewKey, error) {
	return newKey(c, perdure.TenantID(c.PathValue("tenant")), in)
}

// createPlatformKey makes a platform key. It belongs to the tenant of the key that makes it.
func createPlatformKey(c *call, in *api.CreateKey) (int, *api.NewKey, error) {
	return makeKey(c, &access.CreateKey{Tenant: c.tenant(), Platform: true}, in)
}

// newKey makes a key of a tenant.
func newKey(c *call, t perdure.TenantID, in *api.CreateKey) (int, *api.NewKey, error) {
	return makeKey(c, &access.CreateKey{Tenant: t}, in)
}

// makeKey makes a key with no more scopes than the key of the call. Only the first answer has the
// secret: a repeated call with the same Idempotency-Key gets the key without it.
func makeKey(c *call, op *access.CreateKey, in *api.CreateKey) (status int, out *api.NewKey, err error) {
	if op.Once, err = c.idempotencyKey(); err != nil {
		return 0, nil, err
	}
	if op.Scopes, err = perdure.ParseScopes(in.Scopes); err != nil {
		return 0, nil, err
	}
	op.Name, op.TTL, op.Maker = in.Name, in.TTL, &c.key
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, err
	}
	return createdStatus(op.Created), &api.NewKey{Key: op.Key, Secret: op.Secret}, nil
}

func listKeys(c *call, _ *none) (int, *api.Keys, error) {
	page, err := c.listPage()
	if err != nil {
		return 0, nil, err
	}
	list, next, err := c.s.engine.Keys.Page(c.Context(), c.tenant(), c.key.Platform, page)
	return 0, &api.Keys{Keys: append([]perdure.Key{}, list...), NextCursor: next}, err
}

// revokeKey revokes a key of the tenant. A key of the platform may belong to the same tenant, and
// only another platform key may revoke it.
func revokeKey(c *call, _ *none) (int, *perdure.Key, error) {
	return revoke(c, &access.RevokeKey{Tenant: c.tenant(), NotPlatform: !c.key.Platform})
}

func revokeTenantKey(c *call, _ *none) (int, *perdure.Key, error) {
	return revoke(c, &access.RevokeKey{Tenant: perdure.TenantID(c.PathValue("tenant"))})
}

// revokePlatformKey revokes a platform key. Such a key belongs to the tenant of the key that made
// it.
func revokePlatformKey(c *call, _ *none) (int, *perdure.Key, error) {
	return revoke(c, &access.RevokeKey{Tenant: c.tenant(), Platform: true})
}

func revoke(c *call, op *access.RevokeKey) (int, *perdure.Key, error) {
	op.ID = c.PathValue("id")
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, err
	}
	return 0, &op.Key, nil
}

package httpd

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/engine"
	"github.com/perdure/perdure/internal/store"
)

func signingKeys(c *call, _ *none) (int, *api.SigningKeys, error) {
	out := &api.SigningKeys{Keys: []api.SigningKey{}}
	if s := c.s.engine.Signer(); s != nil {
		for _, k := range s.Trust().Keys() {
			out.Keys = append(out.Keys, api.SigningKey{KeyID: k.ID, PublicKey: string(k.PEM()), Signs: k.ID == s.KeyID()})
		}
	}
	return 0, out, nil
}

func getTenant(c *call, _ *none) (int, *api.Tenant, error) {
	row, err := c.s.engine.Tenant(c.Context(), perdure.TenantID(c.PathValue("tenant")))
	if err != nil {
		return 0, nil, err
	}
	return 0, showTenant(&row), nil
}

func changeTenant(c *call, in *api.ChangeTenant) (int, *api.Tenant, error) {
	op := &engine.ChangeTenant{Tenant: perdure.TenantID(c.PathValue("tenant")), RequireSignatures: in.RequireSignatures}
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, err
	}
	return 0, showTenant(&op.Row), nil
}

func showTenant(row *store.TenantRow) *api.Tenant {
	return &api.Tenant{Tenant: row.ID, CreatedAt: row.CreatedAt, RequireSignatures: row.Signed}
}

package httpd

import (
	"context"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine/rules"
)

// maxLiveShown bounds the count of a tenant's live runs in an answer.
const maxLiveShown = 100_000

func getTenant(c *call, _ *none) (int, *api.Tenant, error) {
	row, err := c.s.engine.Tenants.Get(c.Context(), perdure.TenantID(c.PathValue("tenant")))
	if err != nil {
		return 0, nil, err
	}
	n, err := c.s.engine.Tenants.CountLive(c.Context(), row.ID, maxLiveShown)
	live := int64(n)
	out := showTenant(&row)
	out.LiveRuns = &live
	return 0, out, err
}

func listTenants(c *call, _ *none) (int, *api.Tenants, error) {
	limit, err := c.intParam("limit", 100, 1, maxPage)
	if err != nil {
		return 0, nil, err
	}
	after := c.URL.Query().Get("cursor")
	if after != "" {
		if err := perdure.CheckName("cursor", after); err != nil {
			return 0, nil, err
		}
	}
	rows, err := c.s.engine.Tenants.Page(c.Context(), perdure.TenantID(after), int(limit)+1)
	if err != nil {
		return 0, nil, err
	}
	out := &api.Tenants{Tenants: []api.Tenant{}}
	if len(rows) > int(limit) {
		rows = rows[:limit]
		out.NextCursor = string(rows[limit-1].ID)
	}
	for i := range rows {
		out.Tenants = append(out.Tenants, *showTenant(&rows[i]))
	}
	return 0, out, nil
}

func changeTenant(c *call, in *api.ChangeTenant) (int, *api.Tenant, error) {
	op := &rules.ChangeTenant{Tenant: perdure.TenantID(c.PathValue("tenant")), RequireSignatures: in.RequireSignatures}
	if in.Limits != nil {
		op.Limits = *in.Limits
	}
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, err
	}
	c.s.shares.set(op.Tenant, op.Row.Limits) // other nodes read the limits every Poll
	return 0, showTenant(&op.Row), nil
}

func showTenant(row *rules.TenantRow) *api.Tenant {
	return &api.Tenant{Tenant: row.ID, CreatedAt: row.CreatedAt, RequireSignatures: row.Signed, Limits: row.Limits}
}

// loadLimits reads the limits of all tenants that have any.
func (s *Server) loadLimits(ctx context.Context) error {
	changes := s.shares.changes()
	rows, err := s.engine.Tenants.Limited(ctx)
	if err == nil {
		s.shares.setAll(rows, changes)
	}
	return err
}

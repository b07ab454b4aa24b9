package httpd

import (
	"context"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/engine"
	"github.com/perdure/perdure/internal/store"
)

// maxLiveShown is how far the live runs of a tenant are counted for whoever looks at it.
const maxLiveShown = 100_000

func getTenant(c *call, _ *none) (int, *api.Tenant, error) {
	row, err := c.s.engine.Tenant(c.Context(), perdure.TenantID(c.PathValue("tenant")))
	if err != nil {
		return 0, nil, err
	}
	out := showTenant(&row)
	err = c.s.engine.Store().View(c.Context(), func(v *store.View) error {
		n, err := v.CountLive(row.ID, maxLiveShown)
		live := int64(n)
		out.LiveRuns = &live
		return err
	})
	return 0, out, err
}

func listTenants(c *call, _ *none) (int, *api.Tenants, error) {
	limit, err := c.whole("limit", 100, 1, maxPage)
	if err != nil {
		return 0, nil, err
	}
	after := c.URL.Query().Get("cursor")
	if after != "" {
		if err := perdure.CheckName("cursor", after); err != nil {
			return 0, nil, err
		}
	}
	rows, err := c.s.engine.Tenants(c.Context(), perdure.TenantID(after), int(limit)+1)
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
	op := &engine.ChangeTenant{Tenant: perdure.TenantID(c.PathValue("tenant")), RequireSignatures: in.RequireSignatures}
	if in.Limits != nil {
		op.Limits = *in.Limits
	}
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, err
	}
	c.s.shares.change(op.Tenant, op.Row.Limits) // other nodes learn of it when they look
	return 0, showTenant(&op.Row), nil
}

func showTenant(row *store.TenantRow) *api.Tenant {
	return &api.Tenant{Tenant: row.ID, CreatedAt: row.CreatedAt, RequireSignatures: row.Signed, Limits: row.Limits}
}

// limitsAtOnce is how many tenants with limits are read at a time.
const limitsAtOnce = 1000

// lookAtLimits reads the limits of all tenants that have some.
func (s *Server) lookAtLimits(ctx context.Context) error {
	var rows []store.TenantRow
	err := s.engine.Store().Keep(ctx, func(v *store.View) error {
		after := perdure.TenantID("")
		for {
			page, err := v.LimitedTenants(after, limitsAtOnce)
			if err != nil {
				return err
			}
			if rows = append(rows, page...); len(page) < limitsAtOnce {
				return nil
			}
			after = page[len(page)-1].ID
		}
	})
	if err == nil {
		s.shares.replace(rows)
	}
	return err
}

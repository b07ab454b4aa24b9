package reads

import (
	"context"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/rules"
	"github.com/perdure/perdure/internal/server/store"
)

// Tenants reads tenants.
type Tenants struct{ e *kernel.Engine }

// Get reads a tenant.
func (q Tenants) Get(ctx context.Context, id perdure.TenantID) (row rules.TenantRow, err error) {
	err = q.e.Store().View(ctx, func(v *store.View) error {
		var ok bool
		if row, ok, err = v.Tenants.Get(id); err == nil && !ok {
			err = kernel.NotFound("tenant")
		}
		return err
	})
	row.Signed = row.Signed || rules.SigningConfigured(q.e, id)
	return row, err
}

// Page lists tenants by name, after one.
func (q Tenants) Page(ctx context.Context, after perdure.TenantID, limit int) (rows []rules.TenantRow, err error) {
	err = q.e.Store().View(ctx, func(v *store.View) error {
		rows, err = v.Tenants.Page(after, limit)
		return err
	})
	for i := range rows {
		rows[i].Signed = rows[i].Signed || rules.SigningConfigured(q.e, rows[i].ID)
	}
	return rows, err
}

// CountLive counts the live runs of a tenant, up to most.
func (q Tenants) CountLive(ctx context.Context, t perdure.TenantID, most int) (n int, err error) {
	err = q.e.Store().View(ctx, func(v *store.View) error {
		n, err = v.Runs.CountLive(t, most)
		return err
	})
	return n, err
}

// limitsAtOnce is the page size of Limited.
const limitsAtOnce = 1000

// Limited reads all tenants with limits of their own.
func (q Tenants) Limited(ctx context.Context) (rows []rules.TenantRow, err error) {
	err = q.e.Store().Keep(ctx, func(v *store.View) error {
		after := perdure.TenantID("")
		for {
			page, err := v.Tenants.Limited(after, limitsAtOnce)
			if err != nil {
				return err
			}
			if rows = append(rows, page...); len(page) < limitsAtOnce {
				return nil
			}
			after = page[len(page)-1].ID
		}
	})
	return rows, err
}

// AnySigned names one tenant whose runs have to be signed, if there is any.
func (q Tenants) AnySigned(ctx context.Context) (id perdure.TenantID, err error) {
	if list := rules.SigningRequired(q.e); len(list) > 0 {
		return list[0], nil
	}
	err = q.e.Store().View(ctx, func(v *store.View) error {
		id, err = v.Tenants.AnySigned()
		return err
	})
	return id, err
}

package engine

import (
	"context"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/store"
)

// A TenantRow is a tenant as it is stored.
type TenantRow = store.TenantRow

// ChangeTenant changes a tenant's settings, and creates the tenant if there is none.
type ChangeTenant struct {
	Tenant perdure.TenantID
	// RequireSignatures is nil to leave the setting as it is.
	RequireSignatures *bool
	Limits            perdure.TenantLimitChanges

	Row TenantRow
}

func (*ChangeTenant) Needs() []store.Ref { return nil }

// Do changes the tenant.
func (op *ChangeTenant) Do(tx *Tx) error {
	if err := perdure.CheckName("tenant", string(op.Tenant)); err != nil {
		return err
	}
	row, ok, err := tx.DB.Tenants.Get(op.Tenant)
	if err != nil {
		return err
	}
	before := row
	row.ID = op.Tenant
	if op.RequireSignatures != nil {
		if *op.RequireSignatures && tx.e.signer == nil {
			return perdure.Errorf(perdure.CodeWrongState,
				"this server has no key to sign with: every run of the tenant would be refused")
		}
		if !*op.RequireSignatures && tx.e.signingConfigured(op.Tenant) {
			return perdure.Errorf(perdure.CodeWrongState,
				"the configuration of this server requires that the runs of this tenant are signed (signing_required)")
		}
		row.Signed = *op.RequireSignatures
	}
	if err := op.Limits.Apply(&row.Limits); err != nil {
		return err
	}
	if ok {
		tx.DB.Tenants.RequireSignatures(op.Tenant, row.Signed)
		tx.DB.Tenants.SetLimits(op.Tenant, row.Limits)
	} else {
		row.CreatedAt = tx.Now
		tx.DB.Tenants.Put(row)
	}
	if row != before {
		err := tx.audit(op.Tenant, perdure.AuditTenantChange, string(op.Tenant),
			"created", !ok, "require_signatures", op.RequireSignatures)
		if err != nil {
			return err
		}
	}
	tx.DB.After(func() { tx.e.signing.forget() })
	tx.DB.After(func() { tx.e.live.forget(op.Tenant) })
	op.Row = row
	op.Row.Signed = row.Signed || tx.e.signingConfigured(op.Tenant)
	return nil
}

// Get reads a tenant.
func (q Tenants) Get(ctx context.Context, id perdure.TenantID) (row TenantRow, err error) {
	err = q.e.store.View(ctx, func(v *store.View) error {
		var ok bool
		if row, ok, err = v.Tenants.Get(id); err == nil && !ok {
			err = notFound("tenant")
		}
		return err
	})
	row.Signed = row.Signed || q.e.signingConfigured(id)
	return row, err
}

// Page lists tenants by name, after one.
func (q Tenants) Page(ctx context.Context, after perdure.TenantID, limit int) (rows []TenantRow, err error) {
	err = q.e.store.View(ctx, func(v *store.View) error {
		rows, err = v.Tenants.Page(after, limit)
		return err
	})
	for i := range rows {
		rows[i].Signed = rows[i].Signed || q.e.signingConfigured(rows[i].ID)
	}
	return rows, err
}

// CountLive counts the live runs of a tenant, up to most.
func (q Tenants) CountLive(ctx context.Context, t perdure.TenantID, most int) (n int, err error) {
	err = q.e.store.View(ctx, func(v *store.View) error {
		n, err = v.Runs.CountLive(t, most)
		return err
	})
	return n, err
}

// limitsAtOnce is the page size of Limited.
const limitsAtOnce = 1000

// Limited reads all tenants with limits of their own.
func (q Tenants) Limited(ctx context.Context) (rows []TenantRow, err error) {
	err = q.e.store.Keep(ctx, func(v *store.View) error {
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

// Signer gives the key that signs accepted runs. Nil: runs are not signed.
func (e *Engine) Signer() *perdure.Signer { return e.signer }

// AnySigned names one tenant whose runs have to be signed, if there is any.
func (q Tenants) AnySigned(ctx context.Context) (id perdure.TenantID, err error) {
	if len(q.e.signingRequired) > 0 {
		return q.e.signingRequired[0], nil
	}
	err = q.e.store.View(ctx, func(v *store.View) error {
		id, err = v.Tenants.AnySigned()
		return err
	})
	return id, err
}

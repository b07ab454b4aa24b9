package rules

import (
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
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
func (op *ChangeTenant) Do(tx *kernel.Tx) error {
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
		if *op.RequireSignatures && Signer(tx.Engine) == nil {
			return perdure.Errorf(perdure.CodeWrongState,
				"this server has no key to sign with: every run of the tenant would be refused")
		}
		if !*op.RequireSignatures && SigningConfigured(tx.Engine, op.Tenant) {
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
		err := tx.Audit(op.Tenant, perdure.AuditTenantChange, string(op.Tenant),
			"created", !ok, "require_signatures", op.RequireSignatures)
		if err != nil {
			return err
		}
	}
	tx.DB.After(func() { cachedSigning.Of(tx.Engine).Forget() })
	tx.DB.After(func() { cachedWeights.Of(tx.Engine).Forget(op.Tenant) })
	tx.DB.After(func() { liveCounts.Of(tx.Engine).forget(op.Tenant) })
	op.Row = row
	op.Row.Signed = row.Signed || SigningConfigured(tx.Engine, op.Tenant)
	return nil
}

// weightTTL is how long a node uses the weight of a tenant that it has read.
const weightTTL = time.Second

var cachedWeights = kernel.NewPart(func(*kernel.Engine) *kernel.Cache[perdure.TenantID, int64] {
	return &kernel.Cache[perdure.TenantID, int64]{TTL: weightTTL}
})

// WeightOf gives how many runs a poll for all tenants takes of a tenant in its turn.
func WeightOf(tx *kernel.Tx, t perdure.TenantID) (int64, error) {
	return cachedWeights.Of(tx.Engine).Get(kernel.LookOf(tx), t, func() (int64, error) {
		row, _, err := tx.DB.Tenants.Get(t)
		return max(1, row.Limits.Weight), err
	})
}

package upkeep

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/outbox"
	"github.com/perdure/perdure/internal/server/store"
)

// These bound one step of retention: the rows of a kind that it removes, and the webhooks that it
// reads.
const (
	unusedRows  = 250
	unusedHooks = 100
)

// Unused counts the rows of each kind that a step of retention removed.
type Unused struct{ Workers, Webhooks, Keys, Kinds int }

// dropUnused removes a bounded number of unused workers, webhooks, keys and kinds. It goes through the
// webhooks once in each round of retention, because some that are due stay.
func dropUnused(tx *kernel.Tx, at *Retention) (did Unused, more bool, err error) {
	p := tx.Engine.Policy()
	workersBefore := tx.Now.Add(-max(p.WorkerRetention, p.Lease))
	if did.Workers, err = tx.DB.Workers.DropUnused(workersBefore, unusedRows); err != nil {
		return did, false, err
	}
	keysBefore := tx.Now.Add(-max(p.KeyRetention, p.IdempotencyTTL))
	if did.Keys, err = tx.DB.Keys.DropUnused(keysBefore, unusedRows); err != nil {
		return did, false, err
	}
	if at.Tenant == "" || at.Hook != (store.HookCursor{}) {
		if did.Webhooks, at.Hook, err = dropWebhooks(tx, at.Hook); err != nil {
			return did, false, err
		}
	}
	kinds, moreKinds, err := dropKinds(tx, &at.Kinds)
	if err != nil {
		return did, false, err
	}
	did.Kinds = kinds
	return did, did.Workers == unusedRows || did.Keys >= unusedRows || at.Hook != (store.HookCursor{}) || moreKinds, nil
}

// dropWebhooks removes webhooks that were deleted, and those that came with runs which no longer
// exist.
func dropWebhooks(tx *kernel.Tx, at store.HookCursor) (n int, next store.HookCursor, err error) {
	p := tx.Engine.Policy()
	list, next, err := tx.DB.Webhooks.Unused(at, tx.Now.Add(-max(p.WebhookRetention, p.Retention)), unusedHooks)
	if err != nil {
		return 0, at, err
	}
	for i := range list {
		w := &list[i]
		if w.DeletedAt == 0 && w.DisabledAt != 0 && w.DisabledReason != outbox.GoneReason {
			// A person disabled it. If it were removed, the next run with its URL would create it
			// enabled.
			continue
		}
		if w.Scope == perdure.OfRun {
			q, err := tx.DB.Webhooks.Quota(w.Tenant, perdure.OfRun)
			if err != nil {
				return n, at, err
			}
			q.Removed = max(q.Removed, int64(w.SecretVersion))
			tx.DB.Webhooks.PutQuota(q)
		}
		tx.DB.Webhooks.Drop(w)
		n++
	}
	return n, next, nil
}

// A Retention is the cursor of retention. It goes through the tenants one after the other, and
// through each tenant's runs from the oldest.
type Retention struct {
	Tenant perdure.TenantID
	After  perdure.RunID
	// Hook is the cursor among the unused webhooks.
	Hook store.HookCursor
	// Kinds is the cursor among the kinds.
	Kinds KindPass
}

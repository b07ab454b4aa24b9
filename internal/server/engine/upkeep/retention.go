package upkeep

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/access"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/rules"
	"github.com/perdure/perdure/internal/server/store"
)

// These bound one step of retention: the runs that it reads, the runs that it removes, and the
// tenants that it passes.
const (
	retainLook    = 1000
	retainRuns    = 100
	retainTenants = 16
)

// Retained is the result of one step.
type Retained struct {
	Tenant perdure.TenantID
	// Runs counts the runs that were removed.
	Runs int
	// Rows counts the other rows that were removed.
	Rows Unused
	// More is set if the next step should follow at once.
	More bool
}

// Retain removes a bounded number of expired rows. It removes runs that ended longer ago than the
// policy's Retention, unless something live or open refers to them. It also removes rows left over
// from removed runs, audit entries, and unused workers, webhooks, keys and kinds.
func Retain(tx *kernel.Tx, at Retention) (next Retention, did Retained, err error) {
	more, err := tx.DB.Removals.Clear()
	if err != nil {
		return at, did, err
	}
	threads, err := removeTreeThreads(tx, tx.DB.Trees.Due)
	if err != nil {
		return at, did, err
	}
	more = more || threads
	aged, err := access.TrimAudit(tx)
	if err != nil {
		return at, did, err
	}
	over, err := tx.DB.Pauses.DropOver(tx.Now.Add(-rules.PauseKept), unusedRows)
	if err != nil {
		return at, did, err
	}
	deleted, err := tx.DB.Schedules.DropDeleted(tx.Now.Add(-life.ScheduleKept), unusedRows)
	if err != nil {
		return at, did, err
	}
	keys, err := tx.DB.LimitKeys.DropUnused(tx.Now.Add(-life.LimitKeyKept), unusedRows)
	if err != nil {
		return at, did, err
	}
	more = more || keys == unusedRows
	free, err := tx.DB.Unique.DropFree(tx.Now.Add(-life.KeyKept), unusedRows)
	if err != nil {
		return at, did, err
	}
	more = more || aged || over == unusedRows || deleted == unusedRows || free == unusedRows
	rows, unused, err := dropUnused(tx, &at)
	if err != nil {
		return at, did, err
	}
	more = more || unused
	before := tx.Now.Add(-tx.Engine.Policy().Retention)
	for range retainTenants {
		if at.Tenant == "" {
			if at.Tenant, err = tx.DB.Tenants.Next(""); err != nil || at.Tenant == "" {
				return at, Retained{Rows: rows, More: more}, err
			}
		}
		did = Retained{Tenant: at.Tenant, Rows: rows}
		if did.Runs, at.After, err = retireRuns(tx, at.Tenant, at.After, before); err != nil {
			return at, did, err
		}
		if at.After == "" {
			if err := dropEndedGroups(tx, at.Tenant, before); err != nil {
				return at, did, err
			}
			if at.Tenant, err = tx.DB.Tenants.Next(at.Tenant); err != nil {
				return at, did, err
			}
		}
		if did.Runs > 0 || at.After != "" || at.Tenant == "" {
			break
		}
	}
	did.More = more || did.Runs > 0 || at.Tenant != ""
	return at, did, nil
}

// retireRuns removes expired runs of a tenant.
func retireRuns(
	tx *kernel.Tx, t perdure.TenantID, after perdure.RunID, before perdure.Instant,
) (n int, next perdure.RunID, err error) {
	aged, next, err := tx.DB.Removals.Aged(t, after, before, retainLook)
	if err != nil {
		return 0, next, err
	}
	var spent []store.Spent
	for _, r := range aged {
		if r.FinishedAt == 0 || r.FinishedAt > before {
			continue
		}
		if spent = append(spent, r); len(spent) == retainRuns {
			next = r.ID
			break
		}
	}
	if len(spent) == 0 {
		return 0, next, nil
	}
	wanted, err := tx.DB.Removals.Wanted(t, spent, true)
	if err != nil {
		return 0, next, err
	}
	gone := spent[:0]
	for _, r := range spent {
		if wanted[r.ID] == "" {
			gone = append(gone, r)
		}
	}
	if len(gone) > 0 {
		kernel.Touch(tx, t)
	}
	var roots []perdure.RunID
	for _, r := range gone {
		if r.ID == r.Root {
			roots = append(roots, r.ID)
		}
	}
	if err := tx.DB.Trees.Drop(t, roots, true); err != nil {
		return 0, next, err
	}
	return len(gone), next, tx.DB.Removals.DropSpent(t, gone)
}

// dropEndedGroups removes some groups of a tenant that ended before an instant.
func dropEndedGroups(tx *kernel.Tx, t perdure.TenantID, before perdure.Instant) error {
	some, err := tx.DB.Groups.HasEnded(t, before)
	if err == nil && some {
		tx.DB.Groups.DropEnded(t, before, retainRuns)
	}
	return err
}

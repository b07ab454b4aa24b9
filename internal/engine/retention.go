package engine

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/store"
)

// How many runs retention looks at in one step, how many of them it removes, and how many tenants without any it passes.
const (
	retainLook    = 1000
	retainRuns    = 100
	retainTenants = 16
)

// A Retention is where retention is on its way through all runs, oldest first, one tenant after the other.
type Retention struct {
	Tenant perdure.TenantID
	After  perdure.RunID
	Hook   store.HookCursor // where it is among the unused webhooks
}

// Retained is what a step of it did.
type Retained struct {
	Tenant perdure.TenantID
	Runs   int    // that are gone
	Rows   Unused // beside them
	More   bool   // there is more to do at once
}

// Retain removes a bounded part of what has had its time: runs that ended longer ago than the policy's retention, and to which
// nobody refers that is live or open, and what is left of those that are gone already.
func (tx *Tx) Retain(at Retention) (next Retention, did Retained, err error) {
	more, err := tx.DB.Removals.Clear()
	if err != nil {
		return at, did, err
	}
	aged, err := trimAudit(tx)
	if err != nil {
		return at, did, err
	}
	more = more || aged
	rows, unused, err := dropUnused(tx, &at)
	if err != nil {
		return at, did, err
	}
	more = more || unused
	before := tx.Now.Add(-tx.e.policy.Retention)
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

// retireRuns removes runs of a tenant that have had their time.
func retireRuns(tx *Tx, t perdure.TenantID, after perdure.RunID, before perdure.Instant) (n int, next perdure.RunID, err error) {
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
	return len(gone), next, tx.DB.Removals.DropSpent(t, gone)
}

func dropEndedGroups(tx *Tx, t perdure.TenantID, before perdure.Instant) error {
	some, err := tx.DB.Groups.HasEnded(t, before)
	if err == nil && some {
		tx.DB.Groups.DropEnded(t, before, retainRuns)
	}
	return err
}

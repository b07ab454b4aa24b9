package watchdog

import (
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
)

// A sweep may have to stop before it has acted on all rows that it has found. So it takes the tenants in turns: the
// first row of each, then the second of each. The next sweep begins with the tenant behind the last one that was acted
// on. A tenant with thousands of due rows then delays the rows of another tenant by a round, and not by thousands.

// takeTurns orders the rows of a part in this way. Rows of one tenant stay in their order.
func takeTurns[T any](rows []T, after perdure.TenantID, tenant func(*T) perdure.TenantID) []T {
	byTenant := make(map[perdure.TenantID][]T)
	var tenants []perdure.TenantID
	for i := range rows {
		t := tenant(&rows[i])
		if byTenant[t] == nil {
			tenants = append(tenants, t)
		}
		byTenant[t] = append(byTenant[t], rows[i])
	}
	if len(tenants) < 2 {
		return rows
	}
	slices.Sort(tenants)
	first, found := slices.BinarySearch(tenants, after)
	if found {
		first++
	}
	tenants = slices.Concat(tenants[first:], tenants[:first])
	out := make([]T, 0, len(rows))
	for n := 0; len(out) < len(rows); n++ {
		for _, t := range tenants {
			if n < len(byTenant[t]) {
				out = append(out, byTenant[t][n])
			}
		}
	}
	return out
}

// eachInTurn calls act for the rows of a part until the sweep has done enough. It skips rows that are set aside, and
// notes the tenant that was last, once the sweep is written. The first row is acted on in any case, so that every sweep
// gets on. key names a row by its tenant and its id.
func eachInTurn[T any](s *Sweep, tx *kernel.Tx, part string, rows []T, key func(*T) (perdure.TenantID, string),
	act func(*T) error) error {
	tenant := func(row *T) perdure.TenantID { t, _ := key(row); return t }
	rows = takeTurns(rows, s.w.lastTenant[part], tenant)
	var last perdure.TenantID
	acted := len(rows)
	for i := range rows {
		if i > 0 && tx.OverBudget() {
			s.More, acted = true, i
			break
		}
		t, id := key(&rows[i])
		skip, full := s.begin(tx, asideRow{part, t, id})
		if full {
			s.More, acted = true, i
			break
		}
		if last = t; skip {
			continue
		}
		if err := act(&rows[i]); err != nil {
			return err
		}
	}
	tx.DB.After(func() {
		if len(rows) > 0 {
			s.w.lastTenant[part] = last
		}
		if part == "runs" {
			s.w.readRuns(acted, acted < len(rows))
		}
	})
	return nil
}

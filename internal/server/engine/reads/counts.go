package reads

import (
	"context"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

const (
	// maxTallied bounds the live runs that a count looks at.
	maxTallied = 200_000
	// maxTalliedEnded bounds the newest runs among which a count looks for ended ones.
	maxTalliedEnded = 10_000
	// minTallied is the least of them for each of many tenants.
	minTallied = 50
)

// Counts are the numbers of runs by kind, queue and status.
type Counts struct {
	Runs []store.RunCount
	// More tells that there are more live runs than were counted.
	More bool
	// Since is when the oldest run was created among which ended runs were counted. Zero: all were.
	Since perdure.Instant
}

// CountLive counts the live runs of a tenant that match a filter.
func (q Runs) CountLive(ctx context.Context, t perdure.TenantID, f RunFilter) (c Counts, err error) {
	err = q.e.Store().View(ctx, func(v *store.View) (err error) {
		c.Runs, c.More, err = v.TallyLive(t, f, maxTallied)
		return err
	})
	return c, err
}

// CountEnded counts the ended runs of a tenant that match a filter, among its newest runs.
func (q Runs) CountEnded(ctx context.Context, t perdure.TenantID, f RunFilter) (c Counts, err error) {
	err = q.overTenants(ctx, t, func(v *store.View, t perdure.TenantID, of int) error {
		list, oldest, err := v.TallyEnded(t, f, max(minTallied, maxTalliedEnded/of))
		if err != nil || oldest == "" {
			c.Runs = append(c.Runs, list...)
			return err
		}
		r, _, err := v.Runs.Get(t, oldest)
		c.Runs, c.Since = append(c.Runs, list...), max(c.Since, r.CreatedAt)
		return err
	})
	return c, err
}

// overTenants calls f for a tenant, or for each of them, with the number of tenants that share the bounds.
func (q Runs) overTenants(
	ctx context.Context, t perdure.TenantID, f func(v *store.View, t perdure.TenantID, of int) error,
) error {
	return q.e.Store().View(ctx, func(v *store.View) error {
		if t != kernel.AllTenants {
			return f(v, t, 1)
		}
		list, err := allTenants(v)
		for _, t := range list {
			if err == nil {
				err = f(v, t, len(list))
			}
		}
		return err
	})
}

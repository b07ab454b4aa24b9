package reads

import (
	"context"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// Limits reads limits.
type Limits struct{ e *kernel.Engine }

// A Limit is a limit with the sum of its keys.
type Limit struct {
	store.LimitRow
	Total store.LimitTotal
	// Key has the counts of the limit if it has no keys of its own.
	Key store.LimitKeyRow
}

// A LimitKey has the counts of a key of a limit.
type LimitKey = store.LimitKeyRow

const (
	// maxHeldRead bounds the runs of a tenant that are read to find those that hold a slot.
	maxHeldRead = 2000
	// maxShownRuns bounds the holders and waiters of a limit that are shown.
	maxShownRuns = 100
)

func readLimitRow(v *store.View, row store.LimitRow) (out Limit, err error) {
	out.LimitRow = row
	if out.Total, err = v.LimitKeys.Total(row.Tenant, row.Name); err == nil && !row.PerKey {
		out.Key, _, err = v.LimitKeys.Get(row.Tenant, perdure.LimitRef{Limit: row.Name})
	}
	return out, err
}

// Get reads a limit that is not deleted.
func (q Limits) Get(ctx context.Context, t perdure.TenantID, name string) (out Limit, err error) {
	if perdure.CheckName("name", name) != nil {
		return out, kernel.NotFound("limit") // no limit has such a name
	}
	err = q.e.Store().View(ctx, func(v *store.View) error {
		row, ok, err := v.Limits.Get(t, name)
		if err == nil && (!ok || row.DeletedAt != 0) {
			err = kernel.NotFound("limit")
		}
		if err == nil {
			out, err = readLimitRow(v, row)
		}
		return err
	})
	return out, err
}

// Page lists the limits of a tenant by name.
func (q Limits) Page(
	ctx context.Context, t perdure.TenantID, p kernel.Page,
) (list []Limit, next string, err error) {
	p.Limit = min(p.Limit, 100) // each of them sums up its keys
	err = q.e.Store().View(ctx, func(v *store.View) error {
		var rows []store.LimitRow
		if rows, next, err = v.Limits.Page(t, p); err != nil {
			return err
		}
		for _, row := range rows {
			x, err := readLimitRow(v, row)
			if err != nil {
				return err
			}
			list = append(list, x)
		}
		return nil
	})
	return list, next, err
}

// Keys lists the keys of a limit.
func (q Limits) Keys(
	ctx context.Context, t perdure.TenantID, name string, p kernel.Page,
) (list []store.LimitKeyRow, next string, err error) {
	if _, err := q.Get(ctx, t, name); err != nil {
		return nil, "", err
	}
	err = q.e.Store().View(ctx, func(v *store.View) error {
		list, next, err = v.LimitKeys.Page(t, name, p)
		return err
	})
	return list, next, err
}

// Runs gives some of the runs that hold slots of a limit and of those that wait there.
func (q Limits) Runs(
	ctx context.Context, t perdure.TenantID, at perdure.LimitRef, anyKey bool,
) (holders, waiters []perdure.Run, err error) {
	err = q.e.Store().View(ctx, func(v *store.View) error {
		held, err := v.LimitLines.Held(t, maxHeldRead)
		if err != nil {
			return err
		}
		for i := range held {
			if holds(held[i].Limited, at, anyKey) && len(holders) < maxShownRuns {
				holders = append(holders, held[i])
			}
		}
		waiters, err = v.LimitLines.Waiting(t, at, anyKey, maxShownRuns)
		return err
	})
	return holders, waiters, err
}

// holds tells whether a run, or a step of it, holds a slot of a limit.
func holds(l *perdure.Limited, at perdure.LimitRef, anyKey bool) bool {
	here := func(ref perdure.LimitRef) bool { return ref.Limit == at.Limit && (anyKey || ref.Key == at.Key) }
	return l.Held && slices.ContainsFunc(l.Refs, here) || slices.ContainsFunc(l.Steps, func(s perdure.StepSlot) bool {
		return slices.ContainsFunc(s.Refs, here)
	})
}

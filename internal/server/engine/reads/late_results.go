package reads

import (
	"context"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// LateResults lists the late results of a run after the one numbered after, in full, up to the
// bytes of a page. next is the number of the last one if there are more, and zero otherwise.
func (q Runs) LateResults(
	ctx context.Context, t perdure.TenantID, id perdure.RunID, after, limit int,
) (list []perdure.LateResult, next int, err error) {
	err = q.e.Store().View(ctx, func(v *store.View) error {
		if _, ok, err := v.Runs.Get(t, id); err != nil {
			return err
		} else if !ok {
			return kernel.NotFound("run")
		}
		all, err := v.LateResults.List(t, id)
		if err != nil {
			return err
		}
		list, next, err = latePage(v, all, after, limit)
		return err
	})
	return list, next, err
}

// latePage selects a page of late results and resolves their values.
func latePage(
	v *store.View, all []perdure.LateResult, after, limit int,
) (list []perdure.LateResult, next int, err error) {
	left := store.PageBytes
	for _, l := range all {
		if l.N <= after {
			continue
		}
		if l.Result, err = v.Values.Resolve(l.Tenant, l.Result); err != nil {
			return nil, 0, err
		}
		n := len(list)
		// JSON escapes can make a summary six times as long.
		if left -= len(l.Result) + 6*len(l.Summary) + 1024; n == limit || n > 0 && left < 0 {
			return list, list[n-1].N, nil
		}
		list = append(list, l)
	}
	return list, 0, nil
}

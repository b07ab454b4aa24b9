package reads

import (
	"context"
	"maps"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/store"
)

// AnyToStop tells whether the run of one of the leases is asked to stop and its worker has not
// acknowledged that. Leases that are stale do not count. They are given as epochs by tenant and
// run.
func (q Runs) AnyToStop(
	ctx context.Context, leases map[perdure.TenantID]map[perdure.RunID]int64,
) (found bool, err error) {
	err = q.e.Store().View(ctx, func(v *store.View) error {
		for t, epochs := range leases {
			runs, err := v.Runs.ByID(t, slices.Sorted(maps.Keys(epochs)))
			if err != nil {
				return err
			}
			for i := range runs {
				r := &runs[i]
				found = found || r.State.Live() && r.Epoch == epochs[r.ID] && r.Cancel.Pending()
			}
		}
		return nil
	})
	return found, err
}

package reads

import (
	"context"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// Views lists the views of a run, without their values.
func (q Runs) Views(ctx context.Context, t perdure.TenantID, id perdure.RunID) (list []store.Published, err error) {
	err = q.e.Store().View(ctx, func(v *store.View) error {
		if _, ok, err := v.Runs.Get(t, id); err != nil {
			return err
		} else if !ok {
			return kernel.NotFound("run")
		}
		list, err = v.Views.List(t, id)
		return err
	})
	return list, err
}

// View reads the latest value of a view of a run.
func (q Runs) View(
	ctx context.Context, t perdure.TenantID, id perdure.RunID, name string,
) (p store.Published, err error) {
	err = q.e.Store().View(ctx, func(v *store.View) error {
		if _, ok, err := v.Runs.Get(t, id); err != nil {
			return err
		} else if !ok {
			return kernel.NotFound("run")
		}
		var ok bool
		if p, ok, err = v.Views.Get(t, id, name); err == nil && !ok {
			err = kernel.NotFound("view")
		}
		return err
	})
	return p, err
}

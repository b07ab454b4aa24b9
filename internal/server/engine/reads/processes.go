package reads

import (
	"context"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/store"
)

// Processes reads runs of the class process, of all tenants.
type Processes struct{ e *kernel.Engine }

// Get reads a process by its id alone.
func (q Processes) Get(ctx context.Context, id perdure.RunID) (r perdure.Run, err error) {
	err = q.e.Store().View(ctx, func(v *store.View) error {
		var ok bool
		if r, ok, err = v.Processes.Get(id); err == nil && !ok {
			err = kernel.NotFound("job")
		}
		return err
	})
	return r, err
}

// Of reads those of the ids that are processes.
func (q Processes) Of(ctx context.Context, ids []perdure.RunID) (list []perdure.Run, err error) {
	err = q.e.Store().Keep(ctx, func(v *store.View) error {
		list, err = v.Processes.Of(ids)
		return err
	})
	return list, err
}

// Ages reads the leased processes in the order of their ids, without anything but what their tiers
// follow from. It reads at most MaxAges.
func (q Processes) Ages(ctx context.Context) (list []perdure.Run, err error) {
	err = q.e.Store().Count(ctx, func(v *store.View) error {
		list, err = v.Processes.Ages(life.MaxAges)
		return err
	})
	return list, err
}

// Failed reads failed processes, newest first, before one of them. next is where the next page begins,
// if there may be more.
func (q Processes) Failed(
	ctx context.Context, before perdure.RunID, limit int,
) (list []perdure.Run, next perdure.RunID, err error) {
	err = q.e.Store().View(ctx, func(v *store.View) error {
		list, next, err = v.Processes.Failed(before, limit)
		return err
	})
	return list, next, err
}

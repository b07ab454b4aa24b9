package reads

import (
	"context"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// Schedules reads schedules.
type Schedules struct{ e *kernel.Engine }

// A Schedule is a schedule as it is stored.
type Schedule = store.ScheduleRow

// Get reads a schedule that is not deleted.
func (q Schedules) Get(ctx context.Context, t perdure.TenantID, name string) (row store.ScheduleRow, err error) {
	if perdure.CheckName("name", name) != nil {
		return row, kernel.NotFound("schedule") // no schedule has such a name
	}
	err = q.e.Store().View(ctx, func(v *store.View) error {
		var ok bool
		if row, ok, err = v.Schedules.Get(t, name); err == nil && (!ok || row.DeletedAt != 0) {
			err = kernel.NotFound("schedule")
		}
		return err
	})
	return row, err
}

// Page lists the schedules of a tenant by name.
func (q Schedules) Page(
	ctx context.Context, t perdure.TenantID, p kernel.Page,
) (list []store.ScheduleRow, next string, err error) {
	err = q.e.Store().View(ctx, func(v *store.View) error {
		list, next, err = v.Schedules.Page(t, p)
		return err
	})
	return list, next, err
}

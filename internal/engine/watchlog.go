package engine

import (
	"context"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/store"
)

// A WatchFilter chooses entries of the watchdog's log; see the store's.
type WatchFilter = store.WatchFilter

// WatchdogLog lists what the watchdog did, newest first. It refuses the id of a run that does not
// exist: that nothing was done to it would be said of a mistyped one too. likely is the tenant that
// such a run is looked for in first, if the filter names none.
func (e *Engine) WatchdogLog(
	ctx context.Context, f WatchFilter, likely perdure.TenantID,
) (list []perdure.WatchdogAction, err error) {
	err = e.store.View(ctx, func(v *store.View) error {
		list, err = v.WatchLog.Page(f)
		if err != nil || len(list) > 0 || f.Run == "" || f.Before != "" {
			return err
		}
		t := f.Tenant
		if t == "" {
			if t, err = v.Runs.TenantOf(f.Run, likely); err != nil {
				return err
			}
		}
		if _, ok, err := v.Runs.Get(t, f.Run); err != nil || ok {
			return err
		}
		return notFound("run")
	})
	return list, err
}

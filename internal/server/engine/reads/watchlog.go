package reads

import (
	"context"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// A WatchFilter selects entries of the watchdog's log; see the store's.
type WatchFilter = store.WatchFilter

// WatchdogLog lists actions of the watchdog, newest first. It refuses the id of a run that does not
// exist, because an empty list for a mistyped id would be misleading. likely is the tenant to look
// for the run in first, if the filter names none.
func WatchdogLog(
	ctx context.Context, e *kernel.Engine, f WatchFilter, likely perdure.TenantID,
) (list []perdure.WatchdogAction, err error) {
	err = e.Store().View(ctx, func(v *store.View) error {
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
		return kernel.NotFound("run")
	})
	return list, err
}

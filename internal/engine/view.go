package engine

import (
	"context"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/store"
)

// A view is a named value that a run publishes with a commit, for anybody who wants to know its
// state. The latest value of each name is kept and shown until the run is removed. The log has no
// line about it.

// publishViews replaces the values of views of a run, with secrets redacted.
func publishViews(tx *Tx, r *perdure.Run, views []perdure.View) error {
	if len(views) == 0 {
		return nil
	}
	list, err := tx.DB.Views.List(r.Tenant, r.ID)
	if err != nil {
		return err
	}
	have := make(map[string]store.Published, len(list)+len(views))
	for _, p := range list {
		have[p.Name] = p
	}
	for _, v := range views {
		value := perdure.Value(tx.e.secrets.Values(v.Value))
		p := store.Published{Tenant: r.Tenant, RunID: r.ID, Name: v.Name, Value: value, Size: int64(len(value)),
			Version: have[v.Name].Version + 1, At: tx.Now}
		if have[v.Name] = p; len(have) > perdure.MaxViews {
			return perdure.OverBound("views", "the run has %d views, and may have no more", perdure.MaxViews)
		}
		tx.DB.Views.Put(p)
	}
	return nil
}

// Views lists the views of a run, without their values.
func (q Runs) Views(ctx context.Context, t perdure.TenantID, id perdure.RunID) (list []store.Published, err error) {
	err = q.e.store.View(ctx, func(v *store.View) error {
		if _, ok, err := v.Runs.Get(t, id); err != nil {
			return err
		} else if !ok {
			return notFound("run")
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
	err = q.e.store.View(ctx, func(v *store.View) error {
		if _, ok, err := v.Runs.Get(t, id); err != nil {
			return err
		} else if !ok {
			return notFound("run")
		}
		var ok bool
		if p, ok, err = v.Views.Get(t, id, name); err == nil && !ok {
			err = notFound("view")
		}
		return err
	})
	return p, err
}

package life

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// A view is a named value that a run publishes with a commit, for anybody who wants to know its
// state. The latest value of each name is kept and shown until the run is removed. The log has no
// line about it.

// publishViews replaces the values of views of a run, with secrets redacted.
func publishViews(tx *kernel.Tx, r *perdure.Run, views []perdure.View) error {
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
		value := perdure.Value(tx.Engine.Secrets.Values(v.Value))
		p := store.Published{Tenant: r.Tenant, RunID: r.ID, Name: v.Name, Value: value, Size: int64(len(value)),
			Version: have[v.Name].Version + 1, At: tx.Now}
		if have[v.Name] = p; len(have) > perdure.MaxViews {
			return perdure.OverBound("views", "the run has %d views, and may have no more", perdure.MaxViews)
		}
		tx.DB.Views.Put(p)
	}
	return nil
}

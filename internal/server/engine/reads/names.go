package reads

import (
	"context"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// ByName finds the run that a caller has given a name, and the line of its log that the name begins at.
func (q Runs) ByName(ctx context.Context, t perdure.TenantID, name string) (id perdure.RunID, from int64, err error) {
	row, err := named(ctx, q.e, t, store.NamedRun, name)
	return perdure.RunID(row.Owner), row.FromSeq, err
}

// ByName finds the thread that a caller has given a name.
func (q Threads) ByName(ctx context.Context, t perdure.TenantID, name string) (perdure.ThreadID, error) {
	row, err := named(ctx, q.e, t, store.NamedThread, name)
	return perdure.ThreadID(row.Owner), err
}

// Names lists the names of a thread.
func (q Threads) Names(ctx context.Context, t perdure.TenantID, id perdure.ThreadID) (out []string, err error) {
	err = q.e.Store().View(ctx, func(v *store.View) error {
		names, err := v.Names.OfThreads(t, []perdure.ThreadID{id})
		out = names[id]
		return err
	})
	return out, err
}

// named reads a name. The owner may be gone; a read of it finds that out.
func named(
	ctx context.Context, e *kernel.Engine, t perdure.TenantID, of store.Named, name string,
) (row store.NameRow, err error) {
	if perdure.CheckChosenName("name", name) != nil {
		return row, kernel.NotFound(string(of)) // nothing has such a name
	}
	err = e.Store().View(ctx, func(v *store.View) error {
		var ok bool
		if row, ok, err = v.Names.Get(t, of, name); err == nil && !ok {
			err = kernel.NotFound(string(of))
		}
		return err
	})
	return row, err
}

package upkeep

import (
	"context"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/store"
)

// DeleteRun removes an ended run. Its row is removed in this operation, so that it is no longer
// found; the rows that belong to it are removed in steps, and so are the threads that were made for
// children if it is a root. With a Key, repeating it is no error.
type DeleteRun struct {
	Tenant perdure.TenantID
	RunID  perdure.RunID
	Key    string

	// uploads are those of the run's artifacts.
	uploads []string
}

func (op *DeleteRun) Needs() []store.Ref { return kernel.Refs(op.Tenant, op.RunID) }

// Do removes the run's row.
func (op *DeleteRun) Do(tx *kernel.Tx) error {
	_, err := kernel.UnderKey(tx, op.Tenant, "delete:"+string(op.RunID), op.Key, nil, func() (string, error) {
		r, err := tx.Run(op.Tenant, op.RunID)
		if err != nil {
			return "", err
		}
		if r.State.Live() {
			return "", perdure.Errorf(perdure.CodeWrongState, "the run is %s: wait for it, or cancel it first", r.State)
		}
		wanted, err := tx.DB.Removals.Wanted(op.Tenant, []store.Spent{{ID: r.ID, Root: r.RootID}}, false)
		if err != nil {
			return "", err
		}
		if why := wanted[r.ID]; why != "" {
			return "", perdure.Errorf(perdure.CodeInUse, "the run is still needed: %s", why)
		}
		if err := life.FreeKey(tx, &r); err != nil {
			return "", err
		}
		tx.DB.Runs.Drop(&r)
		if r.ID == r.RootID {
			if err := tx.DB.Trees.Drop(op.Tenant, []perdure.RunID{r.ID}, false); err != nil {
				return "", err
			}
		}
		kernel.Touch(tx, op.Tenant)
		if op.uploads, err = tx.DB.Artifacts.UploadsOf(op.Tenant, op.RunID); err != nil {
			return "", err
		}
		return "", tx.Audit(op.Tenant, perdure.AuditRunDelete, string(op.RunID))
	}, func(string) error { return nil })
	return err
}

// DeleteThread removes a thread without live runs. Ended runs of it stay. With a Key, repeating it
// is no error.
type DeleteThread struct {
	Tenant   perdure.TenantID
	ThreadID perdure.ThreadID
	Key      string
}

func (*DeleteThread) Needs() []store.Ref { return nil }

// Do removes the thread's row.
func (op *DeleteThread) Do(tx *kernel.Tx) error {
	_, err := kernel.UnderKey(tx, op.Tenant, "delete:"+string(op.ThreadID), op.Key, nil, func() (string, error) {
		// The thread is read before its runs: a run that joins meanwhile writes the thread's row,
		// and this operation conflicts.
		th, err := life.ReadThread(tx, op.Tenant, op.ThreadID)
		if err != nil {
			return "", err
		}
		why, err := tx.DB.Threads.InUse(op.Tenant, op.ThreadID)
		if err != nil {
			return "", err
		}
		if why != "" {
			return "", perdure.Errorf(perdure.CodeInUse, "the thread is still needed: %s", why)
		}
		tx.DB.Threads.Drop(&th)
		if err := tx.Audit(op.Tenant, perdure.AuditThreadDelete, string(op.ThreadID)); err != nil {
			return "", err
		}
		return "", removeThread(tx, op.Tenant, op.ThreadID)
	}, func(string) error { return nil })
	return err
}

// removeTree is the kind of a Clear of the threads that were made for children of a deleted root.
const removeTree = "tree"

// Clear removes a bounded part of the rows that belong to a deleted run, thread or upload. More
// tells whether there are more.
type Clear struct {
	Tenant perdure.TenantID
	Kind   string
	ID     string

	More bool
}

func (*Clear) Needs() []store.Ref { return nil }

// Lane is the same as that of retention, which removes the same rows.
func (*Clear) Lane() store.Lane { return store.LaneBulk }

// Do removes some rows.
func (op *Clear) Do(tx *kernel.Tx) (err error) {
	if op.Kind == removeTree {
		op.More, err = removeTreeThreads(tx, func() (store.Tree, bool, error) {
			return tx.DB.Trees.Of(op.Tenant, perdure.RunID(op.ID))
		})
		return err
	}
	op.More, err = tx.DB.Removals.ClearOf(op.Tenant, op.Kind, op.ID)
	return err
}

// Delete removes a run or a thread, and the rows that belong to it. If the context ends before, the
// watchdog removes the rest.
func Delete(ctx context.Context, e *kernel.Engine, op kernel.Op) error {
	if err := e.Do(ctx, op); err != nil {
		return err
	}
	var rest []*Clear
	switch op := op.(type) {
	case *DeleteRun:
		rest = append(rest, &Clear{Tenant: op.Tenant, Kind: store.RemoveRun, ID: string(op.RunID)},
			&Clear{Tenant: op.Tenant, Kind: removeTree, ID: string(op.RunID)})
		for _, id := range op.uploads {
			rest = append(rest, &Clear{Tenant: op.Tenant, Kind: store.RemoveUpload, ID: id})
		}
	case *DeleteThread:
		rest = append(rest, &Clear{Tenant: op.Tenant, Kind: store.RemoveThread, ID: string(op.ThreadID)})
	}
	for _, part := range rest {
		err := store.Paced(ctx, func() (more bool, err error) {
			err = e.Do(ctx, part)
			return part.More, err
		})
		if err != nil {
			e.Log.Warn("the rest of what was deleted is removed later", "kind", part.Kind, "id", part.ID, "error", err)
			return nil
		}
	}
	return nil
}

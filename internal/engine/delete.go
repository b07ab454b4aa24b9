package engine

import (
	"context"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/store"
)

// DeleteRun removes an ended run: its row now, so that nobody finds it any more, and what belongs to it bit by bit. With a
// Key, saying it again is no error.
type DeleteRun struct {
	Tenant perdure.TenantID
	RunID  perdure.RunID
	Key    string

	uploads []string // that brought what it left
}

func (op *DeleteRun) Needs() []store.Ref { return refs(op.Tenant, op.RunID) }

// Do removes it.
func (op *DeleteRun) Do(tx *Tx) error {
	_, err := underKey(tx, op.Tenant, "delete:"+string(op.RunID), op.Key, nil, func() (string, error) {
		r, err := tx.run(op.Tenant, op.RunID)
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
		tx.DB.Runs.Drop(&r)
		if op.uploads, err = tx.DB.Artifacts.UploadsOf(op.Tenant, op.RunID); err != nil {
			return "", err
		}
		return "", tx.audit(op.Tenant, perdure.AuditRunDelete, string(op.RunID))
	}, func(string) error { return nil })
	return err
}

// DeleteThread removes a conversation that no live run is on. Runs that were on it stay. With a Key, saying it again is no
// error.
type DeleteThread struct {
	Tenant   perdure.TenantID
	ThreadID perdure.ThreadID
	Key      string
}

func (*DeleteThread) Needs() []store.Ref { return nil }

// Do removes it.
func (op *DeleteThread) Do(tx *Tx) error {
	_, err := underKey(tx, op.Tenant, "delete:"+string(op.ThreadID), op.Key, nil, func() (string, error) {
		th, err := tx.thread(op.Tenant, op.ThreadID) // before who is on it: whoever comes writes its row
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
		if err := tx.audit(op.Tenant, perdure.AuditThreadDelete, string(op.ThreadID)); err != nil {
			return "", err
		}
		return "", removeThread(tx, op.Tenant, op.ThreadID)
	}, func(string) error { return nil })
	return err
}

// removeThread removes the webhooks of a thread that is gone.
func removeThread(tx *Tx, t perdure.TenantID, id perdure.ThreadID) error {
	have, err := tx.DB.Webhooks.List(t)
	if err != nil {
		return err
	}
	for _, w := range have {
		if w.Scope == perdure.OfThread && w.ThreadID == id && w.DeletedAt == 0 {
			w.DeletedAt = tx.Now
			putWebhook(tx, w)
		}
	}
	return nil
}

// Clear removes a part of what is on its way out.
type Clear struct {
	Tenant perdure.TenantID
	Kind   string
	ID     string

	More bool
}

func (*Clear) Needs() []store.Ref { return nil }

// Lane is that of the retention, which does the same.
func (*Clear) Lane() store.Lane { return store.LaneBulk }

// Do removes it.
func (op *Clear) Do(tx *Tx) (err error) {
	op.More, err = tx.DB.Removals.ClearOf(op.Tenant, op.Kind, op.ID)
	return err
}

// Delete removes a run or a thread, and all that belongs to it. What is left when the caller goes away the watchdog removes.
func (e *Engine) Delete(ctx context.Context, op Op) error {
	if err := e.Do(ctx, op); err != nil {
		return err
	}
	var rest []*Clear
	switch op := op.(type) {
	case *DeleteRun:
		rest = append(rest, &Clear{Tenant: op.Tenant, Kind: store.RemoveRun, ID: string(op.RunID)})
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
			e.log.Warn("the rest of what was deleted is removed later", "kind", part.Kind, "id", part.ID, "error", err)
			return nil
		}
	}
	return nil
}

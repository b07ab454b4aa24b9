package engine

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/store"
)

// Renew repeats a node's word that somebody there waits for runs, as it was given by Attach: many at once, and without
// touching the runs. What is no longer written down, because the store was away for too long, is not renewed but
// named: it has to be attached again.
type Renew struct {
	Tenant perdure.TenantID
	Node   string
	RunIDs []perdure.RunID

	Lost []perdure.RunID
}

func (*Renew) Needs() []store.Ref { return nil }

// Do renews.
func (op *Renew) Do(tx *Tx) error {
	op.Lost = nil
	kept, err := tx.DB.Waiters.Renew(op.Tenant, op.Node, op.RunIDs, tx.Now.Add(tx.e.policy.WaiterTTL))
	if err != nil {
		return err
	}
	for _, id := range op.RunIDs {
		if !kept[id] {
			op.Lost = append(op.Lost, id)
		}
	}
	return nil
}

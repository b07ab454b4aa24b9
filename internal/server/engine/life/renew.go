package life

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// Renew extends a node's waiters on runs, as Attach created them: many at once, and without writing
// the runs. Lost names the runs whose waiter has expired meanwhile, for example because the store
// was unreachable. The node attaches these again.
type Renew struct {
	Tenant perdure.TenantID
	Node   string
	RunIDs []perdure.RunID

	Lost []perdure.RunID
}

func (*Renew) Needs() []store.Ref { return nil }

// Do extends the waiters.
func (op *Renew) Do(tx *kernel.Tx) error {
	op.Lost = nil
	kept, err := tx.DB.Waiters.Renew(op.Tenant, op.Node, op.RunIDs, tx.Now.Add(tx.Engine.Policy().WaiterTTL))
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

package life

import (
	"encoding/json"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// Start records that a worker begins to execute runs that it was granted. Repeating it changes
// nothing.
type Start struct {
	Tenant perdure.TenantID
	Worker string
	Leases []Lease

	Results []LeaseResult
}

func (op *Start) Needs() []store.Ref { return leaseRefs(op.Tenant, op.Leases) }

// Do starts the runs.
func (op *Start) Do(tx *kernel.Tx) error {
	if err := RecordWorkerSeen(tx, op.Tenant, op.Worker); err != nil {
		return err
	}
	var err error
	op.Results, err = eachLease(tx, op.Tenant, op.Leases, func(r *perdure.Run, l Lease) error {
		first := r.StartedAt == 0
		if err := tx.Apply(r, perdure.Started{Epoch: l.Epoch}); err != nil {
			return err
		}
		if first {
			return NotifyParentStarted(tx, r)
		}
		return nil
	})
	return err
}

// NotifyParentStarted writes into the parent's log that a child has started.
func NotifyParentStarted(tx *kernel.Tx, r *perdure.Run) error {
	if r.ParentID == "" {
		return nil
	}
	parent, ok, err := tx.DB.Runs.Get(r.Tenant, r.ParentID)
	if err != nil || !ok || !parent.State.Live() {
		return err
	}
	return tx.Apply(&parent, perdure.ChildStarted{Child: r.ID, Worker: r.Worker})
}

func JsonList(list []string) perdure.Value {
	b, _ := json.Marshal(list)
	return perdure.Value(b)
}

// Weight counts leases.
func (op *Start) Weight() (rows, bytes int) { return 2 + 3*len(op.Leases), 1<<10 + 512*len(op.Leases) }

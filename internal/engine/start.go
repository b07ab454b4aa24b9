package engine

import (
	"encoding/json"
	"errors"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/store"
)

// A Lease identifies a worker's hold on a run: the run, and the epoch under which it was granted.
type Lease struct {
	RunID perdure.RunID `json:"run_id"`
	Epoch int64         `json:"epoch"`
}

// A LeaseResult is the answer for one lease of a call. A stale lease does not affect the others.
type LeaseResult struct {
	RunID perdure.RunID `json:"run_id"`
	// Epoch is the one that was presented.
	Epoch int64 `json:"epoch"`
	OK    bool  `json:"ok,omitempty"`
	// Cancel is set if the run is asked to stop.
	Cancel bool `json:"cancel,omitempty"`
	// NewEpoch is the one under which a process goes on whose store was restored.
	NewEpoch int64          `json:"new_epoch,omitempty"`
	Error    *perdure.Error `json:"error,omitempty"`
}

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
func (op *Start) Do(tx *Tx) error {
	if err := recordWorkerSeen(tx, op.Tenant, op.Worker); err != nil {
		return err
	}
	var err error
	op.Results, err = eachLease(tx, op.Tenant, op.Leases, func(r *perdure.Run, l Lease) error {
		first := r.StartedAt == 0
		if err := tx.Apply(r, perdure.Started{Epoch: l.Epoch}); err != nil {
			return err
		}
		if first {
			return notifyParentStarted(tx, r)
		}
		return nil
	})
	return err
}

func leaseRefs(t perdure.TenantID, leases []Lease) []store.Ref {
	out := make([]store.Ref, len(leases))
	for i, l := range leases {
		out[i] = store.Ref{Tenant: t, Run: l.RunID}
	}
	return out
}

// eachLease calls do for the run of each lease, and gives one result each. A refusal becomes the
// lease's result; any other error fails the whole call.
func eachLease(tx *Tx, t perdure.TenantID, leases []Lease, do func(*perdure.Run, Lease) error) ([]LeaseResult, error) {
	if len(leases) > perdure.MaxList {
		return nil, &perdure.Error{Code: perdure.CodeTooLarge, Field: "runs", Message: "a call takes 1000 runs"}
	}
	var out []LeaseResult
	for _, l := range leases {
		res := LeaseResult{RunID: l.RunID, Epoch: l.Epoch}
		err := tx.Try(func() error {
			if err := perdure.CheckEpoch("epoch", l.Epoch); err != nil {
				return err
			}
			r, err := tx.run(t, l.RunID)
			if err != nil {
				return err
			}
			if err := do(&r, l); err != nil {
				return err
			}
			res.OK, res.Cancel = true, r.Cancel.Pending()
			return nil
		})
		if err != nil && !errors.As(err, &res.Error) {
			return nil, err
		}
		out = append(out, res)
	}
	return out, nil
}

// notifyParentStarted writes into the parent's log that a child has started.
func notifyParentStarted(tx *Tx, r *perdure.Run) error {
	if r.ParentID == "" {
		return nil
	}
	parent, ok, err := tx.DB.Runs.Get(r.Tenant, r.ParentID)
	if err != nil || !ok || !parent.State.Live() {
		return err
	}
	return tx.Apply(&parent, perdure.ChildStarted{Child: r.ID, Worker: r.Worker})
}

func jsonList(list []string) perdure.Value {
	b, _ := json.Marshal(list)
	return perdure.Value(b)
}

package life

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/rules"
	"github.com/perdure/perdure/internal/server/store"
)

// Release returns runs that a worker has not finished, because it shuts down. It costs no attempt. A
// run with a single attempt that has begun is not executed a second time, and ends, unless its lease says
// not before when: its worker could do nothing then.
type Release struct {
	Tenant perdure.TenantID
	Worker string
	Leases []Lease
	// Unsent is set by the server itself: the worker hung up and never got the grants.
	Unsent bool

	Results []LeaseResult
}

func (op *Release) Needs() []store.Ref { return leaseRefs(op.Tenant, op.Leases) }

// Do queues the runs again. A run that is being cancelled ends instead, unless steps are to be undone.
func (op *Release) Do(tx *kernel.Tx) (err error) {
	op.Results, err = eachLease(tx, op.Tenant, op.Leases, func(r *perdure.Run, l Lease) error {
		if r.Cancel.RequestedAt != 0 && r.Epoch == l.Epoch && r.State.Leased() {
			return LoseCancelled(tx, r, l.Epoch, "released", "released while the run was being cancelled")
		}
		if l.NotBefore > tx.Now.Add(perdure.MaxReleased) {
			return perdure.Invalid("not_before", "lies more than %s ahead", perdure.MaxReleased)
		}
		if r.BegunOnce() && r.Epoch == l.Epoch && !(op.Unsent && r.Spent) && l.NotBefore == 0 {
			return Finish(tx, r, perdure.GaveUp{Epoch: l.Epoch, Failure: perdure.Failure{
				Code:    perdure.CodeOutcomeUnknown,
				Message: "its only attempt had begun when its worker handed it back"}})
		}
		return Requeue(tx, r, perdure.Released{Epoch: l.Epoch, Unsent: op.Unsent, NotBefore: l.NotBefore})
	})
	return err
}

// Requeue takes a run from its holder and queues it again.
func Requeue(tx *kernel.Tx, r *perdure.Run, ev perdure.Event) error {
	return tx.Apply(r, ev)
}

// Weight counts leases.
func (op *Release) Weight() (rows, bytes int) {
	return 2 + 3*len(op.Leases), 1<<10 + 512*len(op.Leases)
}

// RetryOrFail handles an execution that failed with a retryable error, or whose lease was lost
// (epoch 0). It queues another attempt if some remain and the run's kind retries the error, and ends
// the run otherwise.
func RetryOrFail(tx *kernel.Tx, r *perdure.Run, epoch int64, why perdure.Failure) error {
	kind, err := rules.KindOf(tx, r.Tenant, r.Kind)
	if err != nil {
		return err
	}
	ev := tx.Engine.Policy().AfterLoss(r, epoch, why, kind, tx.Roll())
	if end, ok := ev.(perdure.CancelEnforced); ok {
		return LoseCancelled(tx, r, 0, string(why.Code), end.Why)
	}
	if _, again := ev.(perdure.Retried); !again {
		return Finish(tx, r, ev)
	}
	return Requeue(tx, r, ev)
}

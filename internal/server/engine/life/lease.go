package life

import (
	"errors"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// A Lease identifies a worker's hold on a run: the run, and the epoch under which it was granted.
type Lease struct {
	RunID perdure.RunID `json:"run_id"`
	Epoch int64         `json:"epoch"`
	// NotBefore is when a lease that is handed back may be granted again. Zero: at once.
	NotBefore perdure.Instant `json:"not_before,omitempty"`
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

func leaseRefs(t perdure.TenantID, leases []Lease) []store.Ref {
	out := make([]store.Ref, len(leases))
	for i, l := range leases {
		out[i] = store.Ref{Tenant: t, Run: l.RunID}
	}
	return out
}

// eachLease calls do for the run of each lease, and gives one result each. A refusal becomes the
// lease's result; any other error fails the whole call.
func eachLease(
	tx *kernel.Tx, t perdure.TenantID, leases []Lease, do func(*perdure.Run, Lease) error,
) ([]LeaseResult, error) {
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
			r, err := tx.Run(t, l.RunID)
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

// heldRun reads a run, and refuses an epoch that does not hold it.
func heldRun(tx *kernel.Tx, t perdure.TenantID, id perdure.RunID, epoch int64) (perdure.Run, error) {
	r, err := tx.Run(t, id)
	if err != nil {
		return r, err
	}
	return r, Holds(&r, epoch)
}

// Holds refuses an epoch that does not hold the run.
func Holds(r *perdure.Run, epoch int64) error {
	if epoch != r.Epoch || !r.State.Leased() {
		return perdure.Errorf(perdure.CodeStaleEpoch, "epoch %d does not hold this run", epoch)
	}
	return nil
}

// RecordWorkerSeen writes that a worker was seen. It writes at most every eighth of WorkerOffline,
// so that polls and heartbeats do not each write a row.
func RecordWorkerSeen(tx *kernel.Tx, t perdure.TenantID, worker string) error {
	if worker == "" || SeenRecently(tx, t, worker) {
		return nil
	}
	return TryWorkerRow(tx, func() error {
		w, _, err := tx.DB.Workers.Get(t, worker)
		if err != nil {
			return err
		}
		w.Tenant, w.ID, w.SeenAt, w.Offline = t, worker, tx.Now, false
		tx.DB.Workers.Put(w)
		tx.DB.After(func() { RememberSeen(tx, t, worker) })
		return nil
	})
}

// TryWorkerRow writes the row of a worker. If another session has it locked, the operation goes on
// without: the row is only shown, and no lease depends on it.
func TryWorkerRow(tx *kernel.Tx, write func() error) error {
	err := tx.Try(write)
	if store.HeldUp(err) {
		return nil
	}
	return err
}

// recentWorkers has the workers whose row is recent enough. A row that another node removes is written
// again a little later.
var recentWorkers = kernel.NewPart(func(e *kernel.Engine) *kernel.Cache[workerRow, struct{}] {
	return &kernel.Cache[workerRow, struct{}]{TTL: e.Policy().WorkerOffline / 8}
})

// SeenRecently tells whether the row of a worker is recent enough.
func SeenRecently(tx *kernel.Tx, t perdure.TenantID, worker string) bool {
	_, recent := recentWorkers.Of(tx.Engine).Peek(kernel.Look{Now: tx.Now}, workerRow{t, worker})
	return recent
}

// RememberSeen remembers that the row of a worker was written in this operation.
func RememberSeen(tx *kernel.Tx, t perdure.TenantID, worker string) {
	recentWorkers.Of(tx.Engine).Put(tx.Now, workerRow{t, worker}, struct{}{})
}

// A workerRow names the row of a worker.
type workerRow struct {
	tenant perdure.TenantID
	worker string
}

package life

import (
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/plant"
	"github.com/perdure/perdure/internal/server/store"
)

// Operations of the monitor, which reads the files of processes (package sentinel). Each of them is
// fenced by the epoch of the file, so that an older runner's files change nothing.

// A Sentinel names a sentinel file that has moved.
type Sentinel struct {
	Tenant  perdure.TenantID
	RunID   perdure.RunID
	Epoch   int64
	Counter int64
}

// ProcessBeat counts moved sentinels as signs of life of their runs, many in one operation. A run
// that sends heartbeats to a server needs none of them: its row is written only now and then, so
// that the stored count does not fall behind.
type ProcessBeat struct {
	Beats []Sentinel

	// Written counts the runs whose row was written.
	Written int
}

// countsBehind is how far the stored count may fall behind that of the file while heartbeats come.
// An old file that somebody puts back counts as a sign of life at most so often.
const countsBehind = 10

func (op *ProcessBeat) Needs() []store.Ref {
	out := make([]store.Ref, len(op.Beats))
	for i, b := range op.Beats {
		out[i] = store.Ref{Tenant: b.Tenant, Run: b.RunID}
	}
	return out
}

// Weight estimates the cost of the operation.
func (op *ProcessBeat) Weight() (rows, bytes int) {
	return 1 + len(op.Beats), 1 << 10 * (1 + len(op.Beats))
}

// Do counts the beats. A refusal concerns one run, and is none of the others.
func (op *ProcessBeat) Do(tx *kernel.Tx) error {
	op.Written = 0
	for _, b := range op.Beats {
		r, ok, err := tx.DB.Runs.Get(b.Tenant, b.RunID)
		if err != nil {
			return err
		}
		if !ok || r.Epoch != b.Epoch || r.State != perdure.Running {
			continue
		}
		recent := tx.Now.Sub(r.SeenAt) < tx.Policy().Thresholds(&r).Stale/4
		if recent && r.WatchUntil == 0 && b.Counter-r.Counter < countsBehind {
			continue
		}
		err = tx.Try(func() error {
			return tx.Apply(&r, perdure.SentinelMoved{Epoch: b.Epoch, Counter: b.Counter})
		})
		switch {
		case err == nil:
			op.Written++
		case perdure.CodeOf(err) != perdure.CodeStaleEpoch && perdure.CodeOf(err) != perdure.CodeWrongState:
			return err
		}
	}
	return nil
}

// WatchProcess postpones the judgement of a process that may have outlived the server. With a For of
// zero it is watched no longer.
type WatchProcess struct {
	Tenant perdure.TenantID
	RunID  perdure.RunID
	Epoch  int64
	For    time.Duration
}

func (op *WatchProcess) Needs() []store.Ref { return kernel.Refs(op.Tenant, op.RunID) }

// Do sets until when the run is watched.
func (op *WatchProcess) Do(tx *kernel.Tx) error {
	r, err := tx.Run(op.Tenant, op.RunID)
	if err != nil {
		return err
	}
	before := r.WatchUntil
	ev := perdure.ProcessWatched{Epoch: op.Epoch}
	if op.For > 0 {
		ev.Until = tx.Now.Add(op.For)
	}
	if err := tx.Apply(&r, ev); err != nil {
		return err
	}
	if before != 0 {
		return nil // the first request has its entry
	}
	return tx.Audit(op.Tenant, perdure.AuditProcessWatch, string(op.RunID))
}

// ReadoptProcess records that a process has outlived its store: its files have the epoch Former, from
// before the restore. Its runner is given the run's epoch by its next heartbeat. Repeating it changes
// nothing.
type ReadoptProcess struct {
	Tenant perdure.TenantID
	RunID  perdure.RunID
	Former int64
	// For is how long the runner has for its next sign of life.
	For time.Duration

	Run perdure.Run
}

func (op *ReadoptProcess) Needs() []store.Ref { return kernel.Refs(op.Tenant, op.RunID) }

// Do makes the runner the holder of the run.
func (op *ReadoptProcess) Do(tx *kernel.Tx) (err error) {
	if op.Run, err = tx.Run(op.Tenant, op.RunID); err != nil {
		return err
	}
	if !Outlived(&op.Run, op.Former) {
		return perdure.Errorf(perdure.CodeStaleEpoch, "epoch %d does not hold this run (any more): it is %s", op.Former,
			op.Run.State)
	}
	if op.Run.Former == op.Former {
		return nil
	}
	refs, _, err := SlotsFor(tx, &op.Run)
	if err != nil {
		return err
	}
	return tx.Apply(&op.Run, perdure.ProcessFound{Epoch: op.Run.Epoch, Former: op.Former,
		Until: tx.Now.Add(op.For), Limits: refs})
}

// outlivedRefusal is the answer to a heartbeat with an epoch from before a restore. A process that was
// found is told its new epoch. One that was not waits: it must not end before it is looked for. For
// other epochs there is none.
func outlivedRefusal(r *perdure.Run, epoch int64) (newEpoch int64, refused error) {
	switch {
	case !Outlived(r, epoch) || r.Former != 0 && r.Former != epoch:
		return 0, nil
	case r.Former == epoch:
		return r.Epoch, perdure.Errorf(perdure.CodeRestored,
			"the store was restored: the run goes on under the epoch %d", r.Epoch)
	}
	return 0, perdure.Errorf(perdure.CodeRestored, "the store was restored: the server of the workspace has not "+
		"found this process yet")
}

// LoseProcess takes a run from a process that is gone: its lock is free, and it has left no result.
// The run is retried if attempts remain, and fails with heartbeat_lost otherwise.
type LoseProcess struct {
	Tenant perdure.TenantID
	RunID  perdure.RunID
	Epoch  int64
	// Since is when the lock was first seen free. A sign of life after it means that the runner lives,
	// whatever became of the lock.
	Since perdure.Instant
	Why   string

	// Alive is set if there was such a sign of life. Nothing is changed then.
	Alive bool
	Run   perdure.Run
}

func (op *LoseProcess) Needs() []store.Ref { return kernel.Refs(op.Tenant, op.RunID) }

// Do takes the run away.
func (op *LoseProcess) Do(tx *kernel.Tx) error {
	op.Alive = false
	r, err := tx.Run(op.Tenant, op.RunID)
	if err != nil {
		return err
	}
	op.Run = r
	if r.Epoch != op.Epoch || r.State.Terminal() {
		return perdure.Errorf(perdure.CodeStaleEpoch, "epoch %d does not hold this run (any more): it is %s", op.Epoch,
			r.State)
	}
	if !r.Options.Process || r.State != perdure.Running || !r.HolderSeen {
		return perdure.Errorf(perdure.CodeWrongState, "the run is no process that runs: it is %s", r.State)
	}
	if r.SeenAt > op.Since && !plant.Is("lock-taken-for-free") {
		op.Alive = true
		return nil
	}
	err = RetryOrFail(tx, &r, 0, perdure.Failure{Code: perdure.CodeHeartbeatLost, Message: op.Why})
	op.Run = r
	return err
}

// MaxAges bounds the processes that Ages reads.
const MaxAges = 100_000

package life

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/doorbell"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/rules"
	"github.com/perdure/perdure/internal/server/store"
)

// holdPolicy gives how long a run may be on hold, and whether a defect holds it at all. Its kind
// decides, and the policy where the kind is silent.
func holdPolicy(tx *kernel.Tx, r *perdure.Run) (timeout time.Duration, hold bool, err error) {
	p := tx.Engine.Policy()
	timeout, hold = p.HoldTimeout, p.HoldDefects
	if r.ThreadID != "" {
		timeout = p.HoldTimeoutThread
	}
	def, err := rules.KindOf(tx, r.Tenant, r.Kind)
	if err != nil {
		return 0, false, err
	}
	if def.HoldDefects != nil {
		hold = *def.HoldDefects
	}
	return cmp.Or(time.Duration(def.HoldTimeout), timeout), hold, nil
}

// holdRun queues a run again because its worker reports a defect of the code. Under a cancel request,
// or if the policy says so, a defect is a failure like any other.
func holdRun(tx *kernel.Tx, r *perdure.Run, epoch int64, why perdure.Failure) error {
	timeout, hold, err := holdPolicy(tx, r)
	if err != nil {
		return err
	}
	if !hold || r.Cancel.RequestedAt != 0 {
		return RetryOrFail(tx, r, epoch, why)
	}
	build, err := grantedBuild(tx, r)
	if err != nil {
		return err
	}
	begins, defects := !r.OnHold(), 1
	if r.Hold != nil {
		defects += r.Hold.Count
	}
	before := r.Hold
	err = Requeue(tx, r, perdure.HoldBegun{Epoch: epoch, Failure: why, Build: build, Timeout: timeout,
		Delay: tx.Engine.Policy().Backoff(defects, tx.Roll())})
	if err != nil {
		return err
	}
	if begins {
		if err := noteHold(tx, r); err != nil {
			return err
		}
	}
	if before == nil || !slices.Contains(before.Builds, build) {
		t, id, kind := r.Tenant, r.ID, r.Kind
		tx.DB.After(func() {
			tx.Engine.Log.Warn("run held", "tenant", t, "run", id, "kind", kind, "code", why.Code, "build", build)
		})
	}
	tellHeldBack(tx, r)
	// Polls of other builds may claim it now.
	tx.Ring(doorbell.Queue(r.Tenant, r.Queue).Of(r.Kind))
	return nil
}

// grantedBuild gives the build of the worker that holds a run: the last grant's line has it.
func grantedBuild(tx *kernel.Tx, r *perdure.Run) (string, error) {
	var granted struct {
		Build string `json:"build"`
	}
	err := tx.DB.Events.LastOf(r.Tenant, r.ID, perdure.LineDispatched, 0, func(l perdure.Line) bool {
		_ = json.Unmarshal([]byte(l.Data), &granted) // a line that can't be read names no build
		return true
	})
	return granted.Build, err
}

// noteHold adds a notice to the thread that says that its run is on hold.
func noteHold(tx *kernel.Tx, r *perdure.Run) error {
	return addNotice(tx, r, "This run is on hold because of a fault in its program. It is tried again by itself.",
		"status", "held", "code", string(r.Hold.Failure.Code))
}

// ReleaseHold ends the hold of a run: any worker may claim it now. With a Key it counts once.
type ReleaseHold struct {
	Tenant perdure.TenantID
	RunID  perdure.RunID
	Key    string

	Run perdure.Run
}

func (op *ReleaseHold) Needs() []store.Ref { return kernel.Refs(op.Tenant, op.RunID) }

// Do releases the run.
func (op *ReleaseHold) Do(tx *kernel.Tx) error {
	return onHeldRun(tx, op.Tenant, op.RunID, "release-hold", op.Key, &op.Run, func(r *perdure.Run) error {
		by := ""
		if tx.Actor != nil {
			by = tx.Actor.Name
		}
		if err := tx.Apply(r, perdure.HoldReleased{By: by}); err != nil {
			return err
		}
		return tx.Audit(op.Tenant, perdure.AuditRunReleaseHold, string(op.RunID))
	})
}

// DeadLetterRun ends a run that is on hold, failed with the code of its defect, and writes a dead
// letter. With a Key it counts once.
type DeadLetterRun struct {
	Tenant perdure.TenantID
	RunID  perdure.RunID
	Key    string

	Run perdure.Run
}

func (op *DeadLetterRun) Needs() []store.Ref { return kernel.Refs(op.Tenant, op.RunID) }

// Do ends the run.
func (op *DeadLetterRun) Do(tx *kernel.Tx) error {
	return onHeldRun(tx, op.Tenant, op.RunID, "dead-letter", op.Key, &op.Run, func(r *perdure.Run) error {
		if err := Finish(tx, r, perdure.HoldAbandoned{}); err != nil {
			return err
		}
		return tx.Audit(op.Tenant, perdure.AuditRunDeadLetter, string(op.RunID))
	})
}

// onHeldRun does something to a run that is on hold, once for each key, and refuses any other run.
func onHeldRun(
	tx *kernel.Tx, t perdure.TenantID, id perdure.RunID, action, key string, out *perdure.Run,
	do func(*perdure.Run) error,
) error {
	r, err := tx.Run(t, id)
	if err != nil {
		return err
	}
	_, err = kernel.UnderKey(tx, t, action+":"+string(id), key, nil, func() (string, error) {
		if !r.OnHold() {
			return "", perdure.Errorf(perdure.CodeWrongState, "the run is %s and not on hold", r.State)
		}
		return "", do(&r)
	}, func(string) error { return nil })
	*out = r
	return err
}

package engine

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/doorbell"
	"github.com/perdure/perdure/internal/store"
)

// Holds: runs whose worker has reported a defect of the code; see perdure.Hold.
//
// A poll of a build that has not held a run may claim it during the backoff. Such runs are not
// claimable for others, so the ordinary search does not find them. The engine remembers the places,
// queues and kinds of tenants, that have held runs (heldPlaces). A poll searches these before its
// ordinary search, within bounds. While nothing is held, a poll compares two numbers.
//
// Runs that wait for a worker that cleans up after a cancel request are found in the same way, because
// their grants wait for no pause: the ordinary search skips a paused queue.
//
// The memory is a hint; held_places.go has it. A run whose place is not in the memory is claimed when
// its backoff is over.

// maxHeldRows bounds the held runs that one poll looks at, and maxHeldGrants those it claims.
const (
	maxHeldRows   = 64
	maxHeldGrants = 16
)

// holdPolicy gives how long a run may be on hold, and whether a defect holds it at all. Its kind
// decides, and the policy where the kind is silent.
func holdPolicy(tx *Tx, r *perdure.Run) (timeout time.Duration, hold bool, err error) {
	p := &tx.e.policy
	timeout, hold = p.HoldTimeout, p.HoldDefects
	if r.ThreadID != "" {
		timeout = p.HoldTimeoutThread
	}
	def, err := kindOf(tx, r.Tenant, r.Kind)
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
func holdRun(tx *Tx, r *perdure.Run, epoch int64, why perdure.Failure) error {
	timeout, hold, err := holdPolicy(tx, r)
	if err != nil {
		return err
	}
	if !hold || r.Cancel.RequestedAt != 0 {
		return tx.RetryOrFail(r, epoch, why)
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
	err = tx.Requeue(r, perdure.HoldBegun{Epoch: epoch, Failure: why, Build: build, Timeout: timeout,
		Delay: tx.e.policy.Backoff(defects, tx.Roll())})
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
			tx.e.log.Warn("run held", "tenant", t, "run", id, "kind", kind, "code", why.Code, "build", build)
		})
	}
	place := Ready{Tenant: r.Tenant, Queue: r.Queue, Kind: r.Kind}
	now := tx.Now
	tx.DB.After(func() { tx.e.held.add(place, now) })
	// Polls of other builds may claim it now.
	tx.ring(doorbell.Queue(r.Tenant, r.Queue).Of(r.Kind))
	return nil
}

// grantedBuild gives the build of the worker that holds a run: the last grant's line has it.
func grantedBuild(tx *Tx, r *perdure.Run) (string, error) {
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
func noteHold(tx *Tx, r *perdure.Run) error {
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

func (op *ReleaseHold) Needs() []store.Ref { return refs(op.Tenant, op.RunID) }

// Do releases the run.
func (op *ReleaseHold) Do(tx *Tx) error {
	return onHeldRun(tx, op.Tenant, op.RunID, "release-hold", op.Key, &op.Run, func(r *perdure.Run) error {
		if err := tx.Apply(r, perdure.HoldReleased{}); err != nil {
			return err
		}
		return tx.audit(op.Tenant, perdure.AuditRunReleaseHold, string(op.RunID))
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

func (op *DeadLetterRun) Needs() []store.Ref { return refs(op.Tenant, op.RunID) }

// Do ends the run.
func (op *DeadLetterRun) Do(tx *Tx) error {
	return onHeldRun(tx, op.Tenant, op.RunID, "dead-letter", op.Key, &op.Run, func(r *perdure.Run) error {
		if err := tx.Finish(r, perdure.HoldAbandoned{}); err != nil {
			return err
		}
		return tx.audit(op.Tenant, perdure.AuditRunDeadLetter, string(op.RunID))
	})
}

// onHeldRun does something to a run that is on hold, once for each key, and refuses any other run.
func onHeldRun(
	tx *Tx, t perdure.TenantID, id perdure.RunID, action, key string, out *perdure.Run, do func(*perdure.Run) error,
) error {
	r, err := tx.run(t, id)
	if err != nil {
		return err
	}
	_, err = underKey(tx, t, action+":"+string(id), key, nil, func() (string, error) {
		if !r.OnHold() {
			return "", perdure.Errorf(perdure.CodeWrongState, "the run is %s and not on hold", r.State)
		}
		return "", do(&r)
	}, func(string) error { return nil })
	*out = r
	return err
}

// takeHeld claims runs that are held back and that the poll's build has not held, and runs that wait for
// their clean-up.
func (op *Claim) takeHeld(tx *Tx, s *search, budget *pollBudget) (full bool, err error) {
	if err := tx.e.held.refresh(tx); err != nil {
		return false, err
	}
	rows, slots := maxHeldRows, min(op.Slots, maxHeldGrants)
	for _, at := range tx.e.held.matching(op, tx.Now) {
		if rows <= 0 || len(op.Grants) >= slots {
			break
		}
		c, err := op.enter(tx, at.Tenant)
		if err != nil {
			return false, err
		}
		if c == nil || c.shut(at.Queue, at.Kind, true) != nil {
			continue
		}
		// Clean-up waits for no pause.
		only := op.Build == "" || c.closed(at.Queue, at.Kind) != nil
		limit := min(rows, slots-len(op.Grants)+maxHeldRows/2, s.left()-minSearch)
		if limit <= 0 {
			break // the next poll goes on
		}
		ids, next, err := tx.DB.Claims.HeldBack(at.Ready, op.Build, only, at.after, limit)
		if err != nil {
			return false, err
		}
		rows -= limit
		if left := slots - len(op.Grants); len(ids) > left {
			ids = ids[:left]
			next = ids[left-1]
		}
		if len(ids) == 0 {
			tx.e.held.passed(at.Ready, op.Build, next, tx.Now)
			continue
		}
		found := make([]perdure.Run, len(ids))
		for i, id := range ids {
			found[i] = perdure.Run{Tenant: at.Tenant, ID: id}
		}
		if full, err := s.grant(found, budget); err != nil || full {
			return full, err
		}
		tx.e.held.passed(at.Ready, op.Build, next, tx.Now)
	}
	return false, nil
}

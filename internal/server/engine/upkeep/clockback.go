package upkeep

import (
	"context"
	"math"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/store"
)

// ResetClock sets the clock of a stopped store back to an instant, in steps of a bounded number of
// runs. Each step is atomic, and the last one sets the clock, so a reset that was killed can be
// started again. It gives the number of live runs whose instants were moved.
func ResetClock(ctx context.Context, e *kernel.Engine, now perdure.Instant, by time.Duration) (moved int, err error) {
	step := &setClockBack{by: by, alarm: math.MaxInt64, limit: clockStep}
	for {
		if err := ctx.Err(); err != nil {
			return moved, err
		}
		if err := e.Step(now, step)[0]; err != nil {
			return moved, err
		}
		if moved += step.moved; step.done {
			return moved, nil
		}
		step = step.next
	}
}

// clockStep bounds the live runs that one step reads.
const clockStep = 256

// setClockBack is one step. The steps go through the live runs from the latest alarm to the
// earliest. A run whose alarm was moved back may be read again, and then needs no change.
type setClockBack struct {
	by     time.Duration
	limit  int
	alarm  perdure.Instant
	tenant perdure.TenantID
	run    perdure.RunID

	moved int
	done  bool
	next  *setClockBack
}

func (*setClockBack) Needs() []store.Ref { return nil }

func (op *setClockBack) Do(tx *kernel.Tx) error {
	op.moved, op.done, op.next = 0, false, nil
	live, err := tx.DB.Runs.LiveBefore(op.alarm, op.tenant, op.run, op.limit)
	if err != nil {
		return err
	}
	for i := range live {
		r := live[i]
		// The watchdog ends a damaged run, whatever its clocks say.
		if r.Damage != nil {
			continue
		}
		moved, err := op.shiftRun(tx, &r)
		if err != nil {
			return err
		}
		if moved {
			op.moved++
		}
	}
	if len(live) < op.limit {
		op.done = true
		tx.DB.SetClockBack(op.by)
		return nil
	}
	last := &live[len(live)-1]
	op.next = &setClockBack{by: op.by, limit: op.limit, alarm: last.AlarmAt, tenant: last.Tenant, run: last.ID}
	return nil
}

// shiftRun moves the instants of a run and of its open waits.
func (op *setClockBack) shiftRun(tx *kernel.Tx, r *perdure.Run) (moved bool, err error) {
	open, err := tx.DB.Waits.Open(r.Tenant, r.ID)
	if err != nil {
		return false, err
	}
	for _, w := range open {
		if w.OpenedAt <= tx.Now {
			continue
		}
		moved = true
		if w.OpenedAt = w.OpenedAt.Add(-op.by); w.TimeoutAt != 0 {
			w.TimeoutAt = w.TimeoutAt.Add(-op.by)
		}
		tx.DB.Waits.Put(w)
	}
	e := perdure.ClockSetBack{By: op.by}
	if !moved && !e.Concerns(*r, tx.Now) {
		return false, nil
	}
	if err := tx.Apply(r, e); err != nil {
		return false, err
	}
	if r.State == perdure.Suspended {
		err = life.ResetWaitClock(tx, r)
	}
	return true, err
}

package life

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/plant"
	"github.com/perdure/perdure/internal/server/schedule"
	"github.com/perdure/perdure/internal/server/store"
)

// A schedule fires.
//
// The transaction that starts the run also moves the schedule to its next instant. The row of the
// schedule has a version, so when two nodes fire at once, one of them is decided again and finds nothing
// due. An instant is therefore fired once, whatever dies.
//
// The alarm of a schedule is when its next instant fires. While an instant waits for the end of the last
// run, that end sets the alarm. A node of an older release does not know this, so the schedule is also
// looked at once a minute.

const (
	// waitingLook is how often a schedule is looked at while an instant waits.
	waitingLook = time.Minute
	// manyFailures is how many instants in a row are refused before somebody is alerted.
	manyFailures = 10
)

// A Fired says what an alarm of a schedule led to, for the watchdog's log. It is empty if a run was
// started as planned.
type Fired struct{ What, Why string }

// Fire handles the alarm of a schedule.
func Fire(tx *kernel.Tx, row *store.ScheduleRow) (did Fired, err error) {
	clock, err := ClockOf(row)
	if err != nil {
		return Fired{}, err
	}
	if row.FloorAt != 0 {
		if row.NextAt != 0 && row.NextAt <= row.FloorAt {
			next, passed := clock.Skip(row.NextAt, row.FloorAt)
			row.NextAt, row.Missed = next, row.Missed+int64(passed)
			did = Fired{What: fmt.Sprintf("%d instants are missed", passed),
				Why: "they lie between the backup and its restore, and may have fired in the store that was lost"}
		}
		row.FloorAt = 0
	}
	findNext(row, clock, tx.Now)
	last, err := liveRun(tx, row)
	if err != nil {
		return did, err
	}
	switch due := clock.Due(row.NextAt, tx.Now); {
	case row.WaitingAt != 0 && last == nil:
		at := row.WaitingAt
		row.WaitingAt = 0
		did, err = startScheduled(tx, row, at, 0)
	case due.Fire == 0:
		row.NextAt = due.Next
		if row.Missed += int64(due.Missed); due.Missed > 0 {
			did = Fired{What: fmt.Sprintf("%d instants are missed", due.Missed), Why: "nobody fired them in time"}
		}
	default:
		row.NextAt, row.Missed = due.Next, row.Missed+int64(due.Missed)
		if due.Missed > 0 && plant.Is("schedule-missed-twice") {
			row.NextAt = due.Fire
		}
		did, err = fireAt(tx, row, &due, last, clock.Overlap())
	}
	if err != nil {
		return did, err
	}
	arm(tx, row, clock)
	tx.DB.Schedules.Put(*row)
	return did, nil
}

// fireAt starts a run for an instant, unless the last run is live and the plan says otherwise.
func fireAt(
	tx *kernel.Tx, row *store.ScheduleRow, due *schedule.Due, last *perdure.Run, overlap schedule.Overlap,
) (Fired, error) {
	if last != nil {
		switch overlap {
		case schedule.OverlapQueue:
			if row.WaitingAt == 0 {
				row.WaitingAt = due.Fire
				return Fired{}, nil
			}
			row.Skipped++
			return Fired{"the instant is left out", "another one waits for the end of run " + string(last.ID)}, nil
		case schedule.OverlapSkip:
			row.Skipped++
			return Fired{"the instant is left out", "run " + string(last.ID) + " is " + string(last.State)}, nil
		case schedule.OverlapCancelOld:
			if err := RequestCancel(tx, last, "replaced by the next run of its schedule"); err != nil {
				return Fired{}, err
			}
		}
	}
	return startScheduled(tx, row, due.Fire, due.Missed)
}

// startScheduled starts a run for an instant. A refusal is kept in the row: the instant is over.
func startScheduled(tx *kernel.Tx, row *store.ScheduleRow, at perdure.Instant, missed int) (Fired, error) {
	var run perdure.Run
	var existing bool
	err := tx.Try(func() (err error) {
		run, existing, err = submitScheduled(tx, row, perdure.Firing{For: at, Missed: missed})
		return err
	})
	var refused *perdure.Error
	switch {
	case err == nil && existing:
		row.Skipped, row.Failures, row.LastError = row.Skipped+1, 0, ""
		return Fired{"the instant is left out", "run " + string(run.ID) + " has its unique key"}, nil
	case err == nil:
		row.Fired, row.Failures, row.LastError = row.Fired+1, 0, ""
		row.LastAt, row.LastFiredAt, row.LastRun = at, tx.Now, run.ID
		if missed > 0 {
			return Fired{fmt.Sprintf("run %s is started for %d instants", run.ID, missed+1),
				"nobody fired them in time"}, nil
		}
		return Fired{}, nil
	case !errors.As(err, &refused) || store.HeldUp(err):
		return Fired{}, err
	}
	row.Failed, row.Failures = row.Failed+1, row.Failures+1
	text, err := json.Marshal(&perdure.Failure{Code: refused.Code, Message: refused.Error()})
	if err != nil {
		return Fired{}, err
	}
	row.LastError = string(text)
	if row.Failures == manyFailures {
		t, name := row.Tenant, row.Name
		tx.DB.After(func() {
			tx.Engine.Log.Warn("a schedule is refused again and again", "tenant", t, "schedule", name,
				"failures", manyFailures, "code", refused.Code, "error", refused)
		})
	}
	return Fired{What: "no run is started", Why: refused.Error()}, nil
}

// RefusalOf gives why the last instant of a schedule was refused, or nil.
func RefusalOf(row *store.ScheduleRow) *perdure.Failure {
	f := &perdure.Failure{}
	if row.LastError == "" || json.Unmarshal([]byte(row.LastError), f) != nil {
		return nil
	}
	return f
}

// submitScheduled submits the run of a schedule.
// existing is set if another run has its unique key, and is given instead.
func submitScheduled(
	tx *kernel.Tx, row *store.ScheduleRow, firing perdure.Firing,
) (run perdure.Run, existing bool, err error) {
	firing.ID, firing.Name = row.ID, row.Name
	op := &Submit{Tenant: row.Tenant, Firing: &firing}
	if err := json.Unmarshal([]byte(row.Submission), &op.Submission); err != nil {
		return run, false, perdure.Errorf(perdure.CodeDamaged, "the submission of the schedule can't be read: %s", err)
	}
	op.Prepare()
	err = op.Do(tx)
	return op.Run, op.Existing, err
}

// liveRun gives the last run of a schedule if it is live.
func liveRun(tx *kernel.Tx, row *store.ScheduleRow) (*perdure.Run, error) {
	if row.LastRun == "" {
		return nil, nil
	}
	r, ok, err := tx.DB.Runs.Get(row.Tenant, row.LastRun)
	if err != nil || !ok || r.State.Terminal() {
		return nil, err
	}
	return &r, nil
}

// arm sets the alarm of a schedule.
func arm(tx *kernel.Tx, row *store.ScheduleRow, clock *schedule.Clock) {
	row.AlarmAt = 0
	if row.PausedAt != 0 || row.DeletedAt != 0 {
		return
	}
	if row.NextAt != 0 {
		row.AlarmAt = clock.FireAt(row.NextAt)
	}
	if look := tx.Now.Add(waitingLook); row.WaitingAt != 0 && (row.AlarmAt == 0 || look < row.AlarmAt) {
		row.AlarmAt = look
	}
	tx.WakeAt(row.AlarmAt)
}

// fireWaiting is called for the end of a run of a schedule. If an instant waits for it, the schedule
// fires next.
func fireWaiting(tx *kernel.Tx, r *perdure.Run) error {
	row, ok, err := tx.DB.Schedules.Get(r.Tenant, r.Options.Firing.Name)
	if err != nil || !ok || row.WaitingAt == 0 || row.LastRun != r.ID || row.AlarmAt == 0 || row.AlarmAt <= tx.Now {
		return err
	}
	row.AlarmAt = tx.Now
	tx.DB.Schedules.Put(row)
	tx.WakeAt(row.AlarmAt)
	return nil
}

// PutOffSchedule moves the alarm of a schedule that could not be handled.
func PutOffSchedule(tx *kernel.Tx, row *store.ScheduleRow, until perdure.Instant) error {
	stored, ok, err := tx.DB.Schedules.Get(row.Tenant, row.Name)
	if err != nil || !ok || stored.AlarmAt == 0 {
		return err
	}
	stored.AlarmAt = until
	tx.DB.Schedules.Put(stored)
	return nil
}

package life

import (
	"encoding/json"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/schedule"
	"github.com/perdure/perdure/internal/server/store"
)

// Schedules as tenants set them. firing.go starts their runs.

const (
	// maxSchedules is the number of schedules of a tenant.
	maxSchedules = 10_000
	// maxScheduled bounds the bytes of the submission of a schedule. Each schedule that is due is read
	// whole, hundreds in one sweep.
	maxScheduled = 64 << 10
	// ScheduleKept is how long the row of a deleted schedule is kept.
	ScheduleKept = time.Hour
)

// PutSchedule makes a schedule, or changes one. Repeating it changes nothing: a schedule whose plan is
// the same keeps its next instant.
type PutSchedule struct {
	Tenant      perdure.TenantID
	Name        string
	Description string
	Plan        schedule.Plan
	Submission  perdure.Submission
	// Paused pauses or resumes the schedule. Nil leaves that as it is.
	Paused *bool
	// New refuses a name that is taken. With a Key the operation counts once.
	New bool
	Key string

	Schedule store.ScheduleRow
	Created  bool

	invalid error
	body    []byte // the submission as it is stored
}

// Prepare validates the schedule.
func (op *PutSchedule) Prepare() { op.invalid = op.check() }

func (op *PutSchedule) check() error {
	if err := perdure.CheckName("name", op.Name); err != nil {
		return err
	}
	if err := perdure.CheckText("description", op.Description); err != nil {
		return err
	}
	sub := op.Submission
	for _, x := range []struct {
		field, why string
		given      bool
	}{
		{"run_at", "the plan says when runs begin", sub.RunAt != 0},
		{"delay", "the plan says when runs begin", sub.Delay != 0},
		{"on_disconnect", "nobody waits for the runs of a schedule from the start", sub.OnDisconnect != ""},
		{"name", "a name is that of one run, and a schedule starts many", sub.Name != ""},
		{"debounce", "the plan says when runs begin", sub.Debounce != nil},
		{"webhook", "register a webhook of the tenant, or of the thread", sub.Webhook != ""},
	} {
		if x.given {
			return perdure.Unprocessable(x.field, "does not go with a schedule: %s", x.why)
		}
	}
	if err := sub.Validate(); err != nil {
		return err
	}
	var err error
	if op.body, err = json.Marshal(&op.Submission); err == nil && len(op.body) > maxScheduled {
		err = &perdure.Error{Code: perdure.CodeTooLarge, Field: "input",
			Message: "the submission of a schedule takes at most 64 KiB"}
	}
	return err
}

func (*PutSchedule) Needs() []store.Ref { return nil }

// Do stages the schedule.
func (op *PutSchedule) Do(tx *kernel.Tx) error {
	if op.invalid != nil {
		return op.invalid
	}
	op.Created = false
	body := []any{op.New, op.Description, op.Plan, op.Submission, op.Paused}
	_, err := kernel.UnderKey(tx, op.Tenant, "schedule.set:"+op.Name, op.Key, body, func() (string, error) {
		return "", op.put(tx)
	}, func(string) (err error) {
		op.Schedule, err = readSchedule(tx, op.Tenant, op.Name)
		return err
	})
	return err
}

func (op *PutSchedule) put(tx *kernel.Tx) error {
	if err := tx.DB.RefuseIfFull(); err != nil {
		return err
	}
	old, exists, err := tx.DB.Schedules.Get(op.Tenant, op.Name)
	if err != nil {
		return err
	}
	exists = exists && old.DeletedAt == 0
	if exists && op.New {
		return perdure.Errorf(perdure.CodeNameTaken, "there is a schedule %q already; PUT changes it", op.Name)
	}
	row := old
	if !exists {
		if row, err = op.fresh(tx, old.Version); err != nil {
			return err
		}
	}
	plan := op.Plan
	clock, err := schedule.NewClock(&plan, row.ID, row.CreatedAt)
	if err != nil {
		return err
	}
	text, err := json.Marshal(&plan)
	if err != nil {
		return err
	}
	if row.Plan != string(text) {
		row.NextAt, row.WaitingAt = 0, 0
	}
	findNext(&row, clock, tx.Now)
	row.Plan, row.Submission, row.Description = string(text), string(op.body), op.Description
	if op.Paused != nil {
		row.PausedAt = pausedSince(row.PausedAt, *op.Paused, tx.Now)
	}
	arm(tx, &row, clock)
	if exists && row == old {
		op.Schedule = old
		return nil
	}
	if err := tx.Requires(kernel.Schedules); err != nil {
		return err
	}
	row.ChangedAt = tx.Now
	tx.DB.Schedules.Put(row)
	op.Schedule, op.Created = row, !exists
	return tx.Audit(op.Tenant, perdure.AuditScheduleSet, op.Name, "kind", op.Submission.Kind, "plan",
		json.RawMessage(text))
}

// findNext finds the next instant of a schedule without one: it is new, its plan has changed, or the clock
// of the store was set back. A schedule that is over has none again. No instant fires twice.
func findNext(row *store.ScheduleRow, clock *schedule.Clock, now perdure.Instant) {
	if row.NextAt == 0 {
		row.NextAt, _ = clock.Next(max(now, row.LastAt))
	}
}

// fresh gives the row of a new schedule. It takes the place of a deleted one of the same name.
func (op *PutSchedule) fresh(tx *kernel.Tx, version int64) (row store.ScheduleRow, err error) {
	n, err := tx.DB.Schedules.Count(op.Tenant, maxSchedules)
	if err != nil {
		return row, err
	}
	if n >= maxSchedules {
		return row, perdure.Errorf(perdure.CodeQuota, "the tenant has %d schedules, as many as it may have", n)
	}
	id, err := tx.NewID()
	return store.ScheduleRow{Tenant: op.Tenant, Name: op.Name, ID: "sch_" + id, CreatedAt: tx.Now,
		Version: version}, err
}

// pausedSince gives the instant of a pause, which stays if it is paused already.
func pausedSince(since perdure.Instant, paused bool, now perdure.Instant) perdure.Instant {
	switch {
	case !paused:
		return 0
	case since != 0:
		return since
	}
	return now
}

// readSchedule reads a schedule that is not deleted.
func readSchedule(tx *kernel.Tx, t perdure.TenantID, name string) (store.ScheduleRow, error) {
	if err := perdure.CheckName("name", name); err != nil {
		return store.ScheduleRow{}, err
	}
	row, ok, err := tx.DB.Schedules.Get(t, name)
	if err == nil && (!ok || row.DeletedAt != 0) {
		err = kernel.NotFound("schedule")
	}
	return row, err
}

// PauseSchedule pauses a schedule, or resumes it. Instants that come meanwhile are missed.
type PauseSchedule struct {
	Tenant perdure.TenantID
	Name   string
	Paused bool
	Key    string

	Schedule store.ScheduleRow
}

func (*PauseSchedule) Needs() []store.Ref { return nil }

// Do pauses or resumes the schedule.
func (op *PauseSchedule) Do(tx *kernel.Tx) error {
	do := func() (err error) {
		op.Schedule, err = readSchedule(tx, op.Tenant, op.Name)
		return err
	}
	_, err := kernel.UnderKey(tx, op.Tenant, "schedule.pause:"+op.Name, op.Key, op.Paused, func() (string, error) {
		if err := do(); err != nil || op.Paused == (op.Schedule.PausedAt != 0) {
			return "", err
		}
		return "", op.change(tx)
	}, func(string) error { return do() })
	return err
}

func (op *PauseSchedule) change(tx *kernel.Tx) error {
	row := &op.Schedule
	clock, err := ClockOf(row)
	if err != nil {
		return err
	}
	row.PausedAt = pausedSince(row.PausedAt, op.Paused, tx.Now)
	findNext(row, clock, tx.Now)
	arm(tx, row, clock)
	tx.DB.Schedules.Put(*row)
	action := perdure.AuditScheduleResume
	if op.Paused {
		action = perdure.AuditSchedulePause
	}
	return tx.Audit(op.Tenant, action, op.Name)
}

// DeleteSchedule deletes a schedule. Runs that it has started go on.
type DeleteSchedule struct {
	Tenant perdure.TenantID
	Name   string
	Key    string
}

func (*DeleteSchedule) Needs() []store.Ref { return nil }

// Do deletes the schedule.
func (op *DeleteSchedule) Do(tx *kernel.Tx) error {
	_, err := kernel.UnderKey(tx, op.Tenant, "schedule.delete:"+op.Name, op.Key, nil, func() (string, error) {
		row, err := readSchedule(tx, op.Tenant, op.Name)
		if err != nil {
			return "", err
		}
		row.DeletedAt, row.AlarmAt, row.Submission = tx.Now, 0, ""
		tx.DB.Schedules.Put(row)
		return "", tx.Audit(op.Tenant, perdure.AuditScheduleDelete, op.Name)
	}, func(string) error { return nil })
	return err
}

// TriggerSchedule starts a run of a schedule now, also of one that is paused. It moves no instant, and
// asks for no overlap.
type TriggerSchedule struct {
	Tenant perdure.TenantID
	Name   string
	Key    string

	Run     perdure.Run
	Created bool
}

func (*TriggerSchedule) Needs() []store.Ref { return nil }

// Do starts the run.
func (op *TriggerSchedule) Do(tx *kernel.Tx) (err error) {
	op.Created, err = kernel.UnderKey(tx, op.Tenant, "schedule.trigger:"+op.Name, op.Key, nil, func() (string, error) {
		row, err := readSchedule(tx, op.Tenant, op.Name)
		if err != nil {
			return "", err
		}
		if op.Run, _, err = submitScheduled(tx, &row, perdure.Firing{}); err != nil {
			return "", err
		}
		row.LastRun = op.Run.ID
		tx.DB.Schedules.Put(row)
		return string(op.Run.ID), tx.Audit(op.Tenant, perdure.AuditScheduleStart, op.Name, "run", op.Run.ID)
	}, func(id string) (err error) {
		op.Run, err = tx.Run(op.Tenant, perdure.RunID(id))
		return err
	})
	return err
}

// ClockOf gives the clock of a stored schedule.
func ClockOf(row *store.ScheduleRow) (*schedule.Clock, error) {
	var plan schedule.Plan
	if err := json.Unmarshal([]byte(row.Plan), &plan); err != nil {
		return nil, perdure.Errorf(perdure.CodeDamaged, "the plan of the schedule can't be read: %s", err)
	}
	return schedule.NewClock(&plan, row.ID, row.CreatedAt)
}

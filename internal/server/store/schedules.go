package store

import (
	"fmt"

	"github.com/perdure/perdure"
)

// A ScheduleRow is a schedule as it is stored. The engine reads Plan and Submission.
type ScheduleRow struct {
	Tenant      perdure.TenantID
	Name        string
	ID          string
	Plan        string // a schedule.Plan as JSON
	Submission  string // a perdure.Submission as JSON
	Description string

	CreatedAt perdure.Instant
	ChangedAt perdure.Instant
	DeletedAt perdure.Instant
	PausedAt  perdure.Instant

	// NextAt is the next instant of the plan. Zero: there is none. It has not fired, and no instant
	// before it will.
	NextAt perdure.Instant
	// FloorAt is the instant at which the store was restored. Instants up to it may have fired in the
	// store that was lost, so they are counted as missed.
	FloorAt perdure.Instant
	// AlarmAt is when the watchdog looks at the schedule. Zero: it is paused, over or deleted.
	AlarmAt perdure.Instant
	// WaitingAt is an instant that waits for the end of the last run. Zero: none does.
	WaitingAt perdure.Instant

	LastAt      perdure.Instant // the last instant for which a run was started
	LastFiredAt perdure.Instant // when it was started
	LastRun     perdure.RunID   // the run that was started last, also by a trigger

	// Fired, Missed, Skipped and Failed count instants: with a run, missed, left out because the last
	// run was live, and refused. Failures counts those refused since the last run.
	Fired, Missed, Skipped, Failed, Failures int64
	// LastError is why the last instant was refused: a perdure.Failure as JSON. It is empty if it was not.
	LastError string

	Version int64
}

var scheduleTable = register(&table[ScheduleRow]{
	name: "schedules", versioned: true, version: func(s *ScheduleRow) *int64 { return &s.Version },
	keys: []string{"tenant", "name"},
	columns: func(c *columns, s *ScheduleRow) {
		text(c, "tenant", &s.Tenant)
		text(c, "name", &s.Name)
		text(c, "id", &s.ID)
		text(c, "plan", &s.Plan)
		text(c, "submission", &s.Submission)
		text(c, "description", &s.Description)
		number(c, "created_at", &s.CreatedAt)
		number(c, "changed_at", &s.ChangedAt)
		number(c, "deleted_at", &s.DeletedAt)
		number(c, "paused_at", &s.PausedAt)
		number(c, "next_at", &s.NextAt)
		number(c, "floor_at", &s.FloorAt)
		optional(c, "alarm_at", &s.AlarmAt)
		number(c, "waiting_at", &s.WaitingAt)
		number(c, "last_at", &s.LastAt)
		number(c, "last_fired_at", &s.LastFiredAt)
		text(c, "last_run", &s.LastRun)
		number(c, "fired", &s.Fired)
		number(c, "missed", &s.Missed)
		number(c, "skipped", &s.Skipped)
		number(c, "failed", &s.Failed)
		number(c, "failures", &s.Failures)
		text(c, "last_error", &s.LastError)
		number(c, "version", &s.Version)
	},
})

type scheduleKey struct {
	t    perdure.TenantID
	name string
}

// Schedules holds the schedules of tenants.
type Schedules struct {
	in   *base
	rows staged[scheduleKey, ScheduleRow]
}

func (repo *Schedules) open(in *base) {
	repo.in = in
	openRows(&repo.rows, in, scheduleTable)
}

// Get gives a schedule, also one that was deleted.
func (repo *Schedules) Get(t perdure.TenantID, name string) (ScheduleRow, bool, error) {
	return loadRow(&repo.rows, scheduleKey{t, name}, "WHERE tenant=? AND name=?", string(t), name)
}

// Put stages a schedule. Its version is incremented when the batch is written.
func (repo *Schedules) Put(s ScheduleRow) { putRow(&repo.rows, scheduleKey{s.Tenant, s.Name}, s) }

// Page lists a tenant's schedules by name.
func (repo *Schedules) Page(t perdure.TenantID, p Page) ([]ScheduleRow, string, error) {
	return paged(p, func(after string, n int, row func(*ScheduleRow) error) error {
		return scheduleTable.query(repo.in.sess, "WHERE tenant=? AND name>? AND deleted_at=0 ORDER BY name"+atMost,
			[]any{string(t), after, int64(n)}, row)
	}, func(s *ScheduleRow) string { return s.Name }, func(s *ScheduleRow) int {
		return 1024 + quoted(s.Submission) + quoted(s.Description) + quoted(s.Plan)
	})
}

// Count counts a tenant's schedules up to a limit, with those of the batch.
func (repo *Schedules) Count(t perdure.TenantID, limit int) (n int, err error) {
	err = repo.in.sess.Query("SELECT count(*) FROM (SELECT 1 FROM schedules WHERE tenant=? AND deleted_at=0"+atMost+
		") AS counted", []any{string(t), int64(limit)}, func(scan func(...any) error) error { return scan(&n) })
	for _, k := range repo.rows.dirty {
		if r := repo.rows.byKey[k]; k.t == t && !r.stored && r.exists && r.val.DeletedAt == 0 {
			n++
		}
	}
	return n, err
}

// Ringing gives schedules whose alarm has passed. If there are more than the limit, it gives some of
// each tenant.
func (repo *Schedules) Ringing(after perdure.TenantID, limit int) ([]ScheduleRow, error) {
	out, err := repo.ringing("", nil, limit)
	if err != nil || len(out) < limit {
		return out, err
	}
	due, err := repo.in.tx.dueTenants("schedules", after)
	if err != nil || len(due) < 2 {
		return out, err
	}
	out = nil
	for _, t := range due[:min(len(due), limit)] {
		part, err := repo.ringing("tenant=? AND ", []any{string(t)}, max(1, limit/len(due)))
		if err != nil {
			return nil, err
		}
		out = append(out, part...)
	}
	return out, nil
}

// ringing reads schedules whose alarm has passed, restricted by a condition.
func (repo *Schedules) ringing(where string, args []any, limit int) (out []ScheduleRow, err error) {
	err = scheduleTable.query(repo.in.sess,
		fmt.Sprintf("WHERE "+where+"alarm_at IS NOT NULL AND alarm_at<=? ORDER BY alarm_at, tenant, name LIMIT %d",
			limit),
		append(args, int64(repo.in.Now)), func(s *ScheduleRow) error {
			k := scheduleKey{s.Tenant, s.Name}
			absorbRow(&repo.rows, k, *s, true)
			if cur, ok, _ := getRow(&repo.rows, k); ok && cur.AlarmAt != 0 && cur.AlarmAt <= repo.in.Now {
				out = append(out, cur)
			}
			return nil
		})
	return out, err
}

// DropDeleted stages the removal of at most limit schedules that were deleted before an instant, and
// gives their number. One that was made again meanwhile stays.
func (repo *Schedules) DropDeleted(before perdure.Instant, limit int) (n int, err error) {
	err = repo.in.sess.Query("SELECT tenant, name FROM schedules WHERE deleted_at>0 AND deleted_at<? "+
		"ORDER BY deleted_at"+atMost, []any{int64(before), int64(limit)}, func(scan func(...any) error) error {
		var t perdure.TenantID
		var name string
		if err := scan(&t, &name); err != nil {
			return err
		}
		n++
		repo.in.tx.Stage("DELETE FROM schedules WHERE tenant=? AND name=? AND deleted_at>0 AND deleted_at<?",
			string(t), name, int64(before))
		return nil
	})
	return n, err
}

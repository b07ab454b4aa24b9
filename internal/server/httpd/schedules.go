package httpd

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/reads"
	"github.com/perdure/perdure/internal/server/schedule"
)

// maxUpcoming bounds how many instants of a schedule one call lists.
const maxUpcoming = 1000

func createSchedule(c *call, in *api.PutSchedule) (int, *api.Schedule, error) {
	return setSchedule(c, in, in.Name, true)
}

func putSchedule(c *call, in *api.PutSchedule) (int, *api.Schedule, error) {
	name := c.PathValue("name")
	if in.Name != "" && in.Name != name {
		return 0, nil, perdure.Invalid("name", "differs from the one in the path")
	}
	return setSchedule(c, in, name, false)
}

// setSchedule makes a schedule, or changes it.
func setSchedule(c *call, in *api.PutSchedule, name string, isNew bool) (int, *api.Schedule, error) {
	key, err := c.idempotencyKey()
	if err != nil {
		return 0, nil, err
	}
	op := &life.PutSchedule{Tenant: c.tenant(), Name: name, Description: in.Description, Submission: in.Submission,
		Paused: in.Paused, New: isNew, Key: key,
		Plan: schedule.Plan{Cron: in.Cron, Every: in.Every, Timezone: in.Timezone, Jitter: in.Jitter,
			StartAt: in.StartAt, EndAt: in.EndAt, Overlap: schedule.Overlap(in.Overlap),
			Missed: schedule.Missed(in.Missed)}}
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, err
	}
	out, err := showSchedule(&op.Schedule)
	status := http.StatusOK
	if op.Created {
		status = http.StatusCreated
	}
	return status, out, err
}

func listSchedules(c *call, _ *none) (int, *api.Schedules, error) {
	page, err := c.listPage()
	if err != nil {
		return 0, nil, err
	}
	list, next, err := c.s.engine.Schedules.Page(c.Context(), c.tenant(), page)
	if err != nil {
		return 0, nil, err
	}
	out, err := showSchedules(list)
	return 0, &api.Schedules{Schedules: out, NextCursor: next}, err
}

func showSchedules(list []reads.Schedule) ([]api.Schedule, error) {
	out := make([]api.Schedule, 0, len(list))
	for i := range list {
		x, err := showSchedule(&list[i])
		if err != nil {
			return nil, err
		}
		out = append(out, *x)
	}
	return out, nil
}

// pathSchedule reads the schedule of the path.
func pathSchedule(c *call) (reads.Schedule, error) {
	return c.s.engine.Schedules.Get(c.Context(), c.tenant(), c.PathValue("name"))
}

func getSchedule(c *call, _ *none) (int, *api.Schedule, error) {
	row, err := pathSchedule(c)
	if err != nil {
		return 0, nil, err
	}
	out, err := showSchedule(&row)
	return 0, out, err
}

func deleteSchedule(c *call, _ *none) (int, *none, error) {
	key, err := c.idempotencyKey()
	if err != nil {
		return 0, nil, err
	}
	return 0, &none{}, c.s.engine.Do(c.Context(),
		&life.DeleteSchedule{Tenant: c.tenant(), Name: c.PathValue("name"), Key: key})
}

func pauseSchedule(c *call, _ *none) (int, *api.Schedule, error)  { return holdSchedule(c, true) }
func resumeSchedule(c *call, _ *none) (int, *api.Schedule, error) { return holdSchedule(c, false) }

func holdSchedule(c *call, paused bool) (int, *api.Schedule, error) {
	key, err := c.idempotencyKey()
	if err != nil {
		return 0, nil, err
	}
	op := &life.PauseSchedule{Tenant: c.tenant(), Name: c.PathValue("name"), Paused: paused, Key: key}
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, err
	}
	out, err := showSchedule(&op.Schedule)
	return 0, out, err
}

func triggerSchedule(c *call, _ *none) (int, *api.Run, error) {
	key, err := c.idempotencyKey()
	if err != nil {
		return 0, nil, err
	}
	op := &life.TriggerSchedule{Tenant: c.tenant(), Name: c.PathValue("name"), Key: key}
	if err := c.s.engine.Do(c.Context(), op); err != nil {
		return 0, nil, err
	}
	if !op.Created {
		return answerRun(c, op.Run.ID, false)
	}
	return http.StatusCreated, showRun(c, &reads.Detail{Run: op.Run}), nil
}

func upcomingInstants(c *call, _ *none) (int, *api.Upcoming, error) {
	n := 10
	if text := c.URL.Query().Get("n"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil || n < 1 || n > maxUpcoming {
			return 0, nil, perdure.Invalid("n", "takes a whole number from 1 to %d", maxUpcoming)
		}
	}
	row, err := pathSchedule(c)
	if err != nil {
		return 0, nil, err
	}
	clock, err := life.ClockOf(&row)
	if err != nil {
		return 0, nil, err
	}
	out := &api.Upcoming{Instants: []api.UpcomingInstant{}}
	after := c.s.engine.Now()
	for range n {
		at, ok := clock.Next(after)
		if !ok {
			break
		}
		out.Instants = append(out.Instants,
			api.UpcomingInstant{At: at, FiresAt: clock.FireAt(at), Local: clock.Local(at)})
		after = at
	}
	return 0, out, nil
}

// showSchedule shows a schedule.
func showSchedule(row *reads.Schedule) (*api.Schedule, error) {
	var plan schedule.Plan
	if err := json.Unmarshal([]byte(row.Plan), &plan); err != nil {
		return nil, perdure.Errorf(perdure.CodeDamaged, "the plan of schedule %q can't be read", row.Name)
	}
	out := &api.Schedule{ScheduleID: row.ID, Name: row.Name, Description: row.Description, Cron: plan.Cron,
		Timezone: plan.Timezone, Overlap: string(plan.Overlap), Missed: string(plan.Missed),
		StartAt: optional(plan.StartAt), EndAt: optional(plan.EndAt), State: "active", PausedAt: optional(row.PausedAt),
		NextAt: optional(row.NextAt), LastAt: optional(row.LastAt), LastRun: row.LastRun,
		QueuedAt: optional(row.WaitingAt), Fired: row.Fired, MissedCount: row.Missed, Skipped: row.Skipped,
		Failed: row.Failed, Failures: row.Failures, LastError: life.RefusalOf(row),
		Submission: json.RawMessage(row.Submission), CreatedAt: row.CreatedAt, ChangedAt: row.ChangedAt}
	if plan.Every != 0 {
		out.Every = &plan.Every
	}
	if plan.Jitter != 0 {
		out.Jitter = &plan.Jitter
	}
	if row.LastAt != 0 {
		late := row.LastFiredAt.Sub(row.LastAt).Milliseconds()
		out.LateMS = &late
	}
	switch clock, err := life.ClockOf(row); {
	case row.PausedAt != 0:
		out.State = "paused"
	case row.NextAt == 0 && row.WaitingAt == 0:
		out.State = "over"
	case err == nil && row.NextAt != 0:
		out.FiresAt = optional(clock.FireAt(row.NextAt))
	}
	return out, nil
}

package api

import (
	"encoding/json"

	"github.com/perdure/perdure"
)

// PutSchedule is the body that makes a schedule or changes it: a plan, and the submission of its runs.
//
// The plan is either a cron expression with five fields in a time zone of the IANA database, or an
// interval of at least 10 s.
type PutSchedule struct {
	// Name is the name of a new schedule. With PUT it is in the path.
	Name        string           `json:"name,omitempty"`
	Description string           `json:"description,omitempty"`
	Cron        string           `json:"cron,omitempty"`     // "30 2 * * mon-fri", "@daily"
	Every       perdure.Duration `json:"every,omitempty"`    // counted from start_at, or else from the creation
	Timezone    string           `json:"timezone,omitempty"` // of cron; UTC by default
	Jitter      perdure.Duration `json:"jitter,omitempty"`   // an instant fires later by at most this
	Overlap     string           `json:"overlap,omitempty"`  // "allow" (default), "skip", "queue" or "cancel_old"
	Missed      string           `json:"missed,omitempty"`   // "once" (default), "skip" or "all"
	StartAt     perdure.Instant  `json:"start_at,omitempty"`
	EndAt       perdure.Instant  `json:"end_at,omitempty"`
	// Paused pauses or resumes it. Without it a schedule that exists stays as it is.
	Paused *bool `json:"paused,omitempty"`

	perdure.Submission
}

// A Schedule is a schedule as the API shows it.
type Schedule struct {
	ScheduleID  string            `json:"schedule_id"`
	Name        string            `json:"name"`
	Description string            `json:"description,omitempty"`
	Cron        string            `json:"cron,omitempty"`
	Every       *perdure.Duration `json:"every,omitempty"`
	Timezone    string            `json:"timezone,omitempty"`
	Jitter      *perdure.Duration `json:"jitter,omitempty"`
	Overlap     string            `json:"overlap"`
	Missed      string            `json:"missed"`
	StartAt     *perdure.Instant  `json:"start_at,omitempty"`
	EndAt       *perdure.Instant  `json:"end_at,omitempty"`

	// State is "active", "paused", or "over" if no instant is left.
	State    string           `json:"state"`
	PausedAt *perdure.Instant `json:"paused_at,omitempty"`
	NextAt   *perdure.Instant `json:"next_at,omitempty"`   // the next instant of the plan
	FiresAt  *perdure.Instant `json:"fires_at,omitempty"`  // with its jitter; absent while it is paused
	LastAt   *perdure.Instant `json:"last_at,omitempty"`   // the last instant with a run
	LateMS   *int64           `json:"late_ms,omitempty"`   // how long after LastAt that run was started
	LastRun  perdure.RunID    `json:"last_run,omitempty"`  // the run that was started last
	QueuedAt *perdure.Instant `json:"queued_at,omitempty"` // an instant that waits for the end of the last run

	// Fired, MissedCount, Skipped and Failed count instants: with a run, missed, left out because of an
	// overlap, and refused. Failures counts those refused since the last run.
	Fired       int64            `json:"fired"`
	MissedCount int64            `json:"missed_count"`
	Skipped     int64            `json:"skipped"`
	Failed      int64            `json:"failed"`
	Failures    int64            `json:"failures"`
	LastError   *perdure.Failure `json:"last_error,omitempty"`

	// Submission is the body of its runs.
	Submission json.RawMessage `json:"submission"`
	CreatedAt  perdure.Instant `json:"created_at"`
	ChangedAt  perdure.Instant `json:"changed_at"`
}

// Schedules is a page of schedules, by name.
type Schedules struct {
	Schedules  []Schedule `json:"schedules"`
	NextCursor string     `json:"next_cursor,omitempty"` // begin of the next page; empty on the last
}

// Upcoming are the next instants of a schedule. A schedule that is paused has them too.
type Upcoming struct {
	Instants []UpcomingInstant `json:"instants"`
}

// An UpcomingInstant is an instant of a plan. Local is how clocks of its time zone show it.
type UpcomingInstant struct {
	At      perdure.Instant `json:"at"`
	FiresAt perdure.Instant `json:"fires_at"` // with its jitter
	Local   string          `json:"local"`
}

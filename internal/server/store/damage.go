package store

import (
	"fmt"
	"slices"

	"github.com/perdure/perdure"
)

// damaged records that a column of a run can't be read.
func damaged(r *perdure.Run, column string) *perdure.Damage {
	if r.Damage == nil {
		r.Damage = &perdure.Damage{What: column + " can't be read"}
	}
	return r.Damage
}

const (
	maxInstant = perdure.Instant(253402300800_000000) // the year 10000
	maxCount   = 1 << 30                              // of counters; the column holds twice that
)

// validateRun checks whether the program can have written a run with these values, and replaces
// values that would do harm.
func validateRun(r *perdure.Run) {
	for _, c := range [...]struct {
		name string
		at   perdure.Instant
	}{{"created_at", r.CreatedAt}, {"deadline_at", r.DeadlineAt - 1}, {"ready_at", r.ReadyAt},
		{"granted_at", r.GrantedAt}, {"first_grant_at", r.FirstGrantAt},
		{"lease_until", r.LeaseUntil}, {"started_at", r.StartedAt}, {"seen_at", r.SeenAt}, {"moved_at", r.MovedAt},
		{"wait_at", r.WaitAt},
		{"finished_at", r.FinishedAt}, {"beat_at", r.HeartbeatAt}, {"deferred_at", r.DeferredAt},
		{"alarm_at", r.AlarmAt}} {
		if c.at < 0 || c.at >= maxInstant {
			outOfRange(r, c.name, int64(c.at))
		}
	}
	for _, c := range [...]struct {
		name string
		n    int
	}{{"max_attempts", r.MaxAttempts}, {"attempt", r.Attempt}, {"strikes", r.Strikes}, {"deliveries", r.Grants},
		{"inbox_open", r.InboxOpen},
		{"waits_open", r.WaitsOpen}, {"children", r.Children}, {"late", r.Late}, {"said", int(r.AlertsSent)},
		{"priority", r.Priority + maxCount/2}} {
		if c.n < 0 || c.n > maxCount {
			outOfRange(r, c.name, int64(c.n))
		}
	}
	for _, c := range [...]struct {
		name string
		n    int64
	}{{"version", r.Version}, {"epoch", r.Epoch}, {"seq", r.Seq}, {"inbox_seq", r.InboxSeq},
		{"journal_seq", r.JournalSeq}, {"first_epoch", r.FirstEpoch}, {"inbox_from", r.InboxFrom},
		{"copy_to", r.CopyTo}} {
		if c.n < 0 {
			outOfRange(r, c.name, c.n)
		}
	}
	if r.CopyTo > 0 && r.RetryOf == "" {
		outOfRange(r, "copy_to", r.CopyTo)
	}
	if !r.Class.Valid() {
		damaged(r, "class")
	}
	if r.Turn < perdure.TurnNone || r.Turn > perdure.TurnLater || (r.Turn == perdure.TurnNone) != (r.ThreadID == "") &&
		r.State.Live() {
		damaged(r, "turn")
	}
	if !slices.Contains(perdure.States, r.State) {
		damaged(r, "state")
	}
	if r.Damage != nil {
		makeEndable(r)
	}
}

// outOfRange records that a column of a run has an impossible value.
func outOfRange(r *perdure.Run, column string, v int64) {
	if r.Damage == nil {
		r.Damage = &perdure.Damage{What: fmt.Sprintf("%s is %d", column, v)}
	}
}

// makeEndable gives a damaged run the values that are needed to end it. These are a state, a
// deadline, a turn on its thread, and counters that can be written.
func makeEndable(r *perdure.Run) {
	if !slices.Contains(perdure.States, r.State) {
		switch {
		case r.AlarmAt != 0:
			r.State = perdure.Queued
		case r.Failure == nil:
			r.State = perdure.Completed
		default:
			r.State = perdure.Failed
		}
	}
	if !r.State.Live() {
		return
	}
	if r.DeadlineAt <= 0 {
		r.DeadlineAt = 1
	}
	if r.ThreadID != "" && (r.Turn < perdure.TurnActive || r.Turn > perdure.TurnLater) {
		r.Turn = perdure.TurnActive
	}
	clampCounts(&r.Attempt, &r.Strikes, &r.Grants, &r.InboxOpen, &r.WaitsOpen, &r.Children, &r.Late)
	r.AlertsSent = min(max(0, r.AlertsSent), maxCount)
	for _, n := range []*int64{&r.Seq, &r.InboxSeq, &r.JournalSeq, &r.Epoch} {
		*n = max(0, *n)
	}
}

// clampCounts limits counters to values that can be written and incremented.
func clampCounts(n ...*int) {
	for _, n := range n {
		*n = min(max(0, *n), maxCount)
	}
}

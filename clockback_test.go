package perdure

import (
	"testing"
	"time"
)

// ClockSetBack moves instants that the wrong clock gave. Instants from before, and the deadline,
// stay.
func TestClockSetBackMovesFutureInstants(t *testing.T) {
	const by = 2 * time.Hour
	p, now := DefaultPolicy(), start0.Add(time.Minute)
	wrong := now.Add(by)
	r := runIn(Running)
	r.CreatedAt, r.DeadlineAt = wrong, wrong.Add(time.Hour)
	r.GrantedAt, r.SeenAt, r.LeaseUntil, r.Cancel.RequestedAt = wrong, wrong, wrong.Add(30*time.Second), wrong
	got, lines, err := p.Apply(r, ClockSetBack{By: by}, now)
	if err != nil || len(lines) != 0 {
		t.Fatalf("Apply = %v and %d lines, want no error and no lines", err, len(lines))
	}
	for name, x := range map[string]struct{ got, want Instant }{
		"granted_at": {got.GrantedAt, now}, "seen_at": {got.SeenAt, now},
		"lease_until":    {got.LeaseUntil, now.Add(30 * time.Second)},
		"first_grant_at": {got.FirstGrantAt, r.FirstGrantAt}, "requested_at": {got.Cancel.RequestedAt, now},
		"created_at": {got.CreatedAt, r.CreatedAt}, "deadline_at": {got.DeadlineAt, r.DeadlineAt},
		"alarm_at": {got.AlarmAt, p.Alarm(&got)},
	} {
		if x.got != x.want {
			t.Errorf("%s = %s, want %s", name, x.got, x.want)
		}
	}
	if got.AlarmAt > now.Add(time.Minute) {
		t.Errorf("alarm_at = %s, want it within a minute of %s", got.AlarmAt, now)
	}
	if (ClockSetBack{By: by}).Concerns(got, now) {
		t.Error("Concerns = true for a run that was already moved, want false")
	}

	// A lease of the right clock stays, a retry of the wrong clock moves, the caller's run_at
	// stays.
	held := runIn(Running)
	held.LeaseUntil = now.Add(time.Second)
	retry, delayed := runIn(Queued), runIn(Queued)
	retry.Ready, retry.Attempt, retry.ReadyAt = false, 2, wrong.Add(time.Second)
	delayed.Ready, delayed.ReadyAt = false, now.Add(by+time.Hour)
	for name, x := range map[string]struct {
		run   Run
		moves bool
	}{"held": {held, false}, "retry": {retry, true}, "delayed": {delayed, false}} {
		if got := (ClockSetBack{By: by}).Concerns(x.run, now); got != x.moves {
			t.Errorf("%s: Concerns = %v, want %v", name, got, x.moves)
		}
	}
}

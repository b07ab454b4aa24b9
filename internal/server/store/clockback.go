package store

import (
	"strconv"
	"time"

	"github.com/perdure/perdure"
)

// StoredClock gives the latest instant in the store from before this process. It is zero if there
// is none, as on PostgreSQL, which has a clock of its own.
func (s *Store) StoredClock() perdure.Instant { return s.stored }

// EndedAfter calls f with every run that ended after an instant, in the order of their ends.
func (repo *Runs) EndedAfter(at perdure.Instant, f func(*perdure.Run) error) error {
	return runTable.query(repo.in.sess, "WHERE alarm_at IS NULL AND finished_at>? ORDER BY finished_at, tenant, id",
		[]any{int64(at)}, f)
}

// SetClockBack stages the changes that set the clock of a stopped store back to the batch's
// instant, except those of its runs. The wrong clock was ahead by the given time. Alarms that are
// due by it are due now, and periods that began by it keep their length from now. Records of the
// past stay as they are.
func (tx *Tx) SetClockBack(by time.Duration) {
	now, ahead := int64(tx.Now), by.Microseconds()
	for _, text := range []string{
		"UPDATE inbox SET alarm_at=? WHERE alarm_at>?", // an early alarm does no harm
		"UPDATE workers SET seen_at=? WHERE seen_at>?",
		"UPDATE waiters SET expires_at=? WHERE expires_at>?", // the nodes are stopped
		"UPDATE limits SET alarm_at=? WHERE alarm_at>?",
		"UPDATE limit_keys SET alarm_at=? WHERE alarm_at>?",
		"UPDATE limit_keys SET offered_after=? WHERE offered_after>?",
		"UPDATE limit_keys SET used_at=? WHERE used_at>?",
		"UPDATE unique_runs SET free_at=? WHERE free_at>? AND run_id=''",
		"UPDATE schedules SET last_at=? WHERE last_at>?",
	} {
		tx.Stage(text, now, now)
	}
	for _, text := range []string{
		"UPDATE outbox SET alarm_at=alarm_at-? WHERE alarm_at>?", // an early attempt does no harm
		"UPDATE gatherings SET alarm_at=alarm_at-? WHERE alarm_at IS NOT NULL AND created_at>?",
		"UPDATE approvals SET expires_at=expires_at-? WHERE state='open' AND expires_at>0 AND opened_at>?",
		"UPDATE limits SET closed_until=closed_until-? WHERE closed_until>?",
		"UPDATE limit_keys SET closed_until=closed_until-? WHERE closed_until>?",
		"UPDATE limit_keys SET full_at=full_at-? WHERE full_at>?",
		"UPDATE schedules SET created_at=created_at-? WHERE created_at>?", // intervals count from here
	} {
		tx.Stage(text, ahead, now)
	}
	tx.Stage("UPDATE unique_runs SET until_at=until_at-?, free_at=free_at-? WHERE until_at>? AND EXISTS "+
		"(SELECT 1 FROM runs r WHERE r.tenant=unique_runs.tenant AND r.id=unique_runs.run_id AND r.created_at>?)",
		ahead, ahead, now, now)
	// Instants up to the wrong clock's were fired by it. A plan goes on with the first one after now.
	tx.Stage("UPDATE schedules SET next_at=0, alarm_at=CASE WHEN paused_at=0 THEN CAST(? AS BIGINT) END "+
		"WHERE deleted_at=0 AND (next_at>? OR next_at=0)", now, now)
	tx.Stage("UPDATE meta SET value=? WHERE name='clock'", strconv.FormatInt(now, 10))
}

// An Absence is the time in which no process used a store.
type Absence struct {
	// Since is when the store was last used. It is zero if that is unknown or the store is new.
	Since perdure.Instant
	For   time.Duration
	Past  int  // live runs whose deadline has passed since
	More  bool // there may be more: only maxAbsent runs are examined
}

// maxAbsent bounds how many runs Absence examines.
const maxAbsent = 10_000

// Absence tells how long no process has used the store, as of its opening. On PostgreSQL other
// nodes may have used it, so that the last sweep counts.
func (v *View) Absence(stored perdure.Instant) (a Absence, err error) {
	swept, _, err := v.lastSweep()
	if a.Since = max(stored, swept); err != nil || a.Since == 0 || a.Since >= v.Now {
		return a, err
	}
	a.For = v.Now.Sub(a.Since)
	rows := 0
	err = v.sess.Query("SELECT deadline_at FROM "+live+" AND alarm_at<=? ORDER BY alarm_at, tenant, id LIMIT "+
		strconv.Itoa(maxAbsent),
		[]any{int64(v.Now)}, func(scan func(...any) error) error {
			var at perdure.Instant
			if err := scan(&at); err != nil {
				return err
			}
			if rows++; at <= v.Now {
				a.Past++
			}
			return nil
		})
	a.More = rows == maxAbsent
	return a, err
}

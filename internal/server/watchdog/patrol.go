package watchdog

import (
	"math"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/upkeep"
)

// The patrol is the backstop behind the alarms. It walks through all live runs and all open chords
// and groups, a portion every patrol_every. It repairs rows that no alarm would ever call for: a
// suspended run whose wait is over, an orphan, a row without a usable alarm.
//
// Runs are visited by alarm, from the latest to the earliest. Signs of life move an alarm to later.
// In ascending order, the runs of many busy workers would always stay ahead of the walk. Live runs
// without a usable alarm are not in that order, so they have a walk of their own.

const (
	// patrolRows bounds the rows of each kind that one portion visits.
	patrolRows = 128
	// patrolReads bounds the rows that one portion reads, including those that a repair looks up.
	patrolReads = 4000
)

// A patrolCursor is where the next portion begins. Empty fields mean the beginning.
type patrolCursor struct {
	// due is when the next portion may begin.
	due perdure.Instant

	// alarm, tenant and run are the position in the walk through live runs.
	alarm  perdure.Instant
	tenant perdure.TenantID
	run    perdure.RunID

	// withoutAlarm is the position in the walk through live runs without a usable alarm.
	withoutAlarm perdure.RunID

	// groupTenant and group are the position in the walk through open chords and groups.
	groupTenant perdure.TenantID
	group       perdure.GroupID
}

// patrol visits one portion, if it is time. A sweep with a limit of rows visits as many of them, and the next one goes
// on from there at once.
func (s *Sweep) patrol(tx *kernel.Tx, _ *gap) error {
	cursor := &s.w.patrol
	if tx.Now < cursor.due {
		return nil
	}
	// Rows are read from the database and not from the cache. The patrol passes many runs that
	// other operations are changing, and a cached row that has changed means a conflict.
	tx.DB.BypassCache()
	from := cursor.alarm
	if from == 0 {
		from = math.MaxInt64
	}
	live, err := tx.DB.Runs.LiveBefore(from, cursor.tenant, cursor.run, patrolRows)
	if err != nil {
		return err
	}
	withoutAlarm, err := tx.DB.Runs.Unwatched(cursor.withoutAlarm, patrolRows)
	if err != nil {
		return err
	}
	reads := tx.DB.Cost().Read
	full := func() bool { return tx.DB.Cost().Read-reads > patrolReads || tx.OverBudget() }

	unwatched, err := s.repairRuns(tx, withoutAlarm, nil)
	if err != nil {
		return err
	}
	runs, err := s.repairRuns(tx, live, full)
	if err != nil {
		return err
	}
	groups, err := tx.DB.Groups.Open(cursor.groupTenant, cursor.group, patrolRows)
	if err != nil {
		return err
	}
	gathered, err := s.repairGroups(tx, groups, full)
	if err != nil {
		return err
	}

	next := patrolCursor{due: tx.Now.Add(tx.Policy().PatrolEvery)}
	if s.maxRows > 0 && len(s.acting) >= s.maxRows {
		next.due, s.More = tx.Now, true
	}
	if len(live) == patrolRows || runs < len(live) {
		next.alarm, next.tenant, next.run = cursor.alarm, cursor.tenant, cursor.run
		if runs > 0 {
			last := &live[runs-1]
			next.alarm, next.tenant, next.run = last.AlarmAt, last.Tenant, last.ID
		}
	}
	if n := len(withoutAlarm); n == patrolRows || unwatched < n {
		next.withoutAlarm = cursor.withoutAlarm
		if unwatched > 0 {
			next.withoutAlarm = withoutAlarm[unwatched-1].ID
		}
	}
	if len(groups) == patrolRows || gathered < len(groups) {
		next.groupTenant, next.group = cursor.groupTenant, cursor.group
		if gathered > 0 {
			last := &groups[gathered-1]
			next.groupTenant, next.group = last.Tenant, last.ID
		}
	}
	tx.DB.After(func() { *cursor = next })
	return nil
}

// repairRuns repairs those of some live runs that need it. It stops when full reports that the
// portion is used up, but not before the first run, so that every portion makes progress. It
// returns how many runs it visited.
func (s *Sweep) repairRuns(tx *kernel.Tx, runs []perdure.Run, full func() bool) (visited int, err error) {
	for i := range runs {
		if i > 0 && full != nil && full() {
			return i, nil
		}
		skip, enough := s.begin(tx, asideRow{"patrol", runs[i].Tenant, string(runs[i].ID)})
		if enough {
			return i, nil
		}
		if skip {
			continue
		}
		r, ok, err := tx.DB.Runs.Get(runs[i].Tenant, runs[i].ID)
		if err != nil {
			return i, err
		}
		if !ok || r.State.Terminal() {
			continue
		}
		err = s.tryRow(tx, "patrol", r.Tenant, r.ID, func() error {
			did, err := upkeep.RepairRun(tx, &r)
			return s.recordRepair(tx, r.Tenant, r.ID, did, err)
		}, nil)
		if err != nil {
			return i, err
		}
	}
	return len(runs), nil
}

// repairGroups closes those of some open chords and groups whose condition holds. It stops like
// repairRuns and returns how many it visited.
func (s *Sweep) repairGroups(tx *kernel.Tx, groups []perdure.Gathering, full func() bool) (visited int, err error) {
	for i := range groups {
		if i > 0 && full() {
			return i, nil
		}
		g := &groups[i]
		t, id := g.Tenant, perdure.RunID(g.ID)
		skip, enough := s.begin(tx, asideRow{"patrol", t, string(id)})
		if enough {
			return i, nil
		}
		if skip {
			continue
		}
		err := s.tryRow(tx, "patrol", t, id, func() error {
			did, err := upkeep.RepairGathering(tx, g)
			return s.recordRepair(tx, t, id, did, err)
		}, nil)
		if err != nil {
			return i, err
		}
	}
	return len(groups), nil
}

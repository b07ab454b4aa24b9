package watchdog

import (
	"cmp"
	"errors"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

const (
	// sweepRows bounds the rows of each part that one sweep reads.
	sweepRows = 256
	// minSweepRows is the least that a sweep reads when conflicts or its time make it smaller.
	minSweepRows = 8

	// setAsideFor is how long a row is left alone after its rule failed.
	setAsideFor = time.Minute
	// lockedFor is how long a run is left alone whose rule would change another row that is locked.
	lockedFor = time.Second
)

// A Sweep selects the rows whose alarm is due and applies their rules. It stops when it has used
// the budget of an operation or has taken too long. The next sweep continues from there.
type Sweep struct {
	w *Watchdog

	// single limits the sweep to one run. Such a sweep shares a batch with other operations.
	single *store.Ref
	// gone is an instance of a server whose process is gone. The single run is taken from its
	// workers before its lease expires, unless it was granted at the instant before or later: to a
	// worker of the next process.
	gone   string
	before perdure.Instant
	// part limits the sweep to the part with this name.
	part string
	// maxRows limits the rows of a part that are acted on. Zero means the watchdog's maxRows.
	maxRows int
	// row is the row that begin was called for last.
	row asideRow
	// acting are the rows that the sweep acts on, if maxRows is set.
	acting []asideRow
	// decisions counts the calls of Do: it is called again after a conflict.
	decisions int

	// Actions lists what the rules did.
	Actions []Action
	// Postponed counts runs whose rules wait because of a gap.
	Postponed int
	// Locked counts rows that were skipped because another session has them locked.
	Locked int
	// Contended names runs that other operations keep changing. Each is then swept alone.
	Contended []store.Ref
	// More tells that the sweep stopped at a limit, so the next one should follow at once.
	More bool
}

// Pass returns one sweep, as an operation.
func (w *Watchdog) Pass() *Sweep { return &Sweep{w: w} }

// Needs names the run of a single-run sweep. Any other sweep selects its runs itself.
func (s *Sweep) Needs() []store.Ref {
	if s.single != nil {
		return []store.Ref{*s.single}
	}
	return nil
}

// Lane returns the watchdog's own lane, so that a sweep never waits behind other operations. A
// single run is decided in the lane of the workers' operations instead: those operations of this
// node can't change the run in between.
func (s *Sweep) Lane() store.Lane {
	if s.single != nil {
		return store.LaneWork
	}
	return store.LaneSweep
}

// A sweepPart is one kind of rows that a sweep looks at. The names are labels of a metric.
type sweepPart struct {
	name string
	// due tells from one combined query whether the part has anything to do.
	due func(*store.Due) bool
	do  func(*Sweep, *kernel.Tx, *gap) error
}

// parts of a sweep, in their order. A run that ends may leave children to stop and a group to
// continue, so cascades and groups also follow when a run is due.
var parts = []sweepPart{
	{"runs", func(d *store.Due) bool { return d.Runs }, (*Sweep).runs},
	{"cascades", func(d *store.Due) bool { return d.Cascades || d.Runs }, (*Sweep).cascades},
	{"items", func(d *store.Due) bool { return d.Items }, (*Sweep).items},
	{"groups", func(d *store.Due) bool { return d.Groups || d.Runs }, (*Sweep).groups},
	{"waiters", func(d *store.Due) bool { return d.Waiters }, (*Sweep).waiters},
	{"workers", func(d *store.Due) bool { return d.Workers }, (*Sweep).workers},
	{"schedules", func(d *store.Due) bool { return d.Schedules }, (*Sweep).schedules},
	{"limits", func(d *store.Due) bool { return d.Limits }, (*Sweep).limits},
	{"expire", func(d *store.Due) bool { return d.Letters || d.Keys }, (*Sweep).expire},
	{"patrol", func(*store.Due) bool { return true }, (*Sweep).patrol},
}

// Parts returns the names of the parts of a sweep.
func Parts() (names []string) {
	for i := range parts {
		names = append(names, parts[i].name)
	}
	return names
}

// Do sweeps.
func (s *Sweep) Do(tx *kernel.Tx) error {
	s.Actions, s.Postponed, s.Locked, s.Contended, s.More, s.acting = nil, 0, 0, nil, false, nil
	s.decisions++
	s.w.copies.forget(tx.Now)
	g, err := readGap(tx, s.w.draining.Load())
	if err != nil {
		return err
	}
	if s.single != nil {
		err = s.singleRun(tx, g)
	} else {
		err = s.allParts(tx, g)
	}
	if err != nil {
		return err
	}
	return s.writeLog(tx)
}

// allParts does the parts that have anything to do. Each gets a share of the budget, so that every
// sweep acts on some rows of every part: a deadline does not wait until thousands of groups are done.
func (s *Sweep) allParts(tx *kernel.Tx, g *gap) error {
	due, err := tx.DB.Due(tx.Now.Add(-tx.Policy().WorkerOffline))
	if err != nil {
		return err
	}
	s.Locked += tx.DB.LockedTables()
	var todo []*sweepPart
	for i := range parts {
		if p := &parts[i]; p.due(&due) && (s.part == "" || s.part == p.name) {
			todo = append(todo, p)
		}
	}
	for i, p := range todo {
		tx.BeginPart(i, len(todo))
		acted := len(s.Actions)
		err := tx.Try(func() error { return p.do(s, tx, g) })
		if store.HeldUp(err) { // a row or table that the whole part needs: the others go on
			s.Actions, s.Locked, err = s.Actions[:acted], s.Locked+1, nil
		}
		if err != nil {
			return err
		}
		// A part that has used its share may have left something.
		s.More = s.More || tx.OverBudget()
	}
	return nil
}

// limit returns how many rows of a part to read. Rows that have to be skipped are added, because
// otherwise they could fill the whole selection and hide the others. From the third decision on the
// limit is halved each time: a sweep of fewer rows conflicts less often.
func (s *Sweep) limit(tx *kernel.Tx) int {
	limit := cmp.Or(s.maxRows, s.w.maxRows)
	if s.decisions > 2 {
		limit = max(minSweepRows, limit>>(s.decisions-2))
	}
	return limit + tx.DB.LockedRows() + s.w.aside.count(tx.Now)
}

// begin is called before each row of a part. It tells whether the row is to be skipped because it is set aside, and
// whether the sweep has acted on as many rows as it may.
func (s *Sweep) begin(tx *kernel.Tx, row asideRow) (skip, full bool) {
	s.row = row
	switch {
	case s.w.aside.has(tx.Now, row):
		return true, false
	case s.maxRows == 0:
		return false, false
	case len(s.acting) >= s.maxRows:
		return false, true
	}
	s.acting = append(s.acting, row)
	return false, false
}

// notActed takes back the row that begin was called for last: it was skipped.
func (s *Sweep) notActed() { s.acting = s.acting[:max(0, len(s.acting)-1)] }

// tryRow acts on one row. A refusal concerns that row alone, and the sweep continues. Its writes
// are discarded, and putOff moves its alarm, so that it does not hide other rows. putOff may be nil
// for rows that have no alarm to move.
func (s *Sweep) tryRow(
	tx *kernel.Tx, rule string, t perdure.TenantID, id perdure.RunID, act func() error,
	putOff func(until perdure.Instant) error,
) error {
	acted := len(s.Actions)
	err := tx.Try(act)
	var refused *perdure.Error
	if !errors.As(err, &refused) {
		return err
	}
	s.Actions = s.Actions[:acted]
	until := tx.Now.Add(setAsideFor)
	if store.HeldUp(err) {
		s.Locked++
		until = tx.Now.Add(lockedFor)
	} else {
		s.w.log.Error("a rule could not act", "rule", rule, "tenant", t, "run", id, "error", err)
	}
	if putOff == nil || tx.DB.Contended() { // a contended row is retried by the next sweep
		return nil
	}
	if err = tx.Try(func() error { return putOff(until) }); store.HeldUp(err) {
		s.w.aside.add(until, s.row) // the row itself is locked, and can't be put off
		return nil
	}
	return err
}

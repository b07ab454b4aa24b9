// Package watchdog is the safety net: a table of rules, one sweep that finds whose alarm has rung and does
// what the rule of that clock says, and one loop that sleeps until the next alarm.
//
// Recovery is this loop and nothing else: there is no special step at boot. A missed sweep delays but never
// loses, and any number of nodes may sweep at once, because every action is a guarded write like any
// other.
package watchdog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/engine"
	"github.com/perdure/perdure/internal/store"
)

// Watchdog sweeps.
type Watchdog struct {
	engine *engine.Engine
	log    *slog.Logger
	patrol patrol
	retain engine.Retention

	// Told is called with what was done, once it is durable. It is set before the first sweep, and must not block.
	Told func([]Action)
	// Aside is called when a row is set aside, with the part of the sweep that it belongs to. It must not block.
	Aside func(part string)

	aside asideList                   // rows that can't be acted on
	turn  int                         // the part of a sweep that the next one begins with
	after map[string]perdure.TenantID // by part, the tenant that was acted on last

	acts      atomic.Uint32   // actions noted
	untrimmed atomic.Int64    // of them written since the log was trimmed
	trimAt    perdure.Instant // when it is looked at anyway
}

// New makes a watchdog for an engine.
func New(e *engine.Engine, log *slog.Logger) *Watchdog {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Watchdog{engine: e, log: log, after: make(map[string]perdure.TenantID)}
}

// batch bounds how many rows of a kind one sweep looks at; aside is how long a row is left alone that made an error, and waitAside
// how long one whose rule would change another row that somebody holds locked. patrolReads bounds the rows that a patrol reads.
const (
	batch       = 256
	aside       = time.Minute
	waitAside   = time.Second
	patrolReads = 4000
)

// Run sweeps until the context ends.
func (w *Watchdog) Run(ctx context.Context) error {
	var retiring sync.WaitGroup
	defer retiring.Wait()
	retiring.Go(func() { w.retire(ctx) })
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-w.engine.Earlier():
		}
		pause := w.Once(ctx)
		if ctx.Err() != nil {
			return nil
		}
		timer.Reset(pause)
	}
}

// maxYield is how long the watchdog pauses at most between two sweeps when there is more to do. While callers write, it
// pauses as long as the sweep took, so that it leaves half of the store's time to them.
const maxYield = 100 * time.Millisecond

// Once sweeps, and says how long to sleep until the next time.
func (w *Watchdog) Once(ctx context.Context) (pause time.Duration) {
	op, begin := w.Pass(), time.Now()
	err := w.engine.Do(ctx, op)
	if err != nil && ctx.Err() == nil {
		w.log.Error("a sweep failed", "error", err)
		w.oneByOne(ctx)
	}
	for _, ref := range op.Contended {
		w.one(ctx, ref)
	}
	pause = w.engine.Policy().WatchdogInterval
	switch {
	case err != nil:
	case op.More:
		pause = 0
		if w.engine.Store().InUse() {
			pause = min(maxYield, time.Since(begin))
		}
	case op.Locked > 0 || w.aside.some(): // their alarms ring on: that is no reason not to sleep
	default:
		pause = w.untilNext(ctx, pause)
	}
	return pause
}

// untilNext is how long to sleep: until the next alarm, and no longer than limit. Whoever sets an earlier
// alarm meanwhile wakes the loop; one that was set just before is seen here.
func (w *Watchdog) untilNext(ctx context.Context, limit time.Duration) time.Duration {
	s := w.engine.Store()
	w.engine.Sleep(s.Now().Add(limit))
	pause := limit
	err := s.Keep(ctx, func(v *store.View) error {
		at, err := v.NextAlarm()
		if err == nil && at != 0 {
			pause = min(limit, max(0, at.Sub(s.Now())))
		}
		return err
	})
	if err != nil {
		return limit
	}
	w.engine.Sleep(s.Now().Add(pause)) // an alarm that rings later is no reason to wake
	return pause
}

// Pass is one sweep, as an operation.
func (w *Watchdog) Pass() *Sweep { return &Sweep{w: w} }

// A Sweep looks at everything whose alarm has rung, and does what the rules say. It stops when it has spent the budget of an
// operation, or has taken too long; the next one goes on from there.
type Sweep struct {
	w    *Watchdog
	only *store.Ref // this run alone, among the work of others
	part string     // this part alone
	most int        // rows of a part; zero: batch
	done int        // how often it was decided

	Actions   []Action
	Held      int         // runs that a gap held back
	Locked    int         // rows that somebody else holds locked
	Contended []store.Ref // runs that change all the time: each is tried by itself
	More      bool        // it stopped at its bound: sweep again at once
}

// Needs names the one run that it is about. Otherwise a sweep finds its runs itself.
func (s *Sweep) Needs() []store.Ref {
	if s.only != nil {
		return []store.Ref{*s.only}
	}
	return nil
}

// Lane is the watchdog's own: it acts whatever the others wait for. A single run is decided on among the work: there nobody
// of this node changes it in between.
func (s *Sweep) Lane() store.Lane {
	if s.only != nil {
		return store.LaneWork
	}
	return store.LaneWatch
}

// parts of a sweep, in their order.
var parts = []struct {
	name string
	due  func(*store.Due) bool
	look func(*Sweep, *engine.Tx, *gap) error
}{
	{"runs", func(d *store.Due) bool { return d.Runs }, (*Sweep).runs},
	{"cascades", func(d *store.Due) bool { return d.Cascades || d.Runs }, (*Sweep).cascades}, // an end may have left children to stop
	{"items", func(d *store.Due) bool { return d.Items }, (*Sweep).items},
	{"groups", func(d *store.Due) bool { return d.Groups || d.Runs }, (*Sweep).groups},
	{"waiters", func(d *store.Due) bool { return d.Waiters }, (*Sweep).waiters},
	{"workers", func(d *store.Due) bool { return d.Workers }, (*Sweep).workers},
	{"expire", func(d *store.Due) bool { return d.Letters || d.Keys }, (*Sweep).expire},
	{"patrol", func(*store.Due) bool { return true }, (*Sweep).walk},
}

// Parts names the parts of a sweep.
func Parts() (names []string) {
	for i := range parts {
		names = append(names, parts[i].name)
	}
	return names
}

// Do sweeps.
func (s *Sweep) Do(tx *engine.Tx) error {
	s.Actions, s.Held, s.Locked, s.Contended, s.More = nil, 0, 0, nil, false
	s.done++
	g, err := readGap(tx)
	if err != nil {
		return err
	}
	if s.only != nil {
		if err := s.alone(tx, g); err != nil {
			return err
		}
		return s.keep(tx)
	}
	due, err := tx.Due(tx.Now.Add(-tx.Policy().WorkerOffline))
	if err != nil {
		return err
	}
	next := 0
	for n := range parts {
		i := (s.w.turn + n) % len(parts)
		p := &parts[i]
		if !p.due(&due) || s.part != "" && s.part != p.name {
			continue
		}
		if tx.Spent() {
			next, s.More = i, true // it has its turn first the next time
			break
		}
		if err := p.look(s, tx, g); err != nil {
			return err
		}
	}
	if next != s.w.turn && s.part == "" {
		tx.After(func() { s.w.turn = next })
	}
	return s.keep(tx)
}

// limit is how many rows of a part the sweep looks at. Those that have to be left alone must not hide the others.
func (s *Sweep) limit(tx *engine.Tx) int {
	most := batch
	if s.most > 0 {
		most = s.most
	}
	if s.done > 2 { // somebody changes one of its rows each time: fewer rows are changed less often
		most = max(8, most>>(s.done-2))
	}
	return most + tx.LockedRows() + s.w.aside.count(tx.Now)
}

// alone acts on one run whose alarm has rung.
func (s *Sweep) alone(tx *engine.Tx, g *gap) error {
	r, ok, err := tx.Run(s.only.Tenant, s.only.Run)
	if err != nil || !ok || r.AlarmAt == 0 || r.AlarmAt > tx.Now {
		return err
	}
	return s.act(tx, g, &r)
}

// runs acts on the runs whose alarm has rung: the oldest alarms, or, where there are more than one sweep can do, some of each
// tenant. A row that makes an error is set aside for a minute, so that it hides nobody.
func (s *Sweep) runs(tx *engine.Tx, g *gap) error {
	limit := s.limit(tx)
	ringing, err := tx.Ringing(limit)
	if err == nil && len(ringing) == limit {
		s.More = true
		ringing, err = tx.RingingRound(s.w.after["runs"], limit)
	}
	if err != nil {
		return err
	}
	return eachInTurn(s, tx, "runs", ringing, func(r *perdure.Run) perdure.TenantID { return r.Tenant },
		func(r *perdure.Run) error { return s.run(tx, g, r.Tenant, r.ID) })
}

// run acts on one of the runs whose alarm has rung.
func (s *Sweep) run(tx *engine.Tx, g *gap, t perdure.TenantID, id perdure.RunID) error {
	switch ref := (store.Ref{Tenant: t, Run: id}); {
	case s.w.aside.has(tx.Now, "runs", t, string(id)):
		return nil
	case tx.RunContended(t, id):
		s.Contended = append(s.Contended, ref)
		return nil
	case tx.RunLocked(t, id):
		s.Locked++
		return nil
	}
	r, ok, err := tx.Run(t, id) // an earlier action may have changed it
	if err != nil || !ok || r.AlarmAt == 0 || r.AlarmAt > tx.Now {
		return err
	}
	acted := len(s.Actions)
	err = tx.Try(func() error { return s.act(tx, g, &r) })
	var refused *perdure.Error
	if !errors.As(err, &refused) {
		return err
	}
	s.Actions = s.Actions[:acted]
	later := tx.Now.Add(aside)
	switch {
	case store.Locked(err) && tx.Contended(): // its parent, or its thread
		s.Contended = append(s.Contended, store.Ref{Tenant: t, Run: id})
		return nil
	case store.Locked(err):
		s.Locked++
		later = tx.Now.Add(waitAside)
	default:
		s.w.log.Error("a rule could not act", "run", id, "state", r.State, "error", err)
	}
	if r, _, err = tx.Run(t, id); err != nil { // as it was before the rule tried
		return err
	}
	return tx.Apply(&r, perdure.Rearmed{Until: later})
}

// act does what the first rule says whose clock has rung and that is not held back. If there is none, the
// alarm is set to when there may be.
func (s *Sweep) act(tx *engine.Tx, g *gap, r *perdure.Run) error {
	if r.Damage != nil { // its clocks mean nothing
		t, id := r.Tenant, r.ID
		did, err := tx.EndDamaged(r)
		return s.mended(tx, t, id, did, err)
	}
	var next perdure.Instant
	for i := range perdure.Clocks {
		c := &perdure.Clocks[i]
		at := c.At(tx.Policy(), r)
		if at == 0 {
			continue
		}
		rule := byClock[c.Name]
		if at <= tx.Now {
			until := g.hold(tx.Now, rule, r)
			if until <= tx.Now {
				before := *r
				if err := rule.act(tx, r); err != nil {
					return err
				}
				s.did(tx, rule.Name, r.Tenant, r.ID, outcome(tx.Policy(), rule, &before, r, tx.Now), because(c.Name, &before, at, tx.Now))
				return nil
			}
			at = until
			if c.Name == "deadline" {
				// Its end is only put off: nothing else is worth doing to it until then.
				s.Held++
				return tx.Apply(r, perdure.Rearmed{Until: until})
			}
		}
		if next == 0 || at < next {
			next = at
		}
	}
	s.Held++
	return tx.Apply(r, perdure.Rearmed{Until: next})
}

// one acts on one row. A refusal concerns that row alone: it is logged, what it staged is forgotten, the row is
// put off, so that it hides nobody, and the sweep goes on. A walk has nothing to put off: it comes by again.
func (s *Sweep) one(tx *engine.Tx, what string, t perdure.TenantID, id perdure.RunID, act, putOff func() error) error {
	acted := len(s.Actions)
	err := tx.Try(act)
	var refused *perdure.Error
	if errors.As(err, &refused) {
		if s.Actions = s.Actions[:acted]; store.Locked(err) {
			s.Locked++
		} else {
			s.w.log.Error("a rule could not act", "rule", what, "tenant", t, "run", id, "error", err)
		}
		if putOff == nil || tx.Contended() { // a row that changes all the time is tried again by the next sweep
			return nil
		}
		return putOff()
	}
	return err
}

func (s *Sweep) cascades(tx *engine.Tx, _ *gap) error {
	ended, err := tx.Cascading(min(s.limit(tx), 16+s.w.aside.count(tx.Now)))
	if err != nil {
		return err
	}
	for i := range ended {
		if tx.Spent() {
			s.More = true
			return nil
		}
		if s.w.aside.has(tx.Now, "cascades", ended[i].Tenant, string(ended[i].ID)) {
			continue
		}
		err := s.one(tx, "cascade", ended[i].Tenant, ended[i].ID, func() error {
			r, _, err := tx.Run(ended[i].Tenant, ended[i].ID)
			if err != nil {
				return err
			}
			stopped, err := tx.StopChildren(&r)
			if err != nil {
				return err
			}
			if stopped > 0 {
				s.did(tx, "cascade", r.Tenant, r.ID, fmt.Sprintf("%d children asked to stop", stopped), "it is "+string(r.State)+" and had live children that may not outlive it")
			}
			s.More = s.More || r.Cascade
			return nil
		}, nil)
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *Sweep) items(tx *engine.Tx, g *gap) error {
	limit := s.limit(tx)
	ringing, err := tx.RingingItems(limit)
	if err != nil {
		return err
	}
	s.More = s.More || len(ringing) == limit
	return eachInTurn(s, tx, "items", ringing, func(i *perdure.Item) perdure.TenantID { return i.Tenant }, func(i *perdure.Item) error {
		if s.w.aside.has(tx.Now, "items", i.Tenant, string(i.RunID)) {
			return nil
		}
		return s.one(tx, "inbox", i.Tenant, i.RunID, func() error {
			did, err := tx.LookAtItem(*i, tx.Now < g.HoldUntil)
			return s.mended(tx, i.Tenant, i.RunID, did, err)
		}, func() error { return tx.PutOffItem(*i, tx.Now.Add(aside)) })
	})
}

// mended notes what a look has mended.
func (s *Sweep) mended(tx *engine.Tx, t perdure.TenantID, run perdure.RunID, did engine.Repair, err error) error {
	if err == nil && did.Rule != "" {
		s.did(tx, did.Rule, t, run, did.What, did.Why)
	}
	return err
}

func (s *Sweep) groups(tx *engine.Tx, _ *gap) error {
	limit := s.limit(tx)
	ringing, err := tx.RingingGatherings(limit)
	if err != nil {
		return err
	}
	s.More = s.More || len(ringing) == limit
	return eachInTurn(s, tx, "groups", ringing, func(g *perdure.Group) perdure.TenantID { return g.Tenant }, func(g *perdure.Group) error {
		if s.w.aside.has(tx.Now, "groups", g.Tenant, string(g.ID)) {
			return nil
		}
		due := g.AlarmAt
		return s.one(tx, "group-deadline", g.Tenant, perdure.RunID(g.ID), func() error {
			passed := g.State == perdure.GroupOpen && g.Kind == perdure.GroupOfCaller
			if err := tx.GoOn(g); err != nil || !passed {
				s.More = s.More || err == nil && g.AlarmAt != 0
				return err
			}
			s.did(tx, "group-deadline", g.Tenant, perdure.RunID(g.ID), "the group "+string(g.ID)+" is "+g.State, fmt.Sprintf("its deadline passed %s ago; %d of its %d runs have ended", span(tx.Now.Sub(due)), g.Ended, g.Total))
			return nil
		}, nil)
	})
}

func (s *Sweep) waiters(tx *engine.Tx, _ *gap) error {
	limit := s.limit(tx)
	gone, err := tx.ExpiredWaiters(limit)
	if err != nil {
		return err
	}
	s.More = s.More || len(gone) == limit
	return eachInTurn(s, tx, "waiters", gone, func(x *store.WaiterRow) perdure.TenantID { return x.Tenant }, func(x *store.WaiterRow) error {
		if s.w.aside.has(tx.Now, "waiters", x.Tenant, string(x.RunID)) {
			return nil
		}
		return s.one(tx, "waiters", x.Tenant, x.RunID, func() error {
			deferred, err := tx.ExpireWaiter(*x)
			if err == nil && deferred {
				s.did(tx, "waiters", x.Tenant, x.RunID, "deferred; the work goes on", expiredWaiter(*x, tx.Now))
			}
			return err
		}, func() error {
			x.ExpiresAt = tx.Now.Add(aside)
			tx.PutWaiter(*x)
			return nil
		})
	})
}

// expiredWaiter says why nobody waits any more. A row without a node is a follower that never came.
func expiredWaiter(x store.WaiterRow, now perdure.Instant) string {
	if x.Node == "" {
		return fmt.Sprintf("nobody has come to follow it: its time for that passed %s ago", span(now.Sub(x.ExpiresAt)))
	}
	return fmt.Sprintf("nobody waits for it any more: the word of node %s expired %s ago", x.Node, span(now.Sub(x.ExpiresAt)))
}

func (s *Sweep) workers(tx *engine.Tx, g *gap) error {
	if tx.Now < g.HoldUntil {
		return nil
	}
	silent, err := tx.SilentWorkers(tx.Now.Add(-tx.Policy().WorkerOffline), batch)
	if err != nil {
		return err
	}
	for _, x := range silent {
		err := s.one(tx, "workers", x.Tenant, "", func() error {
			tx.Offline(x)
			s.did(tx, "workers", x.Tenant, "", "worker "+x.ID+" is shown as offline", fmt.Sprintf("no sign of life for %s", span(tx.Now.Sub(x.SeenAt))))
			return nil
		}, nil)
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *Sweep) expire(tx *engine.Tx, _ *gap) error {
	letters, keys, err := tx.Expire()
	if err == nil && letters+keys > 0 {
		s.did(tx, "ttl", "", "", fmt.Sprintf("%d dead letters and %d idempotency keys removed", letters, keys), "their time is over")
	}
	return err
}

// patrol walks through all live runs and open gatherings, a few at a time. It begins with the run whose alarm is the
// latest: a sign of life moves an alarm up, and in the other direction a crowd of busy workers would always be ahead. Live runs without
// an alarm, which there should not be, are on a walk of their own.
type patrol struct {
	next   perdure.Instant
	alarm  perdure.Instant
	tenant perdure.TenantID
	run    perdure.RunID
	blind  perdure.RunID
	gt     perdure.TenantID
	group  perdure.GroupID
}

const patrolBatch = 128

func (s *Sweep) walk(tx *engine.Tx, _ *gap) error {
	p := &s.w.patrol
	if tx.Now < p.next {
		return nil
	}
	tx.Afresh()
	from := p.alarm
	if from == 0 {
		from = math.MaxInt64 // a new round
	}
	live, err := tx.LiveBefore(from, p.tenant, p.run, patrolBatch)
	if err != nil {
		return err
	}
	blind, err := tx.Unwatched(p.blind, patrolBatch)
	if err != nil {
		return err
	}
	reads := tx.Cost().Read
	full := func() bool { return tx.Cost().Read-reads > patrolReads || tx.Spent() }
	if err := s.mend(tx, blind, nil); err != nil {
		return err
	}
	all := len(live)
	if err := s.mend(tx, live, func(done int) bool {
		if done > 0 && full() {
			live = live[:done]
			return true
		}
		return false
	}); err != nil {
		return err
	}
	groups, err := tx.OpenGatherings(p.gt, p.group, patrolBatch)
	if err != nil {
		return err
	}
	open := len(groups)
	for i := range groups {
		if i > 0 && full() {
			groups = groups[:i]
			break
		}
		err := s.one(tx, "patrol", groups[i].Tenant, perdure.RunID(groups[i].ID), func() error {
			did, err := tx.MendGathering(&groups[i])
			return s.mended(tx, groups[i].Tenant, perdure.RunID(groups[i].ID), did, err)
		}, nil)
		if err != nil {
			return err
		}
	}
	next := *p
	next.next = tx.Now.Add(tx.Policy().PatrolEvery)
	if next.alarm, next.tenant, next.run = 0, "", ""; all == patrolBatch || len(live) < all {
		last := &live[len(live)-1]
		next.alarm, next.tenant, next.run = last.AlarmAt, last.Tenant, last.ID
	}
	if next.blind = ""; len(blind) == patrolBatch {
		next.blind = blind[len(blind)-1].ID
	}
	if next.gt, next.group = "", ""; open == patrolBatch || len(groups) < open {
		next.gt, next.group = groups[len(groups)-1].Tenant, groups[len(groups)-1].ID
	}
	tx.After(func() { *p = next })
	return nil
}

// mend looks at runs that the patrol comes by, until enough says that it has looked at so many as it may.
func (s *Sweep) mend(tx *engine.Tx, runs []perdure.Run, enough func(done int) bool) error {
	for i := range runs {
		if enough != nil && enough(i) {
			return nil
		}
		r, ok, err := tx.Run(runs[i].Tenant, runs[i].ID)
		if err != nil {
			return err
		}
		if !ok || r.State.Terminal() {
			continue
		}
		err = s.one(tx, "patrol", r.Tenant, r.ID, func() error {
			did, err := tx.Mend(&r)
			return s.mended(tx, r.Tenant, r.ID, did, err)
		}, nil)
		if err != nil {
			return err
		}
	}
	return nil
}

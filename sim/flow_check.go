package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/store"
)

// Invariants of flow control:
//
//   - F1: no grant brings the slots under a limit above what it allows.
//   - F2: no window of a rate has more than the limit allows.
//   - F3: an instant of a schedule starts one run, and each is counted once.
//   - F4: no two runs hold a unique key.
//   - F5: a debounced run begins at the time that its first submission allows at the latest.
//   - F6: after the faults have stopped, nothing waits for a limit that has room.

// note notes what the change of a run means for its limits. fresh tells that the run is new.
func (f *flow) note(prev *row, next *perdure.Run, fresh bool) {
	if f == nil {
		return
	}
	if fresh {
		f.fresh = append(f.fresh, prev)
	}
	s := f.s
	if next.Options.Limits != nil && prev.State == perdure.Queued && next.State.Leased() &&
		next.Cancel.RequestedAt == 0 {
		f.checkHeld(next)
	}
	if next.HoldsSlots() && (fresh || prev.State == perdure.Queued) {
		f.granted(next)
	} else if next.HoldsSlots() {
		for i := range next.Limited.Steps {
			if step := &next.Limited.Steps[i]; prev.SlotOf(step.Step) == nil {
				f.took(next, step.Step, step.Refs, s.clock())
			}
		}
	}
	if d, was := next.Options.Debounce, prev.Options.Debounce; d != nil {
		switch {
		case was != nil && was.Last != d.Last:
			s.violate("F5", "%s may begin until %s, and before that until %s", s.nameOf(next), d.Last, was.Last)
		case next.Options.RunAt > d.Last:
			s.violate("F5", "%s begins at %s, and at the latest at %s", s.nameOf(next), next.Options.RunAt, d.Last)
		case was != nil && d.Count > was.Count:
			s.sometimes("a submission became part of a debounced run")
		}
	}
	if next.AtLimit() && (!prev.AtLimit() || prev.Limited.At != next.Limited.At) {
		f.stood[next.ID] = s.clock()
	}
	switch {
	case next.AtLimit() && !prev.AtLimit() && next.State == perdure.Suspended:
		s.sometimes("a suspended run stood in the line of a limit")
	case next.AtLimit() && !prev.AtLimit():
		s.sometimes("a run waited at a limit")
		if l := f.at(next.Limited.At); l != nil && l.values.Concurrency == 0 && l.closed < s.clock() {
			s.sometimes("a rate held a run back")
		}
	}
	if next.State.Terminal() && prev.State.Live() && next.Failure != nil && next.Failure.Code == perdure.CodeReplaced {
		s.sometimes("a run was replaced")
	}
}

// at gives a limit, or nil.
func (f *flow) at(ref perdure.LimitRef) *simLimit {
	if n := slices.IndexFunc(f.limits, func(l *simLimit) bool { return l.ref == ref }); n >= 0 {
		return f.limits[n]
	}
	return nil
}

// checkHeld checks that a run that was granted holds a slot of each of its limits.
func (f *flow) checkHeld(r *perdure.Run) {
	for _, name := range r.Options.Limits.Names {
		ref := perdure.LimitRef{Limit: name}
		if name == deskLimit { // it may have been deleted in between
			continue
		}
		if name == customerLimit {
			ref.Key = r.Options.Limits.Key
		}
		if l := f.at(ref); l != nil && l.exists && (r.Limited == nil || !slices.Contains(r.Limited.Refs, ref)) {
			f.s.violate("F1", "%s was granted and holds no slot of limit %s %s", f.s.nameOf(r), ref.Limit, ref.Key)
		}
	}
}

// granted notes what the grant of a run takes of rates.
func (f *flow) granted(r *perdure.Run) {
	if f.s.model.rows[r.ID].State == perdure.Queued && r.Resumed {
		f.s.sometimes("a resumed run took its slots again")
	}
	if u := r.Options.Limits; u != nil && r.Limited.Held {
		for _, l := range f.limits {
			if slices.Contains(r.Limited.Refs, l.ref) {
				l.taken = append(l.taken, take{r.GrantedAt, u.Taken(), r.ID})
			}
		}
	}
	for i := range r.Limited.Steps {
		f.took(r, r.Limited.Steps[i].Step, r.Limited.Steps[i].Refs, r.GrantedAt)
	}
}

// took notes what a step takes of rates.
func (f *flow) took(r *perdure.Run, step string, refs []perdure.LimitRef, at perdure.Instant) {
	for _, t := range f.takes[string(r.ID)+"/"+step] {
		for _, l := range f.limits {
			if l.ref.Limit == t.Name && slices.Contains(refs, l.ref) {
				l.taken = append(l.taken, take{at, t.Taken(), r.ID})
			}
		}
	}
}

// check checks the limits, keys and schedules after a batch.
func (f *flow) check(v *store.View) error {
	if f == nil {
		return nil
	}
	for _, l := range f.limits {
		if err := f.checkLimit(v, l); err != nil {
			return err
		}
	}
	for _, r := range f.fresh {
		if r.State.Live() { // it may have been replaced already
			f.checkUnique(r)
		}
		f.checkFiring(r)
	}
	f.fresh = f.fresh[:0]
	return nil
}

// checkLimit checks F1 and F2 for one limit.
func (f *flow) checkLimit(v *store.View, l *simLimit) error {
	s, before := f.s, *l
	if err := l.read(v); err != nil {
		return err
	}
	l.slots = 0
	for _, id := range s.model.order {
		if r := s.model.rows[id]; r.State.Leased() {
			l.slots += life.SlotsAt(&r.Run, l.ref)
		}
	}
	n := max(l.values.Concurrency, before.values.Concurrency)
	if before.values.Concurrency == 0 || l.values.Concurrency == 0 {
		n = 0
	}
	if n > 0 && l.slots > before.slots && l.slots > n {
		s.violate("F1", "%d slots of limit %s %s are held, and it has %d", l.slots, l.ref.Limit, l.ref.Key, n)
	}
	if n > 0 && l.slots == n {
		s.sometimes("a limit was full")
	}
	if l.slots != before.slots || len(l.taken) != l.checked || !sameValues(&l.values, &before.values) ||
		l.closed != before.closed {
		l.moved = s.clock()
	}
	if !sameValues(&l.values, &before.values) {
		l.taken, l.checked, l.since = nil, 0, s.clock()
		return nil
	}
	rate := l.values.Rate
	if rate == nil {
		l.checked = len(l.taken)
		return nil
	}
	most := rate.Count + max(1, rate.Burst)
	for ; l.checked < len(l.taken); l.checked++ {
		last := l.taken[l.checked]
		sum, end := 0, last.at
		for _, t := range l.taken {
			if t.at <= end && t.at > end.Add(-time.Duration(rate.Per)) {
				sum += t.units
			}
		}
		if sum > most {
			text := ""
			for _, t := range l.taken {
				text += fmt.Sprintf(" %d by %s at %s", t.units, s.short(t.by), t.at)
			}
			s.violate("F2", "%d units of limit %s %s were taken within %s, the last by %s, and it allows %d:%s", sum,
				l.ref.Limit, l.ref.Key, rate.Per, s.short(last.by), most, text)
		}
	}
	return nil
}

func sameValues(a, b *perdure.LimitValues) bool {
	return a.Concurrency == b.Concurrency && (a.Rate == nil) == (b.Rate == nil) && (a.Rate == nil || *a.Rate == *b.Rate)
}

// checkUnique checks F4 for a new run.
func (f *flow) checkUnique(r *row) {
	s := f.s
	if u := r.Options.Unique; u != nil {
		defer func() { f.owners[r.Kind+" "+u.Key] = r.ID }()
	}
	for _, id := range s.model.order {
		o := s.model.rows[id]
		if id == r.ID || o.Kind != r.Kind {
			continue
		}
		if u, mine := o.Options.Unique, r.Options.Unique; u != nil && mine != nil && u.Key == mine.Key {
			last := f.owners[r.Kind+" "+u.Key] == id // a retry has the key of the run that it goes on for
			if holdsKey(&o.Run, r) && (last || u.While != perdure.UniqueFor) {
				s.violate("F4", "%s and %s have the unique key %s, which the first has while %s", s.nameOf(&o.Run),
					s.nameOf(&r.Run), u.Key, u.While)
			}
			s.sometimes("a unique key was taken again")
		}
		if d, mine := o.Options.Debounce, r.Options.Debounce; d != nil && mine != nil && d.Key == mine.Key &&
			o.State.Live() && o.StartedAt == 0 && o.Debounces() && r.RetryOf == "" {
			s.violate("F4", "%s and %s are debounced under key %s, and neither has begun", s.nameOf(&o.Run),
				s.nameOf(&r.Run), d.Key)
		}
	}
}

// holdsKey tells whether a run has a unique key that another one was just created with.
func holdsKey(o *perdure.Run, r *row) bool {
	switch u := o.Options.Unique; u.While {
	case perdure.UniqueLive:
		return o.State.Live()
	case perdure.UniqueWaiting:
		return o.State.Live() && o.StartedAt == 0
	default: // a retry and a continuation have the key of the run that they go on for
		replaced := o.Failure != nil && o.Failure.Code == perdure.CodeReplaced
		return r.CreatedAt < u.Until && u.Until != r.Options.Unique.Until && !replaced
	}
}

// checkFiring checks F3 for a new run.
func (f *flow) checkFiring(r *row) {
	firing := r.Options.Firing
	if firing == nil || r.RetryOf != "" || r.ContinuationOf != "" {
		return
	}
	s := f.s
	s.sometimes("a schedule started a run")
	if firing.For == 0 {
		s.sometimes("a schedule was triggered")
		return
	}
	if firing.Missed > 0 {
		s.sometimes("a run made up for missed instants")
	}
	at := fmt.Sprintf("%s %d", firing.ID, firing.For)
	if other, twice := f.fired[at]; twice {
		s.violate("F3", "%s and %s are started for %s of schedule %s", s.short(other), s.short(r.ID), firing.For,
			firing.Name)
	}
	f.fired[at] = r.ID
}

// checkBounds checks F6 for a run that waits for a limit.
func (f *flow) checkBounds(r *row, late func(perdure.Instant, time.Duration) bool) {
	if f == nil || !r.AtLimit() {
		return
	}
	for _, l := range f.limits {
		if l.ref != r.Limited.At || l.closed > f.s.clock() {
			continue
		}
		if n := l.values.Concurrency; n > 0 && l.slots >= n {
			continue
		}
		used, quiet := 0, time.Duration(0)
		if rate := l.values.Rate; rate != nil {
			// Long after the last grant all of the rate is there.
			quiet = 2 * time.Duration(rate.Per)
			for _, t := range l.taken {
				used += t.units
			}
		}
		if late(max(f.stood[r.ID], l.moved, l.closed), f.s.cfg.poll+2*time.Second+quiet) {
			f.s.violate("F6", "%s waits for limit %s %s, which has %d of %d slots taken, %d units of its rate, and "+
				"has not moved since %s: %s", f.s.nameOf(&r.Run), l.ref.Limit, l.ref.Key, l.slots, l.values.Concurrency,
				used, l.moved, f.line(l))
		}
	}
}

// line describes who waits at a limit, and who is offered its room.
func (f *flow) line(l *simLimit) (text string) {
	f.s.view(func(v *store.View) error {
		row, _, err := v.LimitKeys.Get(tenant, l.ref)
		text = fmt.Sprintf("%d offered, after %s, its alarm at %s, passed %q", row.Offered, row.OfferedAfter,
			row.AlarmAt, row.Passed)
		return err
	})
	for _, id := range f.s.model.order {
		if r := f.s.model.rows[id]; r.Limited != nil {
			text += fmt.Sprintf("; %s waits at %q and has %v since %s", f.s.nameOf(&r.Run), r.Limited.At,
				r.Limited.Refs, r.Limited.OfferedAt)
		}
	}
	return text
}

// manyMissed is how many missed instants a schedule counts at least.
const manyMissed = 1000

// checkEnd checks that no limit counts anything, and that every instant of a schedule was counted once.
func (f *flow) checkEnd(v *store.View) error {
	if f == nil {
		return nil
	}
	for _, l := range f.limits {
		row, ok, err := v.LimitKeys.Get(tenant, l.ref)
		if err != nil {
			return err
		}
		if ok && row.Leased != 0 && !row.Recount || ok && row.Waiting != 0 {
			f.s.violate("F1", "every run has ended, and limit %s %s counts %d leased and %d waiting", l.ref.Limit,
				l.ref.Key, row.Leased, row.Waiting)
		}
	}
	for _, name := range f.names {
		row, ok, err := v.Schedules.Get(tenant, name)
		if err != nil || !ok || row.NextAt == 0 {
			return err
		}
		clock, err := life.ClockOf(&row)
		if err != nil {
			return err
		}
		instants := int64(0)
		for at := row.CreatedAt; ; instants++ {
			next, ok := clock.Next(at)
			if !ok || next >= row.NextAt {
				break
			}
			at = next
		}
		waiting := int64(0)
		if row.WaitingAt != 0 {
			waiting = 1
		}
		if row.Missed >= manyMissed {
			continue // they are counted up to a bound
		}
		if got := row.Fired + row.Missed + row.Skipped + row.Failed + waiting; got != instants {
			f.s.violate("F3", "schedule %s had %d instants: %d were fired, %d missed, %d left out, %d refused, %d wait",
				name, instants, row.Fired, row.Missed, row.Skipped, row.Failed, waiting)
		}
		ran := int64(0)
		for at := range f.fired {
			if strings.HasPrefix(at, row.ID+" ") {
				ran++
			}
		}
		if ran != row.Fired {
			f.s.violate("F3", "schedule %s counts %d runs, and has started %d", name, row.Fired, ran)
		}
	}
	return nil
}

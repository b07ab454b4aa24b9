package life

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/rules"
	"github.com/perdure/perdure/internal/server/plant"
	"github.com/perdure/perdure/internal/server/store"
)

// Limits: positions and counts.
//
// A run that names limits has one of three positions, see perdure.Limited: it waits, it is offered, or
// it holds slots. Each limit, or each key of it, has a row with the number of runs in each position.
// followLimits is called for every transition and compares the position before and after it. So whatever
// ends a lease gives the slots back in the same write, and nothing else has to think of it.
//
// The rows have a version. Two nodes that grant the last slot at once therefore conflict, and one of them
// is decided again and finds no room.
//
// A run that becomes claimable is placed: it is offered if all of its limits have room that is not offered
// yet and nobody waits there, and otherwise waits at the first that has none. Only the gate decides about
// the grant itself. limit_next.go offers room to runs that wait.

// A boundLimit is a limit that a run is under, with its counts.
type boundLimit struct {
	ref    perdure.LimitRef
	values perdure.LimitValues
	closed perdure.Instant
	// keyed is set if the limit has a count for each key, and turn is otherwise the key for which its turn is
	// taken.
	keyed bool
	turn  string
	// units is what the run, or its step, takes of the rate.
	units int
	row   store.LimitKeyRow
}

// limitScratch has the limits whose counts an operation has changed. passing is a run that is let through at
// a limit, although others wait there.
type limitScratch struct {
	touched []touchedLimit
	passing perdure.RunID
	at      perdure.LimitRef
}

type touchedLimit struct {
	tenant perdure.TenantID
	ref    perdure.LimitRef
}

var limitsTouched = kernel.NewScratch[limitScratch]()

func touchLimit(tx *kernel.Tx, t perdure.TenantID, ref perdure.LimitRef) {
	s := limitsTouched.Of(tx)
	if x := (touchedLimit{t, ref}); !slices.Contains(s.touched, x) {
		s.touched = append(s.touched, x)
	}
}

// limitOf gives the values of a limit. ok is false if there is none.
func limitOf(tx *kernel.Tx, t perdure.TenantID, name string) (l store.LimitRow, ok bool, err error) {
	if n, own, err := rules.OwnConcurrency(tx, t, name); own {
		if err != nil || n == 0 {
			return l, false, err
		}
		l.Name = name
		l.Spec, err = store.SpecOf(&perdure.LimitValues{Concurrency: n})
		return l, true, err
	}
	l, ok, err = tx.DB.Limits.Get(t, name)
	return l, ok && l.DeletedAt == 0, err
}

// countsOf gives the counts of a key.
func countsOf(tx *kernel.Tx, t perdure.TenantID, ref perdure.LimitRef) (store.LimitKeyRow, error) {
	return countsBefore(tx, t, ref, nil)
}

// countsBefore gives the counts of a key as they are before a run is counted in its new position: if they
// have to be counted again, the run counts as before.
func countsBefore(
	tx *kernel.Tx, t perdure.TenantID, ref perdure.LimitRef, before *perdure.Run,
) (store.LimitKeyRow, error) {
	row, ok, err := tx.DB.LimitKeys.Get(t, ref)
	switch {
	case err != nil:
		return row, err
	case !ok:
		return store.LimitKeyRow{Tenant: t, Name: ref.Limit, Key: ref.Key}, nil
	case plant.Is("limit-full-after-restart") && row.UsedAt < tx.Now && bucketsOf.Of(tx.Engine).forgets(t, ref):
		row.FullAt = 0
		return row, nil
	case !row.Recount:
		return row, nil
	}
	held, err := tx.DB.LimitLines.Held(t, maxRecount)
	if err != nil {
		return row, err
	}
	row.Leased, row.Recount = 0, false
	for i := range held {
		if before == nil || held[i].ID != before.ID {
			row.Leased += int64(SlotsAt(&held[i], ref))
		}
	}
	if before != nil {
		row.Leased += int64(SlotsAt(before, ref))
	}
	tx.DB.LimitKeys.Put(row)
	return row, nil
}

// bucketsOf is for a planted fault: rates that are kept in memory are full again after a restart.
var bucketsOf = kernel.NewPart(func(*kernel.Engine) *buckets { return &buckets{seen: map[touchedLimit]bool{}} })

type buckets struct {
	mu   sync.Mutex
	seen map[touchedLimit]bool
}

// forgets tells whether nobody has asked for a limit before.
func (b *buckets) forgets(t perdure.TenantID, ref perdure.LimitRef) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	before := b.seen[touchedLimit{t, ref}]
	b.seen[touchedLimit{t, ref}] = true
	return !before
}

// maxRecount bounds the runs that are read to count slots again.
const maxRecount = 20_000

// SlotsAt counts the slots of a limit that a run holds, with those of its steps.
func SlotsAt(r *perdure.Run, ref perdure.LimitRef) (n int) {
	if r.Limited == nil {
		return 0
	}
	if r.Limited.Held && slices.Contains(r.Limited.Refs, ref) {
		n++
	}
	for i := range r.Limited.Steps {
		if slices.Contains(r.Limited.Steps[i].Refs, ref) {
			n++
		}
	}
	return n
}

// needs gives what the next grant of a run takes: of the limits of the run, and of those of a step that it
// was suspended for. Where both are under one limit, one slot is enough.
func needs(r *perdure.Run) (out []perdure.LimitTake) {
	if u := r.Options.Limits; u != nil {
		for _, name := range u.Names {
			out = append(out, perdure.LimitTake{Name: name, Key: u.Key, Units: u.Taken()})
		}
	}
	if due := r.DueStep(); due != nil {
		for _, t := range due.Limits {
			n := slices.IndexFunc(out, func(x perdure.LimitTake) bool { return x.Name == t.Name && x.Key == t.Key })
			if n >= 0 {
				out[n].Units += t.Taken()
			} else {
				out = append(out, t)
			}
		}
	}
	return out
}

// bind reads a limit with the counts that concern a take. ok is false if there is no such limit.
func bind(tx *kernel.Tx, t perdure.TenantID, take perdure.LimitTake) (b boundLimit, ok bool, err error) {
	l, ok, err := limitOf(tx, t, take.Name)
	if err != nil || !ok {
		return b, false, err
	}
	b = boundLimit{ref: perdure.LimitRef{Limit: take.Name}, values: l.Values(), closed: l.ClosedUntil,
		keyed: l.PerKey, turn: take.Key, units: take.Taken()}
	if l.PerKey {
		b.ref.Key, b.turn = take.Key, ""
	}
	return b, true, b.read(tx, t)
}

// bindAll reads the limits of some takes that are there.
func bindAll(tx *kernel.Tx, t perdure.TenantID, takes []perdure.LimitTake) (out []boundLimit, err error) {
	for _, take := range takes {
		b, ok, err := bind(tx, t, take)
		if err != nil {
			return nil, err
		}
		if n := slices.IndexFunc(out, func(x boundLimit) bool { return x.ref == b.ref }); ok && n >= 0 {
			out[n].units += b.units
		} else if ok {
			out = append(out, b)
		}
	}
	return out, nil
}

// read reads the counts.
func (b *boundLimit) read(tx *kernel.Tx, t perdure.TenantID) (err error) {
	b.row, err = countsOf(tx, t, b.ref)
	own := b.row.Values()
	b.values.Overlay(&own)
	b.closed = max(b.closed, b.row.ClosedUntil)
	return err
}

// limitsOn gives the limits whose slots the next grant of a run takes.
func limitsOn(tx *kernel.Tx, r *perdure.Run) ([]boundLimit, error) {
	return bindAll(tx, r.Tenant, needs(r))
}

// hasSlot tells whether one more run may be leased now.
func (b *boundLimit) hasSlot(now perdure.Instant, units int) bool {
	if now < b.closed {
		return false
	}
	if n := b.values.Concurrency; n > 0 && b.row.Leased >= int64(n) {
		return false
	}
	return b.values.Rate == nil || b.allows(now, b.row.FullAt, units)
}

// allows tells whether the rate allows units now, if it has regained all that was taken at full.
func (b *boundLimit) allows(now, full perdure.Instant, units int) bool {
	return now >= b.values.Rate.At(full, units) || plant.Is("limit-rate-unchecked")
}

// hasRoom tells whether one more run may be offered now: runs that are offered count as if they were leased.
func (b *boundLimit) hasRoom(now perdure.Instant, units int) bool {
	if n := b.values.Concurrency; n > 0 && b.row.Leased+b.row.Offered >= int64(n) {
		return false
	}
	return b.hasSlot(now, units) && (b.values.Rate == nil || b.allows(now, b.fullAt(now), units))
}

// fullAt is when the rate has regained all that was taken, and what is offered.
func (b *boundLimit) fullAt(now perdure.Instant) perdure.Instant {
	if b.row.OfferedUnits == 0 || b.row.Offered == 0 {
		return b.row.FullAt
	}
	return b.values.Rate.Take(b.row.FullAt, now, int(b.row.OfferedUnits))
}

// FullLimit gives the first limit of a run that has no room to lease it now, or nil. It is the gate's
// rule.
func FullLimit(tx *kernel.Tx, r *perdure.Run) (*perdure.WaitingAtLimit, error) {
	if r.State != perdure.Queued || r.ForCleanup() {
		return nil, nil
	}
	list, err := limitsOn(tx, r)
	if err != nil {
		return nil, err
	}
	for i := range list {
		if b := &list[i]; !b.hasSlot(tx.Now, b.units) && !plant.Is("limit-not-checked-at-grant") {
			return &perdure.WaitingAtLimit{LimitRef: b.ref, Since: tx.Now,
				ClosedUntil: closedNow(b.closed, tx.Now)}, nil
		}
	}
	return nil, nil
}

// closedNow gives the end of a closure that holds now, or zero.
func closedNow(until, now perdure.Instant) perdure.Instant {
	if until <= now {
		return 0
	}
	return until
}

// SlotsFor gives the limits that count a run once it is leased, and the slots of the step that it was
// suspended for.
func SlotsFor(tx *kernel.Tx, r *perdure.Run) (refs []perdure.LimitRef, steps []perdure.StepSlot, err error) {
	if r.State != perdure.Queued || r.ForCleanup() || r.Resumed && plant.Is("limit-resumed-takes-no-slot") {
		return nil, nil, nil
	}
	if u := r.Options.Limits; u != nil {
		list, err := bindAll(tx, r.Tenant, needs(&perdure.Run{Options: r.Options}))
		if err != nil {
			return nil, nil, err
		}
		for i := range list {
			refs = append(refs, list[i].ref)
		}
	}
	due := r.DueStep()
	if due == nil {
		return refs, nil, nil
	}
	list, err := bindAll(tx, r.Tenant, due.Limits)
	if err != nil {
		return nil, nil, err
	}
	slot := perdure.StepSlot{Step: due.Step}
	for i := range list {
		if !slices.Contains(refs, list[i].ref) {
			slot.Refs = append(slot.Refs, list[i].ref)
		}
	}
	return refs, []perdure.StepSlot{slot}, nil
}

// BlockAt has a claimable run wait at a limit without room, so that no poll reads it.
func BlockAt(tx *kernel.Tx, r *perdure.Run, at perdure.LimitRef) error {
	list, err := limitsOn(tx, r)
	n := slices.IndexFunc(list, func(b boundLimit) bool { return b.ref == at })
	if err != nil || n < 0 {
		return err
	}
	return tx.Apply(r, perdure.LimitReached{At: at, Turn: list[n].turn})
}

// followLimits keeps the counts of limits as a run changes, and places it if it became claimable.
func followLimits(tx *kernel.Tx, before, after *perdure.Run, _ []perdure.Line) error {
	if before.Damage != nil && before.Limited == nil { // its row is written anew, without what it had
		if err := leaveLimits(tx, before); err != nil {
			return err
		}
	}
	if before.Limited != after.Limited {
		was := before
		if plant.Is("limit-step-outlives-epoch") && before.Limited != nil && !after.State.Leased() {
			kept := *before
			kept.Limited = &perdure.Limited{At: before.Limited.At, Refs: before.Limited.Refs,
				OfferedAt: before.Limited.OfferedAt, Held: before.Limited.Held}
			was = &kept
		}
		if err := countPosition(tx, before, was, -1); err != nil {
			return err
		}
		if err := countPosition(tx, before, after, 1); err != nil {
			return err
		}
		if after.HoldsSlots() && before.State == perdure.Queued {
			if err := takeGranted(tx, before, after); err != nil {
				return err
			}
		}
	}
	if !after.Unplaced() {
		return nil
	}
	return place(tx, after)
}

// countPosition counts a run in its position, or no longer. before is the run as it is counted at present.
func countPosition(tx *kernel.Tx, before, r *perdure.Run, by int64) error {
	l := r.Limited
	if l == nil || by < 0 && l.Held && plant.Is("limit-slot-kept") {
		return nil
	}
	count := func(ref perdure.LimitRef, change func(row *store.LimitKeyRow)) error {
		row, err := countsBefore(tx, r.Tenant, ref, before)
		if err != nil {
			return err
		}
		if by > 0 {
			if err := noteBound(tx, &row); err != nil {
				return err
			}
		}
		change(&row)
		row.UsedAt = tx.Now
		tx.DB.LimitKeys.Put(row)
		touchLimit(tx, r.Tenant, ref)
		return nil
	}
	if r.AtLimit() {
		return count(l.At, func(row *store.LimitKeyRow) { row.Waiting += by })
	}
	for i, ref := range l.Refs {
		if err := count(ref, func(row *store.LimitKeyRow) {
			switch {
			case l.Held && by < 0 && plant.Is("limit-slot-back-twice"):
				row.Leased += 2 * by
			case l.Held:
				row.Leased += by
			default:
				countOffer(row, r, i, by)
			}
		}); err != nil {
			return err
		}
	}
	for i := range l.Steps {
		for _, ref := range l.Steps[i].Refs {
			if err := count(ref, func(row *store.LimitKeyRow) { row.Leased += by }); err != nil {
				return err
			}
		}
	}
	return nil
}

// noteBound notes what a limit allows as its counts are raised.
func noteBound(tx *kernel.Tx, row *store.LimitKeyRow) error {
	l, ok, err := limitOf(tx, row.Tenant, row.Name)
	if err == nil && ok {
		values, own := l.Values(), row.Values()
		values.Overlay(&own)
		row.Within(&values)
	}
	return err
}

// countOffer counts a run that is offered at its n-th limit, or no longer. When it goes, its place is not passed
// any more: it was claimed, or somebody else of the place is to be offered the room.
func countOffer(row *store.LimitKeyRow, r *perdure.Run, n int, by int64) {
	if by < 0 {
		row.Passed = without(row.Passed, placeText(r.Queue, r.Kind))
	}
	if r.Limited.OfferedAt > row.OfferedAfter {
		row.Offered = max(0, row.Offered+by)
		row.OfferedUnits = max(0, row.OfferedUnits+by*offeredUnits(r, n))
	}
}

// offeredUnits gives the units with which an offered run was counted at its n-th limit. What its next grant takes may
// be less by now: a run that ends has closed the waits of its steps before.
func offeredUnits(r *perdure.Run, n int) int64 {
	if len(r.Limited.Units) > n {
		return int64(r.Limited.Units[n])
	}
	return unitsAt(r, r.Limited.Refs[n])
}

// unitsAt gives what the next grant of a run takes of the rate of a limit.
func unitsAt(r *perdure.Run, ref perdure.LimitRef) (units int64) {
	for _, t := range needs(r) {
		if t.Name == ref.Limit && (ref.Key == "" || ref.Key == t.Key) {
			units += int64(t.Taken())
		}
	}
	return units
}

// takeGranted takes what a grant takes of rates. before is the run as it was queued.
func takeGranted(tx *kernel.Tx, before, after *perdure.Run) error {
	list, err := limitsOn(tx, before)
	for i := range list {
		b := &list[i]
		if SlotsAt(after, b.ref) == 0 {
			continue // a grant for clean-up takes nothing
		}
		b.take(tx.Now)
		tx.DB.LimitKeys.Put(b.row)
	}
	return err
}

// take takes of the rate.
func (b *boundLimit) take(now perdure.Instant) {
	if b.values.Rate != nil {
		b.row.Within(&b.values)
		b.row.Taken += int64(b.units)
		b.row.FullAt = b.values.Rate.Take(b.row.FullAt, now, b.units)
	}
}

// placeText is how a place that is passed is written.
func placeText(queue, kind string) string { return "\n" + queue + "\x1f" + kind + "\n" }

// without removes a place from those that are passed.
func without(passed, place string) string {
	if passed == "" {
		return ""
	}
	return strings.Replace(passed, place, "", 1)
}

// place offers a run that became claimable, or has it wait.
func place(tx *kernel.Tx, r *perdure.Run) error {
	list, err := limitsOn(tx, r)
	if err != nil || len(list) == 0 {
		return err
	}
	fresh := r.Version <= 1 && r.ContinuationOf == ""
	refs, units := make([]perdure.LimitRef, len(list)), make([]int, len(list))
	var full *boundLimit
	for i := range list {
		b := &list[i]
		if refs[i], units[i] = b.ref, b.units; fresh {
			if err := checkUse(tx, r.Tenant, b); err != nil {
				return err
			}
		}
		// Those who wait go first. If there is room for them, they are offered it when this operation ends.
		behind := b.row.Waiting > 0 && !passes(tx, r, b.ref)
		if full == nil && (behind || !b.hasRoom(tx.Now, b.units)) {
			full = b
		}
	}
	if full != nil {
		return tx.Apply(r, perdure.LimitReached{At: full.ref, Turn: full.turn})
	}
	return tx.Apply(r, perdure.LimitOffered{Refs: refs, Units: units})
}

// passes tells whether a run is just let through at a limit.
func passes(tx *kernel.Tx, r *perdure.Run, ref perdure.LimitRef) bool {
	s := limitsTouched.Has(tx)
	return s != nil && s.passing == r.ID && s.at == ref
}

// maxLimitKeys is the number of keys of a tenant that are in use.
const maxLimitKeys = 100_000

// keyCounts has the number of keys of tenants, as it was some time ago.
var keyCounts = kernel.NewPart(func(*kernel.Engine) *kernel.Cache[perdure.TenantID, int] {
	return &kernel.Cache[perdure.TenantID, int]{TTL: 5 * time.Second}
})

// checkUse refuses a new run that takes more of a rate than it can ever have, or whose key would be one too
// many.
func checkUse(tx *kernel.Tx, t perdure.TenantID, b *boundLimit) error {
	if x := b.values.Rate; x != nil && b.units > x.Count {
		return perdure.Unprocessable("units", "%d is more than the %d that limit %s allows in its time",
			b.units, x.Count, b.ref.Limit)
	}
	return checkKeys(tx, &b.row)
}

// checkKeys refuses a key that nothing has used yet if the tenant has as many as it may.
func checkKeys(tx *kernel.Tx, row *store.LimitKeyRow) error {
	t := row.Tenant
	if row.UsedAt != 0 || row.Version != 0 || row.Key == "" {
		return nil
	}
	n, err := keyCounts.Of(tx.Engine).Load(kernel.LookOf(tx), t, func() (int, error) {
		return tx.DB.LimitKeys.Count(t, false, maxLimitKeys)
	})
	if err == nil && n >= maxLimitKeys {
		err = perdure.Errorf(perdure.CodeQuota, "the tenant uses %d keys of limits, as many as it may", maxLimitKeys)
	}
	return err
}

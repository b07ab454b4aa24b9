package life

import (
	"slices"
	"strings"
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
	// keyed is set if the limit has a count for each key.
	keyed bool
	row   store.LimitKeyRow
}

// limitScratch has the limits whose counts an operation has changed.
type limitScratch struct{ touched []touchedLimit }

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
	if kind, own := rules.KindOfLimit(name); own {
		def, err := rules.KindOf(tx, t, kind)
		if err != nil || def.Concurrency == 0 {
			return l, false, err
		}
		l.Name = name
		l.Spec, err = store.SpecOf(&perdure.LimitValues{Concurrency: def.Concurrency})
		return l, true, err
	}
	l, ok, err = tx.DB.Limits.Get(t, name)
	return l, ok && l.DeletedAt == 0, err
}

// countsOf gives the counts of a key.
func countsOf(tx *kernel.Tx, t perdure.TenantID, ref perdure.LimitRef) (store.LimitKeyRow, error) {
	row, ok, err := tx.DB.LimitKeys.Get(t, ref)
	switch {
	case err != nil:
		return row, err
	case !ok:
		return store.LimitKeyRow{Tenant: t, Name: ref.Limit, Key: ref.Key}, nil
	case !row.Recount:
		return row, nil
	}
	held, err := tx.DB.LimitLines.Held(t, maxRecount)
	if err != nil {
		return row, err
	}
	row.Leased, row.Recount = 0, false
	for i := range held {
		if slices.Contains(held[i].Limited.Refs, ref) {
			row.Leased++
		}
	}
	tx.DB.LimitKeys.Put(row)
	return row, nil
}

// maxRecount bounds the runs that are read to count slots again.
const maxRecount = 20_000

// bind reads a limit with the counts that concern a run. ok is false if there is no such limit.
func bind(tx *kernel.Tx, r *perdure.Run, name string) (b boundLimit, ok bool, err error) {
	l, ok, err := limitOf(tx, r.Tenant, name)
	if err != nil || !ok {
		return b, false, err
	}
	b = boundLimit{ref: perdure.LimitRef{Limit: name}, values: l.Values(), closed: l.ClosedUntil, keyed: l.PerKey}
	if l.PerKey {
		b.ref.Key = r.Options.Limits.Key
	}
	return b, true, b.read(tx, r.Tenant)
}

// read reads the counts.
func (b *boundLimit) read(tx *kernel.Tx, t perdure.TenantID) (err error) {
	b.row, err = countsOf(tx, t, b.ref)
	own := b.row.Values()
	b.values.Overlay(&own)
	b.closed = max(b.closed, b.row.ClosedUntil)
	return err
}

// limitsOn gives the limits that a run is under.
func limitsOn(tx *kernel.Tx, r *perdure.Run) (out []boundLimit, err error) {
	for _, name := range r.Options.Limits.Names {
		b, ok, err := bind(tx, r, name)
		if err != nil {
			return nil, err
		}
		if ok {
			out = append(out, b)
		}
	}
	return out, nil
}

// turnOf gives the key of a run at a limit at which keys take turns.
func (b *boundLimit) turnOf(r *perdure.Run) string {
	if b.keyed {
		return ""
	}
	return r.Options.Limits.Key
}

// hasSlot tells whether one more run may be leased now.
func (b *boundLimit) hasSlot(now perdure.Instant, units int) bool {
	if now < b.closed {
		return false
	}
	if n := b.values.Concurrency; n > 0 && b.row.Leased >= int64(n) {
		return false
	}
	return b.values.Rate == nil || now >= b.values.Rate.At(b.row.FullAt, units) || plant.Is("limit-rate-unchecked")
}

// hasRoom tells whether one more run may be offered now: runs that are offered count as if they were leased.
func (b *boundLimit) hasRoom(now perdure.Instant, units int) bool {
	if n := b.values.Concurrency; n > 0 && b.row.Leased+b.row.Offered >= int64(n) {
		return false
	}
	return b.hasSlot(now, units) && (b.values.Rate == nil || now >= b.values.Rate.At(b.fullAt(now), units))
}

// fullAt is when the rate has regained all that was taken, and what is offered.
func (b *boundLimit) fullAt(now perdure.Instant) perdure.Instant {
	if b.row.OfferedUnits == 0 {
		return b.row.FullAt
	}
	return b.values.Rate.Take(b.row.FullAt, now, int(b.row.OfferedUnits))
}

// FullLimit gives the first limit of a run that has no room to lease it now, or nil. It is the gate's
// rule.
func FullLimit(tx *kernel.Tx, r *perdure.Run) (*perdure.WaitingAtLimit, error) {
	if r.Options.Limits == nil || r.State != perdure.Queued || r.ForCleanup() {
		return nil, nil
	}
	list, err := limitsOn(tx, r)
	if err != nil {
		return nil, err
	}
	for i := range list {
		if b := &list[i]; !b.hasSlot(tx.Now, r.Options.Limits.Taken()) && !plant.Is("limit-not-checked-at-grant") {
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

// SlotsFor gives the limits that count a run once it is leased.
func SlotsFor(tx *kernel.Tx, r *perdure.Run) (refs []perdure.LimitRef, err error) {
	if r.Options.Limits == nil || r.State != perdure.Queued || r.ForCleanup() ||
		r.Resumed && plant.Is("limit-resumed-takes-no-slot") {
		return nil, nil
	}
	list, err := limitsOn(tx, r)
	for i := range list {
		refs = append(refs, list[i].ref)
	}
	return refs, err
}

// BlockAt has a claimable run wait at a limit without room, so that no poll reads it.
func BlockAt(tx *kernel.Tx, r *perdure.Run, at perdure.LimitRef) error {
	b, ok, err := bind(tx, r, at.Limit)
	if err != nil || !ok {
		return err
	}
	return tx.Apply(r, perdure.LimitReached{At: b.ref, Turn: b.turnOf(r)})
}

// followLimits keeps the counts of limits as a run changes, and places it if it became claimable.
func followLimits(tx *kernel.Tx, before, after *perdure.Run, _ []perdure.Line) error {
	if after.Options.Limits == nil {
		return nil
	}
	if before.Limited != after.Limited {
		if err := countPosition(tx, before, -1, false); err != nil {
			return err
		}
		if err := countPosition(tx, after, 1, after.HoldsSlots() && !before.HoldsSlots()); err != nil {
			return err
		}
	}
	if !after.Unplaced() {
		return nil
	}
	return place(tx, after)
}

// countPosition counts a run in its position, or no longer. granted is set if it takes of rates as well.
func countPosition(tx *kernel.Tx, r *perdure.Run, by int64, granted bool) error {
	l := r.Limited
	if l == nil || by < 0 && l.Held && plant.Is("limit-slot-kept") {
		return nil
	}
	refs := l.Refs
	if r.AtLimit() {
		refs = []perdure.LimitRef{l.At}
	}
	units := int64(r.Options.Limits.Taken())
	for _, ref := range refs {
		row, err := countsOf(tx, r.Tenant, ref)
		if err != nil {
			return err
		}
		switch {
		case r.AtLimit():
			row.Waiting += by
		case l.Held:
			row.Leased += by
			if by < 0 && plant.Is("limit-slot-back-twice") {
				row.Leased += by
			}
			if granted {
				row.Passed = without(row.Passed, placeText(r.Queue, r.Kind))
				if err := takeUnits(tx, r, &row); err != nil {
					return err
				}
			}
		case l.OfferedAt > row.OfferedAfter:
			row.Offered, row.OfferedUnits = max(0, row.Offered+by), max(0, row.OfferedUnits+by*units)
		}
		row.UsedAt = tx.Now
		tx.DB.LimitKeys.Put(row)
		touchLimit(tx, r.Tenant, ref)
	}
	return nil
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

// takeUnits takes what a grant takes of a rate.
func takeUnits(tx *kernel.Tx, r *perdure.Run, row *store.LimitKeyRow) error {
	b, ok, err := bind(tx, r, row.Name)
	if err != nil || !ok || b.values.Rate == nil {
		return err
	}
	row.FullAt = b.values.Rate.Take(row.FullAt, tx.Now, r.Options.Limits.Taken())
	return nil
}

// place offers a run that became claimable, or has it wait.
func place(tx *kernel.Tx, r *perdure.Run) error {
	list, err := limitsOn(tx, r)
	if err != nil || len(list) == 0 {
		return err
	}
	fresh := r.Version <= 1 && r.ContinuationOf == ""
	refs := make([]perdure.LimitRef, len(list))
	var full *boundLimit
	for i := range list {
		b := &list[i]
		if refs[i] = b.ref; fresh {
			if err := checkUse(tx, r, b); err != nil {
				return err
			}
		}
		// Those who wait go first. If there is room for them, they are offered it when this operation ends.
		if full == nil && (b.row.Waiting > 0 || !b.hasRoom(tx.Now, r.Options.Limits.Taken())) {
			full = b
		}
	}
	if full != nil {
		return tx.Apply(r, perdure.LimitReached{At: full.ref, Turn: full.turnOf(r)})
	}
	return tx.Apply(r, perdure.LimitOffered{Refs: refs})
}

// maxLimitKeys is the number of keys of a tenant that are in use.
const maxLimitKeys = 100_000

// keyCounts has the number of keys of tenants, as it was some time ago.
var keyCounts = kernel.NewPart(func(*kernel.Engine) *kernel.Cache[perdure.TenantID, int] {
	return &kernel.Cache[perdure.TenantID, int]{TTL: 5 * time.Second}
})

// checkUse refuses a new run that takes more of a rate than it can ever have, or whose key would be one too
// many.
func checkUse(tx *kernel.Tx, r *perdure.Run, b *boundLimit) error {
	if x := b.values.Rate; x != nil && r.Options.Limits.Taken() > x.Count {
		return perdure.Invalid("units", "%d is more than the %d that limit %s allows in its time",
			r.Options.Limits.Taken(), x.Count, b.ref.Limit)
	}
	if b.row.UsedAt != 0 || b.row.Version != 0 || b.ref.Key == "" {
		return nil
	}
	n, err := keyCounts.Of(tx.Engine).Load(kernel.LookOf(tx), r.Tenant, func() (int, error) {
		return tx.DB.LimitKeys.Count(r.Tenant, false, maxLimitKeys)
	})
	if err == nil && n >= maxLimitKeys {
		err = perdure.Errorf(perdure.CodeQuota, "the tenant uses %d keys of limits, as many as it may", maxLimitKeys)
	}
	return err
}

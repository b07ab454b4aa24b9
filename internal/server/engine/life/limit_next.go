package life

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/plant"
	"github.com/perdure/perdure/internal/server/store"
)

// Limits: who is next.
//
// At the end of an operation that has changed the counts of a limit, room is offered to runs that wait
// there: one run for each free slot. A run that is offered is claimable, and counts until it is claimed.
// So no more runs are claimable than there are slots, and polls read none that they may not have.
//
// Nobody may poll for the run that is offered. After a second its place is passed: the run stays
// claimable, and the room is offered to a run of another queue or kind.
//
// A row that runs wait at has an alarm: when its rate allows the next one, when it is opened, when an
// offer has lasted for too long, or when an operation has left something.

const (
	// LimitKeyKept is how long the row of a key is kept that nothing uses.
	LimitKeyKept = time.Hour
	// offerPatience is how long an offer counts.
	offerPatience = time.Second
	// limitLook is how often a limit is looked at that runs wait at.
	limitLook = time.Minute
	// maxOffers bounds the runs that one operation offers at a limit, or moves to another one.
	maxOffers = 16
	// maxAdvances bounds the limits that one operation offers the room of.
	maxAdvances = 64
	// maxPassed bounds the places that are passed.
	maxPassed = 16
	// maxOffersRead bounds the offered runs of a tenant that are read.
	maxOffersRead = 1000
)

// Add adds this wing to an engine: limits follow the changes of runs.
func Add(e *kernel.Engine) {
	e.OnApplied(followLimits)
	e.OnDecided(advanceLimits)
}

// advanceLimits offers the room of the limits whose counts the operation has changed.
func advanceLimits(tx *kernel.Tx) error {
	s := limitsTouched.Has(tx)
	if s == nil {
		return nil
	}
	for n := 0; len(s.touched) > 0; n++ {
		x := s.touched[0]
		s.touched = slices.Clone(s.touched[1:])
		err := tx.Try(func() error { return advance(tx, x, n >= maxAdvances || tx.OverBudget()) })
		var refused *perdure.Error
		if errors.As(err, &refused) && !store.HeldUp(err) {
			tx.Engine.Log.Warn("a limit could not be looked at", "tenant", x.tenant, "limit", x.ref.Limit,
				"error", err)
			err = nil
		}
		if err != nil {
			return err
		}
		// Its own changes are done. Runs that it has moved concern other limits.
		s.touched = slices.DeleteFunc(s.touched, func(y touchedLimit) bool { return x == y })
	}
	return nil
}

// advance offers the room of a limit to runs that wait there, and sets its alarm. later leaves the runs to
// the watchdog.
func advance(tx *kernel.Tx, x touchedLimit, later bool) error {
	t, ref := x.tenant, x.ref
	b := boundLimit{ref: ref}
	l, exists, err := limitOf(tx, t, ref.Limit)
	if err != nil {
		return err
	}
	b.values, b.closed, b.keyed = l.Values(), l.ClosedUntil, l.PerKey
	if err := b.read(tx, t); err != nil {
		return err
	}
	offered, more := 0, later && b.row.Waiting > 0
	var until perdure.Instant // when the rate allows the next run
	for !later && b.row.Waiting > 0 {
		if exists && !b.hasRoom(tx.Now, 1) {
			break
		}
		if offered == maxOffers {
			more = true
			break
		}
		r, ok, err := nextWaiting(tx, t, &b)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		if units := unitsWanted(&r, ref); exists && !b.hasRoom(tx.Now, units) {
			until = b.values.Rate.At(b.fullAt(tx.Now), units)
			break
		}
		offered++
		turn := r.Limited.Turn
		if err := letThrough(tx, &r, ref); err != nil {
			return err
		}
		if err := b.read(tx, t); err != nil {
			return err
		}
		if b.row.Turn != turn {
			b.row.Turn = turn
			tx.DB.LimitKeys.Put(b.row)
		}
	}
	setLimitAlarm(tx, &b, exists, more, until)
	return nil
}

// nextWaiting gives the run that goes next at a limit.
func nextWaiting(tx *kernel.Tx, t perdure.TenantID, b *boundLimit) (r perdure.Run, ok bool, err error) {
	passed := b.row.Passed
	id, ok, err := tx.DB.LimitLines.Next(t, b.ref, b.row.Turn, func(queue, kind string) bool {
		return passed != "" && strings.Contains(passed, placeText(queue, kind))
	})
	if err != nil || !ok {
		return r, false, err
	}
	r, err = tx.Run(t, id)
	return r, err == nil && r.AtLimit() && r.Limited.At == b.ref, err
}

// letThrough offers a run that a limit has room for, unless it has to wait at another one.
func letThrough(tx *kernel.Tx, r *perdure.Run, ref perdure.LimitRef) error {
	if r.State == perdure.Suspended {
		return letStepThrough(tx, r, ref)
	}
	list, err := limitsOn(tx, r)
	if err != nil {
		return err
	}
	refs, units := make([]perdure.LimitRef, len(list)), make([]int, len(list))
	for i := range list {
		b := &list[i]
		if refs[i], units[i] = b.ref, b.units; b.ref != ref && !b.hasRoom(tx.Now, b.units) {
			return tx.Apply(r, perdure.LimitReached{At: b.ref, Turn: b.turn})
		}
	}
	return tx.Apply(r, perdure.LimitOffered{Refs: refs, Units: units})
}

// setLimitAlarm sets when the watchdog looks at a limit.
func setLimitAlarm(tx *kernel.Tx, b *boundLimit, exists, more bool, until perdure.Instant) {
	row, at := b.row, perdure.Instant(0)
	if row.Waiting > 0 {
		at = tx.Now.Add(limitLook)
		if row.AlarmAt > tx.Now {
			at = min(at, row.AlarmAt)
		}
		if row.Offered > 0 {
			at = min(at, tx.Now.Add(offerPatience))
		}
		if exists && b.closed > tx.Now {
			at = min(at, b.closed)
		}
		if rate := b.values.Rate; exists && rate != nil && until == 0 && !b.hasRoom(tx.Now, 1) {
			until = rate.At(b.fullAt(tx.Now), 1)
		}
		if until > tx.Now {
			at = min(at, until)
		}
		if more {
			at = tx.Now
		}
	}
	if at != row.AlarmAt {
		row.AlarmAt = at
		tx.DB.LimitKeys.Put(row)
	}
	tx.WakeAt(at)
}

// RingLimitKey handles the alarm of a key: offers that have lasted for too long don't count any more, and
// the room is offered to others. It tells whether there were such offers.
func RingLimitKey(tx *kernel.Tx, key *store.LimitKeyRow) (passed int, err error) {
	row, err := countsOf(tx, key.Tenant, key.Ref())
	if err != nil || row.AlarmAt == 0 || row.AlarmAt > tx.Now {
		return 0, err
	}
	if plant.Is("limit-alarm-ignored") {
		row.AlarmAt = tx.Now.Add(24 * time.Hour)
		tx.DB.LimitKeys.Put(row)
		return 0, nil
	}
	row.AlarmAt = 0
	if row.Offered > 0 || row.Passed != "" {
		if passed, err = recountOffers(tx, &row); err != nil {
			return 0, err
		}
	}
	tx.DB.LimitKeys.Put(row)
	touchLimit(tx, row.Tenant, row.Ref())
	return passed, nil
}

// recountOffers counts the offers of a key again. Those that have lasted for too long are left out, and
// their places are passed. It gives the number of those that counted before.
func recountOffers(tx *kernel.Tx, row *store.LimitKeyRow) (passed int, err error) {
	list, err := tx.DB.LimitLines.Offered(row.Tenant, maxOffersRead)
	if err != nil {
		return 0, err
	}
	before := row.OfferedAfter
	row.OfferedAfter = max(row.OfferedAfter, tx.Now.Add(-offerPatience))
	row.Offered, row.OfferedUnits, row.Passed = 0, 0, ""
	places := 0
	for i := range list {
		r := &list[i]
		n := slices.Index(r.Limited.Refs, row.Ref())
		switch at := placeText(r.Queue, r.Kind); {
		case n < 0:
		case r.Limited.OfferedAt > row.OfferedAfter:
			row.Offered++
			row.OfferedUnits += offeredUnits(r, n)
		default:
			if r.Limited.OfferedAt > before {
				passed++
			}
			if !strings.Contains(row.Passed, at) && places < maxPassed {
				row.Passed, places = row.Passed+at, places+1
			}
		}
	}
	return passed, nil
}

// limitStep is how many keys of a changed limit are looked at in one step.
const limitStep = 32

// RingLimit handles the alarm of a limit that has changed: some of its keys are looked at again. A deleted
// limit goes when nothing waits at it.
func RingLimit(tx *kernel.Tx, limit *store.LimitRow) error {
	l, ok, err := tx.DB.Limits.Get(limit.Tenant, limit.Name)
	if err != nil || !ok || l.AlarmAt == 0 || l.AlarmAt > tx.Now {
		return err
	}
	first, err := tx.DB.LimitKeys.HasWaiting(l.Tenant, l.Name)
	if err != nil {
		return err
	}
	if first && l.SweptTo == "" {
		touchLimit(tx, l.Tenant, perdure.LimitRef{Limit: l.Name})
	}
	keys, err := tx.DB.LimitKeys.Waiting(l.Tenant, l.Name, l.SweptTo, limitStep)
	if err != nil {
		return err
	}
	for _, key := range keys {
		touchLimit(tx, l.Tenant, perdure.LimitRef{Limit: l.Name, Key: key})
	}
	l.AlarmAt = 0
	switch {
	case len(keys) > 0:
		l.SweptTo, l.AlarmAt = keys[len(keys)-1], tx.Now
	case l.DeletedAt != 0 && (first || l.SweptTo != ""):
		l.SweptTo, l.AlarmAt = "", tx.Now.Add(offerPatience) // look again whether something waits
	case l.DeletedAt != 0:
		tx.DB.Limits.Drop(&l)
		return nil
	default:
		l.SweptTo = ""
	}
	tx.DB.Limits.Put(l)
	tx.WakeAt(l.AlarmAt)
	return nil
}

// PutOffLimitKey moves the alarm of a key that could not be handled.
func PutOffLimitKey(tx *kernel.Tx, key *store.LimitKeyRow, until perdure.Instant) error {
	row, ok, err := tx.DB.LimitKeys.Get(key.Tenant, key.Ref())
	if err != nil || !ok || row.AlarmAt == 0 {
		return err
	}
	row.AlarmAt = until
	tx.DB.LimitKeys.Put(row)
	return nil
}

package store

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/perdure/perdure"
)

// The invariant of limits. The limits of a run are in a column that SQL doesn't read, so it is checked here.

// P20 is the invariant of limits.
var P20 = Invariant{ID: "P20", Statement: "a limit counts the runs that hold its slots and those that wait there, " +
	"and none waits without an alarm or where there is room"}

type limitTally struct{ leased, waiting int64 }

// checkLimits compares the counts of limits with the runs. It gives errEnough when the time is over.
func (v *View) checkLimits(over func() bool) (out []Violation, err error) {
	tallies := make(map[limitKeyKey]*limitTally)
	at := func(t perdure.TenantID, ref perdure.LimitRef) *limitTally {
		k := limitKeyKey{t, ref.Limit, ref.Key}
		if tallies[k] == nil {
			tallies[k] = &limitTally{}
		}
		return tallies[k]
	}
	n := 0
	err = runTable.query(v.sess, "WHERE limited_at<>''", nil, func(r *perdure.Run) error {
		switch {
		case r.Limited == nil: // damaged
		case r.AtLimit():
			at(r.Tenant, r.Limited.At).waiting++
		default:
			if r.Limited.Held {
				for _, ref := range r.Limited.Refs {
					at(r.Tenant, ref).leased++
				}
			}
			for i := range r.Limited.Steps {
				for _, ref := range r.Limited.Steps[i].Refs {
					at(r.Tenant, ref).leased++
				}
			}
		}
		if n++; n%1024 == 0 && over() {
			return errEnough
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	limits := make(map[limitKey]LimitRow)
	err = limitTable.query(v.sess, "WHERE deleted_at=0", nil, func(l *LimitRow) error {
		limits[limitKey{l.Tenant, l.Name}] = *l
		return nil
	})
	if err != nil {
		return nil, err
	}
	add := func(k limitKeyKey, what string, args ...any) {
		out = append(out, Violation{P20, fmt.Sprintf("%s %s: ", k.name, k.key) + fmt.Sprintf(what, args...)})
	}
	err = limitKeyTable.query(v.sess, "WHERE tenant<>''", nil, func(row *LimitKeyRow) error {
		k := limitKeyKey{row.Tenant, row.Name, row.Key}
		got := tallies[k]
		if delete(tallies, k); got == nil {
			got = &limitTally{}
		}
		l, exists := limits[limitKey{row.Tenant, row.Name}]
		switch {
		case row.Leased != got.leased && !row.Recount || row.Waiting != got.waiting:
			add(k, "counts %d leased and %d waiting, and there are %d and %d", row.Leased, row.Waiting, got.leased,
				got.waiting)
		case row.Waiting > 0 && row.AlarmAt == 0:
			add(k, "%d runs wait, and nothing will look at them", row.Waiting)
		case exists && row.Waiting > 0 && row.hasRoom(&l, v.Now):
			add(k, "%d runs wait beside free room: %d leased, %d offered", row.Waiting, row.Leased, row.Offered)
		}
		if len(out) >= maxPerInvariant {
			return errEnough
		}
		return nil
	})
	for k := range tallies {
		add(k, "has no counts, and there are %d leased and %d waiting", tallies[k].leased, tallies[k].waiting)
	}
	slices.SortFunc(out, func(a, b Violation) int { return strings.Compare(a.Row, b.Row) })
	if errors.Is(err, errEnough) && len(out) > 0 {
		err = nil
	}
	return out, err
}

// hasRoom tells whether any run could go on that nobody was offered room for, and nothing else keeps runs back. A key
// whose alarm has rung is looked at soon.
func (k *LimitKeyRow) hasRoom(l *LimitRow, now perdure.Instant) bool {
	v, own := l.Values(), k.Values()
	v.Overlay(&own)
	switch {
	case k.AlarmAt <= now || l.AlarmAt != 0 || k.Recount || k.Passed != "":
		return false
	case max(l.ClosedUntil, k.ClosedUntil) > now:
		return false
	case v.Rate != nil && (k.Offered > 0 || now < v.Rate.At(k.FullAt, mostUnits*v.Rate.Count)):
		return false
	}
	return v.Concurrency == 0 || k.Leased+k.Offered < int64(v.Concurrency)
}

// mostUnits is how many times the count of a rate a run may take at most: for itself and for a step.
const mostUnits = 2

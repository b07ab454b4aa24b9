package store

import (
	"testing"
	"time"

	"github.com/perdure/perdure"
)

// On PostgreSQL counts with much room are changed by differences: another writer's change in between is kept, and
// the batch is decided again if that change matters to what it has decided.
func TestCountsWithRoomAreChangedByDifferences(t *testing.T) {
	const clock = "(extract(epoch FROM clock_timestamp())*1000000)::bigint"
	s := open(t, Options{URL: pool.New(t)})
	room, rate := perdure.LimitValues{Concurrency: 100}, perdure.LimitValues{Rate: &perdure.LimitRate{Count: 600,
		Per: perdure.Duration(time.Minute), Burst: 100}}
	for _, x := range []struct {
		name      string
		values    perdure.LimitValues
		by        int64  // how many slots are taken
		meanwhile string // what another writer changes, after the decision and before the write
		decided   int
		refused   bool
		leased    int64
	}{
		{name: "alone", values: room, by: 1, decided: 1, leased: 11},
		{"others take slots", room, 1, "leased=leased+5, version=version+1", 1, false, 16},
		{"others offer slots", room, 1, "offered=60, version=version+1", 1, false, 11},
		{"others take all", room, 1, "leased=100, version=version+1", 2, true, 100},
		{"others are offered all but a few", room, 5, "offered=87, version=version+1", 3, false, 15},
		{"a slot is given back, and others take all", room, -1, "leased=100, version=version+1", 1, false, 99},
		{"somebody waits", room, 1, "waiting=1, alarm_at=5, version=version+1", 3, false, 11},
		{"an alarm is set", room, -1, "alarm_at=5, version=version+1", 3, false, 9},
		{"a place is passed", room, 1, "passed='x', version=version+1", 3, false, 11},
		{"offers are counted anew", room, 1, "offered_after=5, version=version+1", 2, false, 11},
		{"slots are to be counted", room, 1, "recount=1, version=version+1", 3, false, 11},
		{"the key gets values", room, 1, `spec='{"concurrency":50}', version=version+1`, 2, false, 11},
		{"the key is closed", room, 1, "closed_until=" + clock + "+60000000, version=version+1", 2, true, 10},
		{"few slots are left", perdure.LimitValues{Concurrency: 12}, 1, "leased=leased+1, version=version+1", 3, false,
			12},
		{"others take of the rate", rate, 1, "full_at=" + clock + "+5000000, version=version+1", 1, false, 11},
		{"others take all of the rate", rate, 1, "full_at=" + clock + "+20000000, version=version+1", 2, true, 10},
		{"others offer all of the rate", rate, 1, "offered=1, offered_units=100, version=version+1", 2, true, 10},
	} {
		execDirect(t, s, "DELETE FROM limit_keys")
		at := perdure.LimitRef{Limit: "model"}
		put := func(f func(tx *Tx, k *LimitKeyRow) error) error {
			return s.Do(t.Context(), opFunc(func(tx *Tx) error {
				k, _, err := tx.LimitKeys.Get(tenant, at)
				if err == nil {
					err = f(tx, &k)
				}
				if err == nil {
					tx.LimitKeys.Put(k)
				}
				return err
			}))
		}
		if err := put(func(_ *Tx, k *LimitKeyRow) error {
			k.Tenant, k.Name, k.Leased = tenant, at.Limit, 10
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		for _, l := range s.lanes {
			l.alone = 0
		}
		done, decided := false, 0
		err := put(func(tx *Tx, k *LimitKeyRow) error {
			decided++
			v := x.values
			full := v.Concurrency > 0 && k.Leased+x.by > int64(v.Concurrency) || tx.Now < k.ClosedUntil
			if v.Rate != nil {
				full = full || tx.Now < v.Rate.At(v.Rate.Take(k.FullAt, tx.Now, int(k.OfferedUnits)), 1)
			}
			if x.by > 0 && full {
				return perdure.Invalid("x", "has no room")
			}
			if x.by > 0 {
				k.Within(&x.values)
			}
			if k.Leased += x.by; x.values.Rate != nil {
				k.Taken++
				k.FullAt = x.values.Rate.Take(k.FullAt, tx.Now, 1)
			}
			// The other writer comes once the batch needs no further turn.
			if x.meanwhile != "" && !done && (tx.alone || k.relativeAfterPut(tx)) {
				done = true
				if _, err := s.lanes[LaneBulk].write.Exec("UPDATE limit_keys SET "+x.meanwhile, nil); err != nil {
					t.Fatalf("%s: %v", x.name, err)
				}
			}
			return nil
		})
		var leased int64
		read := func(scan func(...any) error) error { return scan(&leased) }
		if err := s.lanes[LaneBulk].write.Query("SELECT leased FROM limit_keys", nil, read); err != nil {
			t.Fatal(err)
		}
		if decided != x.decided || (err != nil) != x.refused || leased != x.leased {
			t.Errorf("%s: decided %d times, refused: %v, %d leased; want %d, refused: %t, %d", x.name, decided, err,
				leased, x.decided, x.refused, x.leased)
		}
	}
}

// relativeAfterPut tells whether the row would be written as a difference if it were put now.
func (k *LimitKeyRow) relativeAfterPut(tx *Tx) bool {
	after := *k
	after.raised(k.was)
	return after.relative(tx.Now)
}

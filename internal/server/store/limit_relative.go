package store

import (
	"math"
	"strings"
	"time"

	"github.com/perdure/perdure"
)

// Counts that are changed by differences.
//
// All grants and ends under a limit change one row. With its version as the guard, only one lane of one node at a
// time could decide about a limit. On PostgreSQL a batch therefore writes differences where a limit has much room:
// leased + 20, offered - 20. The statement itself checks, on the row as it is by then, that
//
//   - nobody waits at the limit, and nothing but the counts has changed since it was read,
//   - leased and offered stay within the concurrency at the highest point that the batch has reached,
//   - the rate has what the batch takes and offers.
//
// Then each decision of the batch, made on the row as it was read, is right for the row as it is written. If the
// check fails the batch is decided again. The statement comes behind all other rows of its transaction, because
// it locks a row that other lanes want as well. It raises the version, so that batches that write the whole row
// conflict with it.
//
// Such a batch shares the turn (Tx.takeTurn) with others of its kind. One that writes whole rows of limits has
// the turn alone: it was decided without, found that a row has to be written whole, and is decided again.

// much is the part of a bound, in eighths, up to which counts are changed by differences.
const much = 7

// Within notes what the limit allowed as its counts were raised, or something was taken of its rate.
func (k *LimitKeyRow) Within(v *perdure.LimitValues) {
	b := limitBound{known: true, most: math.MaxInt32}
	if v.Concurrency > 0 {
		b.most = int64(v.Concurrency)
	}
	if v.Rate != nil {
		b.every, b.burst = v.Rate.Every(), int64(max(1, v.Rate.Burst))
	}
	if was := k.within; was.known {
		b.mixed = was.mixed || was.every != b.every || was.burst != b.burst
		b.most = min(b.most, was.most)
	}
	k.within = b
}

// relative tells whether the row can be written as a difference: nothing but counts has changed, and there is much
// room.
func (k *LimitKeyRow) relative(now perdure.Instant) bool {
	w := k.was
	switch {
	case w == nil || !w.countsAlone() || !k.countsAlone():
		return false
	case k.Spec != w.Spec || k.OfferedAfter != w.OfferedAfter || k.Turn != w.Turn ||
		k.ClosedUntil != w.ClosedUntil || k.CloseReason != w.CloseReason:
		return false
	case k.peak == 0 && k.Taken == 0 && k.lent == 0:
		return k.FullAt == w.FullAt
	case !k.within.known || k.within.mixed || 8*k.peak > much*k.within.most:
		return false
	case k.within.every == 0:
		return k.FullAt == w.FullAt
	}
	took := time.Duration(k.Taken) * k.within.every
	if k.Taken > 0 && k.FullAt != max(w.FullAt, now).Add(took) || k.Taken == 0 && k.FullAt != w.FullAt {
		return false
	}
	used := max(0, w.FullAt.Sub(now)) + time.Duration(w.OfferedUnits+k.Taken+k.lent)*k.within.every
	return 8*used <= much*time.Duration(k.within.burst)*k.within.every
}

// countsAlone tells whether nobody waits and nothing is to be done about the row later.
func (k *LimitKeyRow) countsAlone() bool {
	return k.Waiting == 0 && k.AlarmAt == 0 && k.Passed == "" && !k.Recount
}

// relativeColumns are those of the differences. The first ones are the key.
var relativeColumns = []string{"tenant", "name", "key", "leased", "offered", "offered_units", "rise", "most", "took",
	"need", "every", "burst", "now", "used_at", "spec", "offered_after", "closed_until"}

// difference gives the values of relativeColumns.
func (k *LimitKeyRow) difference(now perdure.Instant) []any {
	w, b := k.was, k.within
	rise := max(0, k.peak-w.Leased-w.Offered)
	if rise == 0 {
		b.most = math.MaxInt32
	}
	micro := func(n int64) int64 { return (time.Duration(n) * b.every).Microseconds() }
	return []any{string(k.Tenant), k.Name, k.Key, k.Leased - w.Leased, k.Offered - w.Offered,
		k.OfferedUnits - w.OfferedUnits, rise, b.most, micro(k.Taken), micro(k.Taken + k.lent), b.every.Microseconds(),
		micro(b.burst), int64(now), int64(k.UsedAt), k.Spec, int64(k.OfferedAfter), int64(k.ClosedUntil)}
}

// relativeText is the UPDATE without its rows.
const relativeText = ") UPDATE limit_keys SET leased=limit_keys.leased+input.leased, " +
	"offered=GREATEST(limit_keys.offered+input.offered,0), " +
	"offered_units=GREATEST(limit_keys.offered_units+input.offered_units,0), " +
	"full_at=CASE WHEN input.took=0 THEN limit_keys.full_at " +
	"ELSE GREATEST(limit_keys.full_at,input.now)+input.took END, " +
	"used_at=GREATEST(limit_keys.used_at,input.used_at), version=limit_keys.version+1 " +
	"FROM input WHERE limit_keys.tenant=input.tenant AND limit_keys.name=input.name AND limit_keys.key=input.key " +
	"AND limit_keys.waiting=0 AND limit_keys.alarm_at IS NULL AND limit_keys.passed='' AND limit_keys.recount=0 " +
	"AND limit_keys.spec=input.spec AND limit_keys.offered_after=input.offered_after " +
	"AND limit_keys.closed_until=input.closed_until " +
	"AND limit_keys.leased+limit_keys.offered+input.rise<=input.most " +
	"AND (input.need=0 OR GREATEST(limit_keys.full_at-input.now,0)+limit_keys.offered_units*input.every+input.need" +
	"<=input.burst)"

// alone tells whether the rows that the batch changes have to be written while no other lane changes counts. New rows
// seldom conflict.
func (repo *LimitKeys) alone() bool {
	for _, k := range repo.rows.dirty {
		if r := repo.rows.byKey[k]; r.exists && r.stored && !r.val.relative(repo.in.Now) {
			return true
		}
	}
	return false
}

// pending is the number of rows to write.
func (repo *LimitKeys) pending() int { return len(repo.rows.dirty) }

// statements gives the statements that write the rows, differences where that is possible.
func (repo *LimitKeys) statements(d *dialect) []statement {
	if d.ownClock {
		return rowStatements(&repo.rows, d)
	}
	var changes [][]any
	whole := staged[limitKeyKey, LimitKeyRow]{in: repo.rows.in, table: repo.rows.table, byKey: repo.rows.byKey}
	for _, k := range repo.rows.dirty {
		if r := repo.rows.byKey[k]; r.exists && r.val.relative(repo.in.Now) {
			changes = append(changes, r.val.difference(repo.in.Now))
		} else {
			whole.dirty = append(whole.dirty, k)
		}
	}
	list := rowStatements(&whole, d)
	if len(changes) == 0 {
		return list
	}
	limitKeyTable.sql.sort(changes)
	for part := range d.parts(changes) {
		list = append(list, statement{"WITH input(" + strings.Join(relativeColumns, ",") + ") AS (" + d.rows(part) +
			relativeText, d.args(part), int64(len(part))})
	}
	return list
}

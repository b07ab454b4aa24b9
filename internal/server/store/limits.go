package store

import (
	"encoding/json"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure"
)

// A LimitRow is a limit as it is stored.
type LimitRow struct {
	Tenant      perdure.TenantID
	Name        string
	Spec        string // its values; see Values
	PerKey      bool
	Description string

	CreatedAt perdure.Instant
	ChangedAt perdure.Instant
	DeletedAt perdure.Instant

	// ClosedUntil closes all keys of the limit.
	ClosedUntil perdure.Instant
	CloseReason string

	// AlarmAt is set while the keys behind SweptTo are to be looked at again.
	AlarmAt perdure.Instant
	SweptTo string
	Version int64
}

// A LimitKeyRow has the counts of a limit, or of one of its keys.
type LimitKeyRow struct {
	Tenant perdure.TenantID
	Name   string
	Key    string
	// Spec has values that replace those of the limit; see Values.
	Spec string

	// Leased, Waiting and Offered count runs by their positions. OfferedUnits is what the offered ones
	// would take of the rate. Those that were offered up to OfferedAfter don't count any more: nobody has
	// claimed them in time.
	Leased, Waiting, Offered, OfferedUnits int64
	OfferedAfter                           perdure.Instant
	// Passed has the places of runs that nobody has claimed in time, each between line breaks.
	Passed string
	// Turn is the key of runs that had its turn last, at a limit without keys of its own.
	Turn string
	// FullAt is when the rate has regained all that was taken.
	FullAt perdure.Instant

	ClosedUntil perdure.Instant
	CloseReason string

	// Recount is set if Leased has to be counted again before it is used.
	Recount bool
	UsedAt  perdure.Instant
	AlarmAt perdure.Instant
	Version int64

	// Taken is what the batch has taken of the rate. The fields from here on are not stored, see
	// limit_relative.go.
	Taken      int64
	peak, lent int64
	within     limitBound
	was        *LimitKeyRow
}

// A limitBound is what counts were raised within.
type limitBound struct {
	known bool
	// mixed is set if the rate has changed in the middle of the batch.
	mixed bool
	most  int64         // leased and offered together
	every time.Duration // for each unit of the rate. Zero: there is no rate
	burst int64
}

// raised notes how high the counts have come, given the row before the change.
func (k *LimitKeyRow) raised(before *LimitKeyRow) {
	if sum := k.Leased + k.Offered; sum > before.Leased+before.Offered {
		k.peak = max(k.peak, sum)
	}
	k.lent += max(0, k.OfferedUnits-before.OfferedUnits)
}

// Ref names the limit and its key.
func (k *LimitKeyRow) Ref() perdure.LimitRef { return perdure.LimitRef{Limit: k.Name, Key: k.Key} }

// Values gives what the limit allows. A text that can't be read means no limit.
func (l *LimitRow) Values() perdure.LimitValues { return readValues(l.Spec) }

// Values gives what the key allows instead of the limit.
func (k *LimitKeyRow) Values() perdure.LimitValues { return readValues(k.Spec) }

// lastValues are the values of the text that was read last. Every grant and every end of a run asks for them.
var lastValues atomic.Pointer[struct {
	spec string
	perdure.LimitValues
}]

func readValues(spec string) (v perdure.LimitValues) {
	if spec == "" {
		return v
	}
	last := lastValues.Load()
	if last == nil || last.spec != spec {
		last = &struct {
			spec string
			perdure.LimitValues
		}{spec: spec}
		if json.Unmarshal([]byte(spec), &last.LimitValues) != nil || last.Validate() != nil {
			last.LimitValues = perdure.LimitValues{}
		}
		lastValues.Store(last)
	}
	return last.LimitValues
}

// SpecOf gives the text of values. It is empty for none.
func SpecOf(v *perdure.LimitValues) (string, error) {
	if *v == (perdure.LimitValues{}) {
		return "", nil
	}
	b, err := json.Marshal(v)
	return string(b), err
}

var limitTable = register(&table[LimitRow]{
	name: "limits", versioned: true, version: func(l *LimitRow) *int64 { return &l.Version },
	keys: []string{"tenant", "name"},
	columns: func(c *columns, l *LimitRow) {
		text(c, "tenant", &l.Tenant)
		text(c, "name", &l.Name)
		text(c, "spec", &l.Spec)
		flag(c, "per_key", &l.PerKey)
		text(c, "description", &l.Description)
		number(c, "created_at", &l.CreatedAt)
		number(c, "changed_at", &l.ChangedAt)
		number(c, "deleted_at", &l.DeletedAt)
		number(c, "closed_until", &l.ClosedUntil)
		text(c, "close_reason", &l.CloseReason)
		optional(c, "alarm_at", &l.AlarmAt)
		text(c, "swept_to", &l.SweptTo)
		number(c, "version", &l.Version)
	},
})

var limitKeyTable = register(&table[LimitKeyRow]{
	name: "limit_keys", versioned: true, version: func(k *LimitKeyRow) *int64 { return &k.Version },
	keys: []string{"tenant", "name", "key"},
	columns: func(c *columns, k *LimitKeyRow) {
		text(c, "tenant", &k.Tenant)
		text(c, "name", &k.Name)
		text(c, "key", &k.Key)
		text(c, "spec", &k.Spec)
		number(c, "leased", &k.Leased)
		number(c, "waiting", &k.Waiting)
		number(c, "offered", &k.Offered)
		number(c, "offered_units", &k.OfferedUnits)
		number(c, "offered_after", &k.OfferedAfter)
		text(c, "passed", &k.Passed)
		text(c, "turn", &k.Turn)
		number(c, "full_at", &k.FullAt)
		number(c, "closed_until", &k.ClosedUntil)
		text(c, "close_reason", &k.CloseReason)
		flag(c, "recount", &k.Recount)
		number(c, "used_at", &k.UsedAt)
		optional(c, "alarm_at", &k.AlarmAt)
		number(c, "version", &k.Version)
	},
})

type limitKey struct {
	t    perdure.TenantID
	name string
}

type limitKeyKey struct {
	t         perdure.TenantID
	name, key string
}

// Limits holds the limits of tenants.
type Limits struct {
	in   *base
	rows staged[limitKey, LimitRow]
}

func (repo *Limits) open(in *base) {
	repo.in = in
	openRows(&repo.rows, in, limitTable)
}

// Get gives a limit, also one that was deleted.
func (repo *Limits) Get(t perdure.TenantID, name string) (LimitRow, bool, error) {
	return loadRow(&repo.rows, limitKey{t, name}, "WHERE tenant=? AND name=?", string(t), name)
}

// Missing gives those of some names that no limit of a tenant has.
func (repo *Limits) Missing(t perdure.TenantID, names []string) (missing []string, err error) {
	for _, name := range names {
		l, ok, err := repo.Get(t, name)
		if err != nil {
			return nil, err
		}
		if !ok || l.DeletedAt != 0 {
			missing = append(missing, name)
		}
	}
	return missing, nil
}

// Put stages a limit. Its version is incremented when the batch is written.
func (repo *Limits) Put(l LimitRow) {
	repo.in.s.limited.Store(true)
	putRow(&repo.rows, limitKey{l.Tenant, l.Name}, l)
}

// Page lists a tenant's limits by name.
func (repo *Limits) Page(t perdure.TenantID, p Page) ([]LimitRow, string, error) {
	return paged(p, func(after string, n int, row func(*LimitRow) error) error {
		return limitTable.query(repo.in.sess, "WHERE tenant=? AND name>? AND deleted_at=0 ORDER BY name"+atMost,
			[]any{string(t), after, int64(n)}, row)
	}, func(l *LimitRow) string { return l.Name }, func(l *LimitRow) int { return 512 + quoted(l.Description) })
}

// Count counts a tenant's limits up to a number, with those of the batch and those that are deleted.
func (repo *Limits) Count(t perdure.TenantID, most int) (n int, err error) {
	err = repo.in.sess.Query("SELECT count(*) FROM (SELECT 1 FROM limits WHERE tenant=?"+atMost+") AS counted",
		[]any{string(t), int64(most)}, func(scan func(...any) error) error { return scan(&n) })
	for _, k := range repo.rows.dirty {
		if r := repo.rows.byKey[k]; k.t == t && !r.stored && r.exists {
			n++
		}
	}
	return n, err
}

// Ringing gives limits whose alarm has passed.
func (repo *Limits) Ringing(limit int) (out []LimitRow, err error) {
	err = limitTable.query(repo.in.sess, "WHERE alarm_at IS NOT NULL AND alarm_at<=? ORDER BY alarm_at, tenant, name"+
		atMost, []any{int64(repo.in.Now), int64(limit)}, func(l *LimitRow) error {
		k := limitKey{l.Tenant, l.Name}
		absorbRow(&repo.rows, k, *l, true)
		if cur, ok, _ := getRow(&repo.rows, k); ok && cur.AlarmAt != 0 && cur.AlarmAt <= repo.in.Now {
			out = append(out, cur)
		}
		return nil
	})
	return out, err
}

// Drop stages the removal of a deleted limit, provided that nobody has changed it.
func (repo *Limits) Drop(l *LimitRow) {
	dropRow(&repo.rows, limitKey{l.Tenant, l.Name})
	repo.in.tx.Stage("DELETE FROM limits WHERE tenant=? AND name=? AND version=? AND deleted_at>0",
		string(l.Tenant), l.Name, l.Version)
}

// LimitKeys holds the counts of limits.
type LimitKeys struct {
	in   *base
	rows staged[limitKeyKey, LimitKeyRow]
}

// open does not register the rows: Tx.statements writes them last.
func (repo *LimitKeys) open(in *base) {
	repo.in = in
	repo.rows.in, repo.rows.table = in, limitKeyTable
}

// Get gives the counts of a key.
func (repo *LimitKeys) Get(t perdure.TenantID, ref perdure.LimitRef) (LimitKeyRow, bool, error) {
	repo.in.tx.takeTurn()
	k := limitKeyKey{t, ref.Limit, ref.Key}
	v, ok, err := loadRow(&repo.rows, k, "WHERE tenant=? AND name=? AND key=?", string(t), ref.Limit, ref.Key)
	if r := repo.rows.byKey[k]; ok && r.stored && !r.dirty && r.val.was == nil {
		was := v
		v.was, r.val.was = &was, &was
	}
	return v, ok, err
}

// Put stages the counts of a key. Their version is incremented when the batch is written.
func (repo *LimitKeys) Put(k LimitKeyRow) {
	repo.in.s.limited.Store(true)
	key := limitKeyKey{k.Tenant, k.Name, k.Key}
	if r := repo.rows.byKey[key]; r != nil {
		k.raised(&r.val)
	}
	putRow(&repo.rows, key, k)
}

// Recount has the slots of all keys of a tenant counted again, because a run is gone that may have held some.
func (repo *LimitKeys) Recount(t perdure.TenantID) {
	repo.in.tx.Stage("UPDATE limit_keys SET recount=1, alarm_at=?, version=version+1 WHERE tenant=? AND leased>0",
		int64(repo.in.Now), string(t))
}

// Waiting gives keys of a limit behind one that runs wait at, as they are committed.
func (repo *LimitKeys) Waiting(t perdure.TenantID, name, after string, limit int) (keys []string, err error) {
	err = repo.in.sess.Query("SELECT key FROM limit_keys WHERE tenant=? AND name=? AND waiting>0 AND key>? "+
		"ORDER BY key"+atMost, []any{string(t), name, after, int64(limit)}, func(scan func(...any) error) error {
		keys = append(keys, "")
		return scan(&keys[len(keys)-1])
	})
	return keys, err
}

// HasWaiting tells whether runs wait at the empty key of a limit.
func (repo *LimitKeys) HasWaiting(t perdure.TenantID, name string) (bool, error) {
	k, ok, err := repo.Get(t, perdure.LimitRef{Limit: name})
	return ok && k.Waiting > 0, err
}

// Page lists the keys of a limit that are in use, closed, or have values of their own.
func (repo *LimitKeys) Page(t perdure.TenantID, name string, p Page) ([]LimitKeyRow, string, error) {
	return paged(p, func(after string, n int, row func(*LimitKeyRow) error) error {
		from, args := "", []any{string(t), name}
		if after != "" {
			from, args = " AND key>?", append(args, after[1:])
		}
		return limitKeyTable.query(repo.in.sess, "WHERE tenant=? AND name=?"+from+" ORDER BY key"+atMost,
			append(args, int64(n)), row)
	}, func(k *LimitKeyRow) string { return "k" + k.Key }, func(k *LimitKeyRow) int { return 512 + quoted(k.Key) })
}

// A LimitTotal sums up the keys of a limit.
type LimitTotal struct {
	Keys, Leased, Waiting, Offered int64
	// AtLeast is set if the limit has more keys than were read.
	AtLeast bool
}

// maxTotalKeys bounds the keys of a limit that a total reads.
const maxTotalKeys = 2000

// Total sums up the keys of a limit.
func (repo *LimitKeys) Total(t perdure.TenantID, name string) (sum LimitTotal, err error) {
	// On PostgreSQL a sum of integers of 64 bits is a NUMERIC.
	err = repo.in.sess.Query("SELECT count(*), CAST(coalesce(sum(leased),0) AS BIGINT), "+
		"CAST(coalesce(sum(waiting),0) AS BIGINT), CAST(coalesce(sum(offered),0) AS BIGINT) "+
		"FROM (SELECT leased, waiting, offered FROM limit_keys WHERE tenant=? AND name=?"+
		atMost+") AS counted", []any{string(t), name, int64(maxTotalKeys)}, func(scan func(...any) error) error {
		return scan(&sum.Keys, &sum.Leased, &sum.Waiting, &sum.Offered)
	})
	sum.AtLeast = sum.Keys >= maxTotalKeys
	return sum, err
}

// Count counts a tenant's keys up to a number, and those with values of their own if own is set.
func (repo *LimitKeys) Count(t perdure.TenantID, own bool, most int) (n int, err error) {
	where := ""
	if own {
		where = " AND spec<>''"
	}
	err = repo.in.sess.Query("SELECT count(*) FROM (SELECT 1 FROM limit_keys WHERE tenant=?"+where+atMost+
		") AS counted",
		[]any{string(t), int64(most)}, func(scan func(...any) error) error { return scan(&n) })
	return n, err
}

// Ringing gives keys whose alarm has passed. If there are more than the limit, it gives some of each
// tenant.
func (repo *LimitKeys) Ringing(after perdure.TenantID, limit int) ([]LimitKeyRow, error) {
	out, err := repo.ringing("", nil, limit)
	if err != nil || len(out) < limit {
		return out, err
	}
	due, err := repo.in.tx.dueTenants("limit_keys", after)
	if err != nil || len(due) < 2 {
		return out, err
	}
	out = nil
	for _, t := range due[:min(len(due), limit)] {
		part, err := repo.ringing("tenant=? AND ", []any{string(t)}, max(1, limit/len(due)))
		if err != nil {
			return nil, err
		}
		out = append(out, part...)
	}
	return out, nil
}

// ringing reads keys whose alarm has passed, restricted by a condition.
func (repo *LimitKeys) ringing(where string, args []any, limit int) (out []LimitKeyRow, err error) {
	err = limitKeyTable.query(repo.in.sess, "WHERE "+where+"alarm_at IS NOT NULL AND alarm_at<=? "+
		"ORDER BY alarm_at, tenant, name, key"+atMost, append(args, int64(repo.in.Now), int64(limit)),
		func(v *LimitKeyRow) error {
			k := limitKeyKey{v.Tenant, v.Name, v.Key}
			absorbRow(&repo.rows, k, *v, true)
			if cur, ok, _ := getRow(&repo.rows, k); ok && cur.AlarmAt != 0 && cur.AlarmAt <= repo.in.Now {
				out = append(out, cur)
			}
			return nil
		})
	return out, err
}

// DropUnused stages the removal of at most limit keys that count nothing, have no values of their own,
// and were not used since an instant. It gives their number.
func (repo *LimitKeys) DropUnused(before perdure.Instant, limit int) (n int, err error) {
	const unused = "leased=0 AND waiting=0 AND offered=0 AND spec='' AND used_at<?"
	err = repo.in.sess.Query("SELECT tenant, name, key, version FROM limit_keys WHERE "+unused+" AND full_at<? "+
		"AND closed_until<? ORDER BY used_at"+atMost,
		[]any{int64(before), int64(before), int64(before), int64(limit)}, func(scan func(...any) error) error {
			var t perdure.TenantID
			var name, key string
			var version int64
			if err := scan(&t, &name, &key, &version); err != nil {
				return err
			}
			n++
			repo.in.tx.Stage("DELETE FROM limit_keys WHERE tenant=? AND name=? AND key=? AND version=?",
				string(t), name, key, version)
			return nil
		})
	return n, err
}

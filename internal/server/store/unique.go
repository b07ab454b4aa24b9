package store

import "github.com/perdure/perdure"

// Keys of unique and debounced runs.
//
// A row says which run has a key of a kind. Its version makes two batches that take one key at once
// conflict: one of them is decided again and finds the other's run. A key that is given back keeps its
// row, without a run. Retention removes it later.

// Uses of a key. A unique key and a debounce key of the same text are two.
const (
	KeyUnique   = "unique"
	KeyDebounce = "debounce"
)

// A UniqueRow is a key of a kind. No RunID: it is free.
type UniqueRow struct {
	Tenant  perdure.TenantID
	Kind    string
	Purpose string
	Key     string
	RunID   perdure.RunID
	While   perdure.UniqueWhile
	// Until is when a key that is taken for a time is free again.
	Until perdure.Instant
	// FreeAt is when the row is of no use any more: since the key is free, or from Until on.
	FreeAt  perdure.Instant
	Version int64
}

var uniqueTable = register(&table[UniqueRow]{
	name: "unique_runs", versioned: true, version: func(u *UniqueRow) *int64 { return &u.Version },
	keys: []string{"tenant", "kind", "purpose", "key"},
	columns: func(c *columns, u *UniqueRow) {
		text(c, "tenant", &u.Tenant)
		text(c, "kind", &u.Kind)
		text(c, "purpose", &u.Purpose)
		text(c, "key", &u.Key)
		text(c, "run_id", &u.RunID)
		text(c, "held_while", &u.While)
		number(c, "until_at", &u.Until)
		number(c, "free_at", &u.FreeAt)
		number(c, "version", &u.Version)
	},
})

type uniqueKey struct {
	t                  perdure.TenantID
	kind, purpose, key string
}

// Unique holds the keys of unique and debounced runs.
type Unique struct {
	in   *base
	rows staged[uniqueKey, UniqueRow]
}

func (repo *Unique) open(in *base) {
	repo.in = in
	openRows(&repo.rows, in, uniqueTable)
}

// Get gives a key. One that was never taken is free.
func (repo *Unique) Get(t perdure.TenantID, kind, purpose, key string) (UniqueRow, error) {
	u, ok, err := loadRow(&repo.rows, uniqueKey{t, kind, purpose, key},
		"WHERE tenant=? AND kind=? AND purpose=? AND key=?", string(t), kind, purpose, key)
	if err == nil && !ok {
		u = UniqueRow{Tenant: t, Kind: kind, Purpose: purpose, Key: key}
	}
	return u, err
}

// Put stages a key. Its version is incremented when the batch is written.
func (repo *Unique) Put(u UniqueRow) {
	putRow(&repo.rows, uniqueKey{u.Tenant, u.Kind, u.Purpose, u.Key}, u)
}

// OfRun gives the keys that a run has, as they are stored.
func (repo *Unique) OfRun(t perdure.TenantID, id perdure.RunID) (out []UniqueRow, err error) {
	err = uniqueTable.query(repo.in.sess, "WHERE tenant=? AND run_id=? AND run_id<>''", []any{string(t), string(id)},
		func(u *UniqueRow) error {
			k := uniqueKey{u.Tenant, u.Kind, u.Purpose, u.Key}
			absorbRow(&repo.rows, k, *u, true)
			if cur, ok, _ := getRow(&repo.rows, k); ok && cur.RunID == id {
				out = append(out, cur)
			}
			return nil
		})
	return out, err
}

// DropFree stages the removal of at most limit keys that were free before an instant, and gives their
// number. A key that is taken again meanwhile stays.
func (repo *Unique) DropFree(before perdure.Instant, limit int) (n int, err error) {
	err = repo.in.sess.Query("SELECT tenant, kind, purpose, key, version FROM unique_runs "+
		"WHERE free_at>0 AND free_at<? ORDER BY free_at"+atMost,
		[]any{int64(before), int64(limit)}, func(scan func(...any) error) error {
			var k uniqueKey
			var version int64
			if err := scan(&k.t, &k.kind, &k.purpose, &k.key, &version); err != nil {
				return err
			}
			n++
			repo.in.tx.Stage("DELETE FROM unique_runs WHERE tenant=? AND kind=? AND purpose=? AND key=? AND version=?",
				string(k.t), k.kind, k.purpose, k.key, version)
			return nil
		})
	return n, err
}

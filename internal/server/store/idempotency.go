package store

import (
	"strings"

	"github.com/perdure/perdure"
)

// An IdempotencyRow is an idempotency key and the record that its call created.
type IdempotencyRow struct {
	Tenant    perdure.TenantID
	Key       string
	Digest    string
	Ref       string
	ExpiresAt perdure.Instant
}

var idempotencyTable = register(&table[IdempotencyRow]{
	name: "idempotency", once: true, keys: []string{"tenant", "key"},
	groups: [][]string{{"tenant", "expires_at"}, {"digest"}},
	columns: func(c *columns, k *IdempotencyRow) {
		text(c, "tenant", &k.Tenant)
		text(c, "key", &k.Key)
		text(c, "digest", &k.Digest)
		text(c, "ref", &k.Ref)
		number(c, "expires_at", &k.ExpiresAt)
	},
})

type idempotencyKey struct {
	t   perdure.TenantID
	key string
}

// Idempotency holds idempotency keys.
type Idempotency struct {
	in   *base
	runs *Runs
	rows staged[idempotencyKey, IdempotencyRow]
}

func (repo *Idempotency) open(in *base, runs *Runs) {
	repo.runs = runs
	repo.in = in
	openRows(&repo.rows, in, idempotencyTable)
}

// Get gives an idempotency key. The engine treats an expired key as absent once its run has ended.
func (repo *Idempotency) Get(t perdure.TenantID, key string) (IdempotencyRow, bool, error) {
	return loadRow(&repo.rows, idempotencyKey{t, key}, "WHERE tenant=? AND key=?", string(t), key)
}

// RunKeys begins the keys whose record is a run.
const RunKeys = "run:"

// load reads many keys in few queries, and then the runs that those found refer to. An operation
// under a known key answers with its run.
func (repo *Idempotency) load(keys []idempotencyKey) error {
	var rows [][]any
	asked := make(map[idempotencyKey]bool, len(keys))
	for _, k := range keys {
		if _, _, known := getRow(&repo.rows, k); !known && !asked[k] {
			rows, asked[k] = append(rows, []any{string(k.t), k.key}), true
		}
	}
	var order []perdure.TenantID
	runs := make(map[perdure.TenantID][]perdure.RunID)
	err := repo.in.tx.among("idempotency", []string{"tenant", "key"}, rows, func(given string, args []any) error {
		return idempotencyTable.query(repo.in.sess, given, args, func(v *IdempotencyRow) error {
			absorbRow(&repo.rows, idempotencyKey{v.Tenant, v.Key}, *v, true)
			if strings.HasPrefix(v.Key, RunKeys) {
				if runs[v.Tenant] == nil {
					order = append(order, v.Tenant)
				}
				runs[v.Tenant] = append(runs[v.Tenant], perdure.RunID(v.Ref))
			}
			return nil
		})
	})
	if err != nil {
		return err // the keys may exist: nothing is remembered
	}
	for k := range asked {
		absorbRow(&repo.rows, k, IdempotencyRow{}, false)
	}
	for _, t := range order {
		if err := repo.runs.Load(t, runs[t]); err != nil {
			return err
		}
	}
	return nil
}

// Put stages a new idempotency key.
func (repo *Idempotency) Put(v IdempotencyRow) {
	putRow(&repo.rows, idempotencyKey{v.Tenant, v.Key}, v)
}

package store

import "github.com/perdure/perdure"

// A KeyRow is an idempotency key and the record that its call created.
type KeyRow struct {
	Tenant    perdure.TenantID
	Key       string
	Digest    string
	Ref       string
	ExpiresAt perdure.Instant
}

var idempotencyTable = &table[KeyRow]{
	name: "idempotency", once: true, keys: []string{"tenant", "key"},
	cols: []string{"tenant", "key", "digest", "ref", "expires_at"},
	bind: func(k *KeyRow) []any {
		return []any{string(k.Tenant), k.Key, k.Digest, k.Ref, int64(k.ExpiresAt)}
	},
	scan: func(k *KeyRow) []any { return []any{&k.Tenant, &k.Key, &k.Digest, &k.Ref, &k.ExpiresAt} },
}

type idempotencyKey struct {
	t   perdure.TenantID
	key string
}

// Idempotency holds idempotency keys.
type Idempotency struct {
	in   *Records
	rows staged[idempotencyKey, KeyRow]
}

func (repo *Idempotency) open(in *Records) {
	repo.in = in
	repo.rows.over(in, idempotencyTable)
}

// Get gives an idempotency key. The engine treats an expired key as absent once its run has ended.
func (repo *Idempotency) Get(t perdure.TenantID, key string) (KeyRow, bool, error) {
	return repo.rows.load(idempotencyKey{t, key}, "WHERE tenant=? AND key=?", string(t), key)
}

// Put stages a new idempotency key.
func (repo *Idempotency) Put(v KeyRow) { repo.rows.put(idempotencyKey{v.Tenant, v.Key}, v) }

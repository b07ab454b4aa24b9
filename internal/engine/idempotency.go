package engine

import (
	"encoding/json"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/store"
)

// underKey does something once for each idempotency key: the first time do, which says what it led to, and from then
// on again, with that. what says what is done, and to what: a key counts for that alone. body is all that was asked
// for; the same key with another body is refused. Without a key it is done each time.
func (tx *Tx) underKey(t perdure.TenantID, what, key string, body any, do func() (ref string, err error), again func(ref string) error) (created bool, err error) {
	if key == "" {
		_, err := do()
		return err == nil, err
	}
	if err := perdure.CheckText("idempotency-key", key); err != nil {
		return false, err
	}
	text, err := json.Marshal(body)
	if err != nil {
		return false, err
	}
	digest, name := store.Digest(string(text)), what+":"+key
	known, ok, err := tx.Key(t, name)
	switch {
	case err != nil:
		return false, err
	case ok && known.Digest != digest:
		return false, perdure.Errorf(perdure.CodeReused, "this idempotency key was used with another body")
	case ok:
		return false, again(known.Ref)
	}
	ref, err := do()
	if err != nil {
		return false, err
	}
	tx.PutKey(store.KeyRow{Tenant: t, Key: name, Digest: digest, Ref: ref, ExpiresAt: tx.Now.Add(tx.e.policy.IdempotencyTTL)})
	return true, nil
}

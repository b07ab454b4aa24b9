package engine

import (
	"bytes"
	"encoding/json"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/store"
)

// A bodyDigest tells bodies apart that came under the same key. Keys hold the digest by value. Those that were made
// before there was one hold the digest by bytes, so that either counts: a canonical body has the same digest in both.
type bodyDigest struct{ value, bytes string }

func digestBody(text []byte) bodyDigest {
	return bodyDigest{store.Digest(string(canonical(text))), store.Digest(string(text))}
}

func (d bodyDigest) is(known string) bool { return known == d.value || known == d.bytes }

// maxCanonical bounds what is compared by value: reading a value takes many times its size in memory.
const maxCanonical = 64 << 10

// canonical writes a JSON value with its keys sorted, without spaces and with the escapes of this package. Numbers stay as
// they are written. A large value stays as it is.
func canonical(text []byte) []byte {
	if len(text) > maxCanonical {
		return text
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil {
		return text
	}
	out, err := json.Marshal(v)
	if err != nil {
		return text
	}
	return out
}

// underKey does something once for each idempotency key: the first time do, which says what it led to, and from then
// on again, with that. what says what is done, and to what: a key counts for that alone. body is all that was asked
// for; the same key with another body is refused. Without a key it is done each time.
func underKey(tx *Tx, t perdure.TenantID, what, key string, body any, do func() (ref string, err error), again func(ref string) error) (created bool, err error) {
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
	digest, name := digestBody(text), what+":"+key
	known, ok, err := tx.DB.Idempotency.Get(t, name)
	switch {
	case err != nil:
		return false, err
	case ok && !digest.is(known.Digest):
		return false, perdure.Errorf(perdure.CodeReused, "this idempotency key was used with another body")
	case ok:
		return false, again(known.Ref)
	}
	ref, err := do()
	if err != nil {
		return false, err
	}
	tx.DB.Idempotency.Put(store.KeyRow{Tenant: t, Key: name, Digest: digest.value, Ref: ref, ExpiresAt: tx.Now.Add(tx.e.policy.IdempotencyTTL)})
	return true, nil
}

package kernel

import (
	"encoding/json"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/store"
)

// A BodyDigest tells apart the bodies that come under one idempotency key. Keys store the digest of
// the canonical body (value). Keys from before canonical bodies store that of the raw bytes (text),
// so either is accepted.
type BodyDigest struct {
	Value string
	text  []byte
}

// DigestBody computes the digest of a body.
func DigestBody(text []byte) BodyDigest {
	return BodyDigest{store.Digest(string(Canonical(text))), text}
}

// DigestOf computes the digest of a body that has several parts, from its canonical text and its raw one.
func DigestOf(canonical, raw string) BodyDigest {
	return BodyDigest{store.Digest(canonical), []byte(raw)}
}

// Is tells whether a stored digest is that of this body.
func (d BodyDigest) Is(known string) bool {
	return known == d.Value || known == store.Digest(string(d.text))
}

// UnderKey does something once for each idempotency key. The first call runs do and stores the
// reference that it gives. Later calls run again with that reference.
//
// action names the action and its target; a key counts for these alone. body is the whole request:
// the same key with another body is refused. Without a key, do runs each time.
func UnderKey(
	tx *Tx, t perdure.TenantID, action, key string, body any,
	do func() (ref string, err error), again func(ref string) error,
) (created bool, err error) {
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
	digest, name := DigestBody(text), action+":"+key
	known, ok, err := tx.DB.Idempotency.Get(t, name)
	switch {
	case err != nil:
		return false, err
	case ok && !digest.Is(known.Digest):
		return false, perdure.Errorf(perdure.CodeReused, "this idempotency key was used with another body")
	case ok:
		return false, again(known.Ref)
	}
	ref, err := do()
	if err != nil {
		return false, err
	}
	tx.DB.Idempotency.Put(store.IdempotencyRow{Tenant: t, Key: name, Digest: digest.Value, Ref: ref,
		ExpiresAt: tx.Now.Add(tx.Engine.policy.IdempotencyTTL)})
	return true, nil
}

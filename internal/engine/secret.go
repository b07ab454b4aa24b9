package engine

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/store"
)

// The root secret is a row of meta. Callback tokens and the secrets of webhooks follow from it.
//
// It has generations. A rotation adds one; the newest makes callback tokens, and the newest few verify them. A webhook's secret
// follows from the generation that was the newest when that secret was made, by the instants of both: a rotation changes no
// secret that a receiver has. A generation is kept while a webhook needs it.
//
// The row is one generation in hexadecimal digits, or several as JSON, or either of them sealed: AES-256-GCM under a key that is
// not in the store. Sealed, it names its key by an id, and is of no use to a reader of the database or of a backup.

// A generation of the root secret.
type generation struct {
	At     perdure.Instant `json:"at"` // since when it is the newest; the first: 0
	Secret []byte          `json:"secret"`
}

// A keyring is the generations, oldest first. There is at least one.
type keyring []generation

const (
	// maxGenerations bounds what is kept for webhooks.
	maxGenerations = 8
	// tokenGenerations is how many generations verify callback tokens: the newest, and two before it.
	tokenGenerations = 3

	sealedPrefix = "sealed:v1:"
	sealPurpose  = "perdure root secret"
)

// newest makes tokens.
func (k keyring) newest() generation { return k[len(k)-1] }

// of is the generation that was the newest at an instant.
func (k keyring) of(at perdure.Instant) generation {
	for _, g := range slices.Backward(k) {
		if g.At <= at {
			return g
		}
	}
	return k[0]
}

// until gives the generations that were the newest at some time up to an instant, newest first.
func (k keyring) until(at perdure.Instant) (out []generation) {
	for _, g := range slices.Backward(k) {
		if g.At <= at {
			out = append(out, g)
		}
	}
	return out
}

// derive is a value that follows from a generation.
func (g generation) derive(text string) []byte {
	m := hmac.New(sha256.New, g.Secret)
	m.Write([]byte(text))
	return m.Sum(nil)
}

func (k keyring) encode() (string, error) {
	if len(k) == 1 {
		return hex.EncodeToString(k[0].Secret), nil
	}
	b, err := json.Marshal(k)
	return string(b), err
}

func decodeKeyring(text string) (k keyring, err error) {
	if strings.HasPrefix(text, "[") {
		err = json.Unmarshal([]byte(text), &k)
	} else {
		var b []byte
		b, err = hex.DecodeString(text)
		k = keyring{{Secret: b}}
	}
	if err != nil || len(k) == 0 || slices.ContainsFunc(k, func(g generation) bool { return len(g.Secret) != 32 }) {
		return nil, perdure.Errorf(perdure.CodeWrongState, "the store's secret can't be read: the row of meta is damaged")
	}
	return k, nil
}

// SealKeySize is the size of a key that seals.
const SealKeySize = 32

// sealKeyID names a key without telling anything of it.
func sealKeyID(key []byte) string {
	sum := sha256.Sum256(append([]byte("perdure seal key\x00"), key...))
	return hex.EncodeToString(sum[:8])
}

func aead(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// seal encrypts a text; without a key it stays as it is.
func seal(text string, keys [][]byte, random io.Reader) (string, error) {
	if len(keys) == 0 {
		return text, nil
	}
	c, err := aead(keys[0])
	if err != nil {
		return "", err
	}
	nonce := make([]byte, c.NonceSize())
	if _, err := io.ReadFull(random, nonce); err != nil {
		return "", err
	}
	id := sealKeyID(keys[0])
	return sealedPrefix + id + ":" + base64.StdEncoding.EncodeToString(c.Seal(nonce, nonce, []byte(text), []byte(sealPurpose+"\x00"+id))), nil
}

// unseal is the opposite. by is the id of the key that had sealed it; empty: nobody had.
func unseal(text string, keys [][]byte) (plain, by string, err error) {
	rest, sealed := strings.CutPrefix(text, sealedPrefix)
	if !sealed {
		return text, "", nil
	}
	by, body, _ := strings.Cut(rest, ":")
	i := slices.IndexFunc(keys, func(k []byte) bool { return sealKeyID(k) == by })
	switch {
	case len(keys) == 0:
		return "", by, perdure.Errorf(perdure.CodeWrongState, "the store's secret is sealed with key %s: give that key (seal_keys, --seal-keys file:PATH or env:NAME)", by)
	case i < 0:
		return "", by, perdure.Errorf(perdure.CodeWrongState, "the store's secret is sealed with key %s, and none of the seal_keys is that one (they are %s)", by, sealKeyIDs(keys))
	}
	c, err := aead(keys[i])
	if err != nil {
		return "", by, err
	}
	b, err := base64.StdEncoding.DecodeString(body)
	if err == nil && len(b) >= c.NonceSize() {
		b, err = c.Open(nil, b[:c.NonceSize()], b[c.NonceSize():], []byte(sealPurpose+"\x00"+by))
	} else {
		err = errors.New("too short")
	}
	if err != nil {
		return "", by, perdure.Errorf(perdure.CodeWrongState, "the store's secret can't be opened with key %s: the row of meta was changed", by)
	}
	return string(b), by, nil
}

func sealKeyIDs(keys [][]byte) string {
	ids := make([]string, len(keys))
	for i, k := range keys {
		ids[i] = sealKeyID(k)
	}
	return strings.Join(ids, ", ")
}

// bootOp makes the store's secret once, and has it sealed by the first of the keys.
type bootOp struct {
	ring   keyring
	sealed string // how it was sealed just now; empty: it was already, or is not
}

func (*bootOp) Needs() []store.Ref { return nil }

func (op *bootOp) Do(tx *Tx) error {
	stored, err := tx.DB.Meta.Get("secret")
	if err != nil {
		return err
	}
	if stored == "" {
		b := make([]byte, 32)
		if _, err := io.ReadFull(tx.e.random, b); err != nil {
			return err
		}
		op.ring = keyring{{Secret: b}}
		text, err := op.ring.encode()
		if err == nil {
			text, err = seal(text, tx.e.sealKeys, tx.e.random)
		}
		tx.DB.Stage("INSERT INTO meta (name,value) VALUES ('secret',?) ON CONFLICT (name) DO NOTHING", text)
		return err
	}
	text, by, err := unseal(stored, tx.e.sealKeys)
	if err != nil {
		return err
	}
	if op.ring, err = decodeKeyring(text); err != nil || len(tx.e.sealKeys) == 0 || by == sealKeyID(tx.e.sealKeys[0]) {
		return err
	}
	if op.sealed = "sealed"; by != "" {
		op.sealed = "sealed anew, key " + by + " is no longer needed"
	}
	return putKeyring(tx, stored, op.ring)
}

// putKeyring stages a keyring in the place of what was read. Another node that does the same has written something equal.
func putKeyring(tx *Tx, stored string, ring keyring) error {
	text, err := ring.encode()
	if err == nil {
		text, err = seal(text, tx.e.sealKeys, tx.e.random)
	}
	if err == nil {
		tx.DB.Stage("UPDATE meta SET value=? WHERE name='secret' AND value=?", text, stored)
	}
	return err
}

// RotateSecret gives the store a new root secret. No other engine may work on the store: it would go on with the one before.
type RotateSecret struct {
	Generation int // how many there have been, the new one included, as far as they are kept

	// Old are webhooks whose secret follows from an older root secret, at most maxOldWebhooks. Each stays valid until it is rotated.
	Old []store.WebhookRef
}

// maxOldWebhooks bounds what is listed.
const maxOldWebhooks = 1000

// Needs nothing.
func (*RotateSecret) Needs() []store.Ref { return nil }

// Do rotates.
func (op *RotateSecret) Do(tx *Tx) error {
	stored, err := tx.DB.Meta.Get("secret")
	if err != nil {
		return err
	}
	text, _, err := unseal(stored, tx.e.sealKeys)
	if err != nil {
		return err
	}
	ring, err := decodeKeyring(text)
	if err != nil {
		return err
	}
	// Later than whatever was made, also by a clock that was wrong: what follows from an older secret goes on to.
	last, err := tx.DB.Webhooks.LastSecretMade()
	if err != nil {
		return err
	}
	fresh := generation{At: max(tx.Now, ring.newest().At+1, last+1), Secret: make([]byte, 32)}
	if _, err := io.ReadFull(tx.e.random, fresh.Secret); err != nil {
		return err
	}
	if len(ring) >= maxGenerations {
		// The oldest goes, if nothing follows from it.
		need, err := tx.DB.Webhooks.SecretsMadeBefore(ring[1].At, 10)
		if err != nil {
			return err
		}
		if len(need) > 0 {
			return perdure.Errorf(perdure.CodeWrongState, "the secrets of webhooks follow from the oldest of %d root secrets: rotate these webhooks first (perdure webhooks rotate ID), or delete them: %v", len(ring), need)
		}
		ring = ring[1:]
	}
	ring = append(slices.Clone(ring), fresh)
	op.Generation = len(ring)
	if op.Old, err = tx.DB.Webhooks.SecretsMadeBefore(fresh.At, maxOldWebhooks); err != nil {
		return err
	}
	tx.DB.After(func() { tx.e.ring = ring }) // nobody else has the engine
	return putKeyring(tx, stored, ring)
}

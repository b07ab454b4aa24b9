package access

import (
	"cmp"
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
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// The root secret is a row of the meta table. Callback tokens and webhook secrets are derived from
// it.
//
// It has generations. A rotation adds one. The newest generation makes callback tokens, and the
// newest few verify them. A webhook's secret is derived from the generation that was the newest
// when that secret was made; the two are matched by their instants. A rotation therefore changes no
// secret that a receiver has. A generation is kept while a webhook needs it.
//
// The row holds one generation in hexadecimal digits, or several as JSON. Either can be sealed
// with AES-256-GCM under a key that is not in the store. A sealed row names its key by an id.
// Without that key it is of no use to a reader of the database or of a backup.

// A Generation is one version of the root secret.
type Generation struct {
	// At is since when it is the newest. It is zero for the first one.
	At     perdure.Instant `json:"at"`
	Secret []byte          `json:"secret"`
}

// A keyring holds the generations, oldest first. There is at least one.
type keyring []Generation

// secretState has the generations that an engine has read, and the keys that seal them.
type secretState struct {
	ring     keyring
	sealKeys [][]byte
}

var rootSecret = kernel.NewPart(func(*kernel.Engine) *secretState { return &secretState{} })

const (
	// maxGenerations bounds the generations that are kept for webhooks.
	maxGenerations = 8
	// TokenGenerations is how many of the newest generations verify callback tokens.
	TokenGenerations = 3

	sealedPrefix = "sealed:v1:"
	sealPurpose  = "perdure root secret"
)

// Newest gives the generation that makes callback tokens.
func (k keyring) Newest() Generation { return k[len(k)-1] }

// Of gives the generation that was the newest at an instant.
func (k keyring) Of(at perdure.Instant) Generation {
	for _, g := range slices.Backward(k) {
		if g.At <= at {
			return g
		}
	}
	return k[0]
}

// Until gives the generations that were made up to an instant, newest first.
func (k keyring) Until(at perdure.Instant) (out []Generation) {
	for _, g := range slices.Backward(k) {
		if g.At <= at {
			out = append(out, g)
		}
	}
	return out
}

// Derive computes the HMAC of a text under a generation.
func (g Generation) Derive(text string) []byte {
	m := hmac.New(sha256.New, g.Secret)
	m.Write([]byte(text))
	return m.Sum(nil)
}

// encode writes a keyring as the text of its meta row, before sealing.
func (k keyring) encode() (string, error) {
	if len(k) == 1 {
		return hex.EncodeToString(k[0].Secret), nil
	}
	b, err := json.Marshal(k)
	return string(b), err
}

// decodeKeyring reads the text of an unsealed meta row.
func decodeKeyring(text string) (k keyring, err error) {
	if strings.HasPrefix(text, "[") {
		err = json.Unmarshal([]byte(text), &k)
	} else {
		var b []byte
		b, err = hex.DecodeString(text)
		k = keyring{{Secret: b}}
	}
	if err != nil || len(k) == 0 || slices.ContainsFunc(k, func(g Generation) bool { return len(g.Secret) != 32 }) {
		return nil, perdure.Errorf(perdure.CodeWrongState,
			"the store's secret can't be read: the row of meta is damaged")
	}
	return k, nil
}

// SealKeySize is the size of a sealing key in bytes.
const SealKeySize = 32

// sealKeyID gives a key's id, which does not reveal the key.
func sealKeyID(key []byte) string {
	sum := sha256.Sum256(append([]byte("perdure seal key\x00"), key...))
	return hex.EncodeToString(sum[:8])
}

// aead gives AES-256-GCM under a key.
func aead(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// seal encrypts a text with the first key. Without a key, the text stays as it is.
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
	return sealedPrefix + id + ":" + base64.StdEncoding.EncodeToString(c.Seal(nonce, nonce, []byte(text),
		[]byte(sealPurpose+"\x00"+id))), nil
}

// unseal decrypts a sealed text. by is the id of the key that sealed it. It is empty for a text
// that is not sealed.
func unseal(text string, keys [][]byte) (plain, by string, err error) {
	rest, sealed := strings.CutPrefix(text, sealedPrefix)
	if !sealed {
		return text, "", nil
	}
	by, body, _ := strings.Cut(rest, ":")
	i := slices.IndexFunc(keys, func(k []byte) bool { return sealKeyID(k) == by })
	switch {
	case len(keys) == 0:
		return "", by, perdure.Errorf(perdure.CodeWrongState,
			"the store's secret is sealed with key %s: "+
				"give that key (seal_keys, --seal-keys file:PATH or env:NAME)", by)
	case i < 0:
		return "", by, perdure.Errorf(perdure.CodeWrongState,
			"the store's secret is sealed with key %s, and none of the seal_keys is that one (they are %s)", by,
			sealKeyIDs(keys))
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
		return "", by, perdure.Errorf(perdure.CodeWrongState,
			"the store's secret can't be opened with key %s: the row of meta was changed", by)
	}
	return string(b), by, nil
}

// sealKeyIDs lists the ids of keys, for an error message.
func sealKeyIDs(keys [][]byte) string {
	ids := make([]string, len(keys))
	for i, k := range keys {
		ids[i] = sealKeyID(k)
	}
	return strings.Join(ids, ", ")
}

// bootOp creates the store's root secret once, and seals it with the first of the sealing keys.
type bootOp struct {
	ring keyring
	// sealed says how the secret was sealed in this operation. Empty: it was not.
	sealed string
}

func (*bootOp) Needs() []store.Ref { return nil }

// Do reads the keyring, or creates it, and seals it anew if its key has changed.
func (op *bootOp) Do(tx *kernel.Tx) error {
	stored, err := tx.DB.Meta.Get("secret")
	if err != nil {
		return err
	}
	if stored == "" {
		b := make([]byte, 32)
		if _, err := io.ReadFull(tx.Engine.Random, b); err != nil {
			return err
		}
		op.ring = keyring{{Secret: b}}
		text, err := op.ring.encode()
		if err == nil {
			text, err = seal(text, rootSecret.Of(tx.Engine).sealKeys, tx.Engine.Random)
		}
		tx.DB.Stage("INSERT INTO meta (name,value) VALUES ('secret',?) ON CONFLICT (name) DO NOTHING", text)
		return err
	}
	text, by, err := unseal(stored, rootSecret.Of(tx.Engine).sealKeys)
	if err != nil {
		return err
	}
	keys := rootSecret.Of(tx.Engine).sealKeys
	if op.ring, err = decodeKeyring(text); err != nil || len(keys) == 0 || by == sealKeyID(keys[0]) {
		return err
	}
	if op.sealed = "sealed"; by != "" {
		op.sealed = "sealed anew, key " + by + " is no longer needed"
	}
	return putKeyring(tx, stored, op.ring)
}

// putKeyring replaces the meta row, if it is still the one that was read. Another node that does so
// at the same time writes an equal keyring.
func putKeyring(tx *kernel.Tx, stored string, ring keyring) error {
	text, err := ring.encode()
	if err == nil {
		text, err = seal(text, rootSecret.Of(tx.Engine).sealKeys, tx.Engine.Random)
	}
	if err == nil {
		tx.DB.Stage("UPDATE meta SET value=? WHERE name='secret' AND value=?", text, stored)
	}
	return err
}

// RotateSecret gives the store a new root secret. No other engine may work on the store, because it
// would continue with the previous secret.
type RotateSecret struct {
	// Generation is the number of generations that are kept, the new one included.
	Generation int

	// Old names webhooks whose secret is derived from an older root secret, at most maxOldWebhooks.
	// Their secrets stay valid until they are rotated.
	Old []store.WebhookRef
}

// maxOldWebhooks bounds the webhooks that are listed.
const maxOldWebhooks = 1000

// Needs names no run.
func (*RotateSecret) Needs() []store.Ref { return nil }

// Do adds a generation.
func (op *RotateSecret) Do(tx *kernel.Tx) error {
	stored, err := tx.DB.Meta.Get("secret")
	if err != nil {
		return err
	}
	text, _, err := unseal(stored, rootSecret.Of(tx.Engine).sealKeys)
	if err != nil {
		return err
	}
	ring, err := decodeKeyring(text)
	if err != nil {
		return err
	}
	// The new generation must be later than every webhook secret, even one that was made under a
	// wrong clock. Otherwise that secret would be derived from the new generation.
	last, err := tx.DB.Webhooks.LastSecretMade()
	if err != nil {
		return err
	}
	fresh := Generation{At: max(tx.Now, ring.Newest().At+1, last+1), Secret: make([]byte, 32)}
	if _, err := io.ReadFull(tx.Engine.Random, fresh.Secret); err != nil {
		return err
	}
	if len(ring) >= maxGenerations {
		// The oldest generation is dropped if no webhook needs it.
		need, err := tx.DB.Webhooks.SecretsMadeBefore(ring[1].At, 10)
		if err != nil {
			return err
		}
		if len(need) > 0 {
			return perdure.Errorf(perdure.CodeWrongState,
				"the secrets of webhooks follow from the oldest of %d root secrets: "+
					"rotate these webhooks first (perdure webhooks rotate ID), or delete them: %v",
				len(ring), need)
		}
		ring = ring[1:]
	}
	ring = append(slices.Clone(ring), fresh)
	op.Generation = len(ring)
	if op.Old, err = tx.DB.Webhooks.SecretsMadeBefore(fresh.At, maxOldWebhooks); err != nil {
		return err
	}
	// No other goroutine uses this engine.
	tx.DB.After(func() { rootSecret.Of(tx.Engine).ring = ring })
	return putKeyring(tx, stored, ring)
}

// RootSecret gives the generations of the root secret. It is empty in an engine that has not read it.
func RootSecret(e *kernel.Engine) keyring { return rootSecret.Of(e).ring }

// OpenRootSecret reads the store's root secret, and creates it if there is none.
func OpenRootSecret(e *kernel.Engine) error {
	boot, sealed := &bootOp{}, ""
	// The first pass creates the root secret, the second one reads it. Of two nodes that boot at
	// once, one has created it, and both read the same.
	for range 2 {
		err := e.Step(e.Now(), boot)[0]
		var refused *perdure.Error
		if errors.As(err, &refused) && refused.Code == perdure.CodeWrongState {
			// The message is for the operator who starts the server.
			err = errors.New(refused.Message)
		}
		if err != nil {
			return err
		}
		sealed, boot.sealed = cmp.Or(sealed, boot.sealed), ""
	}
	rootSecret.Of(e).ring = boot.ring
	if sealed != "" {
		e.Log.Info("root secret " + sealed)
	}
	return nil
}

// Signed verifies a token's MAC with the newest root secret and the ones before it; see
// TokenGenerations.
func (k keyring) Signed(body string, mac []byte) bool {
	return slices.ContainsFunc(k[max(0, len(k)-TokenGenerations):],
		func(g Generation) bool { return hmac.Equal(mac, g.Derive("callback\x00"+body)) })
}

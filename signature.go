package perdure

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strconv"
)

// A Signature says that a run is what was accepted. It is made with a key that is not in the store, so that whoever changes
// the store can't make one. docs/signing.md says how to verify it in another language.
type Signature struct {
	KeyID string `json:"key_id"`
	Value string `json:"value"` // base64 of 64 bytes
}

// IsZero tells whether there is none.
func (s Signature) IsZero() bool { return s == Signature{} }

// A SignedRun is what a signature covers.
type SignedRun struct {
	Tenant     TenantID
	RunID      RunID
	Kind       string
	Queue      string
	Input      []byte // JSON; whitespace between its tokens does not count
	DeadlineAt Instant
}

// signatureVersion begins what is signed: nothing else that the key may ever sign begins like this.
const signatureVersion = "perdure-run-v1"

// canonical is what is signed: each field with its length before it, so that nothing can move from one to the next.
func (r *SignedRun) canonical(keyID string) []byte {
	input := r.Input
	var compact bytes.Buffer
	if len(input) > 0 && json.Compact(&compact, input) == nil {
		input = compact.Bytes()
	}
	digest := sha256.Sum256(input)
	var b []byte
	for _, field := range []string{signatureVersion, keyID, string(r.Tenant), string(r.RunID), r.Kind, r.Queue, hex.EncodeToString(digest[:]), r.DeadlineAt.String()} {
		b = strconv.AppendInt(b, int64(len(field)), 10)
		b = append(b, ':')
		b = append(b, field...)
		b = append(b, ',')
	}
	return b
}

// A Signer signs runs: with the first of its keys. It verifies by all of them, so that a new key can be put before the old
// one without a run being refused.
type Signer struct {
	id    string
	key   ed25519.PrivateKey
	trust *Trust
}

// NewSigner makes a signer of private keys, each as PEM of PKCS #8.
func NewSigner(keys ...[]byte) (*Signer, error) {
	if len(keys) == 0 {
		return nil, errors.New("no signing key is given")
	}
	s := &Signer{trust: &Trust{}}
	for i, text := range keys {
		block, rest := pem.Decode(text)
		if block == nil || block.Type != "PRIVATE KEY" || len(bytes.TrimSpace(rest)) > 0 {
			return nil, fmt.Errorf("signing key %d: is not the PEM of one private key", i+1)
		}
		parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("signing key %d: %w", i+1, err)
		}
		key, ok := parsed.(ed25519.PrivateKey)
		if !ok {
			return nil, fmt.Errorf("signing key %d: is no Ed25519 key", i+1)
		}
		id, err := s.trust.add(key.Public().(ed25519.PublicKey))
		if err != nil {
			return nil, fmt.Errorf("signing key %d: %w", i+1, err)
		}
		if i == 0 {
			s.id, s.key = id, key
		}
	}
	return s, nil
}

// KeyID is the id of the key that signs.
func (s *Signer) KeyID() string { return s.id }

// Trust is the public halves of all its keys.
func (s *Signer) Trust() *Trust { return s.trust }

// Sign signs a run.
func (s *Signer) Sign(r *SignedRun) Signature {
	return Signature{KeyID: s.id, Value: base64.StdEncoding.EncodeToString(ed25519.Sign(s.key, r.canonical(s.id)))}
}

// Trust is the public keys whose signatures count.
type Trust struct {
	keys []PublicKey
}

// A PublicKey verifies signatures.
type PublicKey struct {
	ID  string
	Key ed25519.PublicKey
}

// PEM is the key as PEM of PKIX.
func (k *PublicKey) PEM() []byte {
	der, err := x509.MarshalPKIXPublicKey(k.Key)
	if err != nil {
		panic(fmt.Sprintf("a key that can't be written: %v", err)) // it is one of 32 bytes
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

// maxTrusted bounds a set of keys: one signs, one did before, and a few for those who rotate often.
const maxTrusted = 100

// ParseTrust reads sets of public keys: PEM blocks, with anything between them.
func ParseTrust(sets ...[]byte) (*Trust, error) {
	t := &Trust{}
	for _, text := range sets {
		for {
			var block *pem.Block
			if block, text = pem.Decode(text); block == nil {
				break
			}
			if block.Type != "PUBLIC KEY" {
				return nil, fmt.Errorf("there is a %s among the public keys", block.Type)
			}
			parsed, err := x509.ParsePKIXPublicKey(block.Bytes)
			if err != nil {
				return nil, err
			}
			key, ok := parsed.(ed25519.PublicKey)
			if !ok {
				return nil, errors.New("there is a key that is no Ed25519 key")
			}
			if _, err := t.add(key); err != nil {
				return nil, err
			}
		}
	}
	if len(t.keys) == 0 {
		return nil, errors.New("there is no public key in it")
	}
	return t, nil
}

// add takes a key in and gives its id.
func (t *Trust) add(key ed25519.PublicKey) (string, error) {
	sum := sha256.Sum256(key)
	id := hex.EncodeToString(sum[:8])
	if t.find(id) != nil {
		return "", fmt.Errorf("key %s is given twice", id)
	}
	if len(t.keys) == maxTrusted {
		return "", fmt.Errorf("more than %d keys", maxTrusted)
	}
	t.keys = append(t.keys, PublicKey{ID: id, Key: key})
	return id, nil
}

func (t *Trust) find(id string) ed25519.PublicKey {
	i := slices.IndexFunc(t.keys, func(k PublicKey) bool { return k.ID == id })
	if i < 0 {
		return nil
	}
	return t.keys[i].Key
}

// Keys are its keys, in the order in which they were given.
func (t *Trust) Keys() []PublicKey { return slices.Clone(t.keys) }

// Verify tells whether a run is what was signed by one of the keys. Its error has the code signature_invalid and says why
// not.
func (t *Trust) Verify(r *SignedRun, s Signature) error {
	if s.IsZero() {
		return Errorf(CodeSignatureInvalid, "the run bears no signature")
	}
	key := t.find(s.KeyID)
	if key == nil {
		return Errorf(CodeSignatureInvalid, "the run's signature is by a key that is not known here: %.40q", s.KeyID)
	}
	// Decoded and written again it is the same text: base64 has more than one for the same bytes.
	value, err := base64.StdEncoding.DecodeString(s.Value)
	if err != nil || base64.StdEncoding.EncodeToString(value) != s.Value || !ed25519.Verify(key, r.canonical(s.KeyID), value) {
		return Errorf(CodeSignatureInvalid, "the run is not what was accepted: its signature does not fit")
	}
	return nil
}

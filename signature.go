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

// A Signature proves that a run is as it was accepted. Its key is not in the store, so that write
// access to the store is not enough to forge one. docs/security.md says how to verify it in another
// language.
type Signature struct {
	KeyID string `json:"key_id"`
	Value string `json:"value"` // base64 of 64 bytes
}

// IsZero tells whether the signature is missing.
func (s Signature) IsZero() bool { return s == Signature{} }

// A SignedRun has the fields that a signature covers.
type SignedRun struct {
	Tenant     TenantID
	RunID      RunID
	Kind       string
	Queue      string
	Input      []byte // JSON; white space between its tokens is not signed
	DeadlineAt Instant
	// OriginRunID is the first run of a chain of retries. It is signed only if it is set and is not
	// the run itself.
	OriginRunID RunID
}

// signatureVersion is the first signed field. Whatever else the key may ever sign must begin
// differently.
const signatureVersion = "perdure-run-v1"

// canonical returns the signed bytes. Each field has its length before it, so that no text can be
// moved from one field to the next without changing the signature.
func (r *SignedRun) canonical(keyID string) []byte {
	input := r.Input
	var compact bytes.Buffer
	if len(input) > 0 && json.Compact(&compact, input) == nil {
		input = compact.Bytes()
	}
	digest := sha256.Sum256(input)
	fields := []string{
		signatureVersion, keyID, string(r.Tenant), string(r.RunID), r.Kind, r.Queue,
		hex.EncodeToString(digest[:]), r.DeadlineAt.String(),
	}
	if r.OriginRunID != "" && r.OriginRunID != r.RunID {
		fields = append(fields, string(r.OriginRunID))
	}
	var b []byte
	for _, field := range fields {
		b = strconv.AppendInt(b, int64(len(field)), 10)
		b = append(b, ':')
		b = append(b, field...)
		b = append(b, ',')
	}
	return b
}

// A Signer signs runs with the first of its keys, and verifies with all of them. A new key can
// therefore be put before the old one without refusing runs that the old one signed.
type Signer struct {
	id    string
	key   ed25519.PrivateKey
	trust *Trust
}

// NewSigner makes a signer from private keys, each a PEM block of PKCS #8.
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

// KeyID returns the id of the signing key.
func (s *Signer) KeyID() string { return s.id }

// Trust returns the public halves of all its keys.
func (s *Signer) Trust() *Trust { return s.trust }

// Sign signs a run.
func (s *Signer) Sign(r *SignedRun) Signature {
	return Signature{KeyID: s.id, Value: base64.StdEncoding.EncodeToString(ed25519.Sign(s.key, r.canonical(s.id)))}
}

// Trust is a set of public keys whose signatures are accepted.
type Trust struct {
	keys []PublicKey
}

// A PublicKey verifies signatures.
type PublicKey struct {
	ID  string
	Key ed25519.PublicKey
}

// PEM returns the key as a PEM block of PKIX.
func (k *PublicKey) PEM() []byte {
	der, err := x509.MarshalPKIXPublicKey(k.Key)
	if err != nil {
		panic(fmt.Sprintf("a key that can't be written: %v", err)) // never: an Ed25519 key always can be
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

// maxTrusted limits a set of keys. Two are usual, the signing key and the one before.
const maxTrusted = 100

// ParseTrust reads public keys from PEM blocks. Other text between the blocks is ignored.
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

// add adds a key and returns its id.
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

// Keys returns the keys in the order in which they were added.
func (t *Trust) Keys() []PublicKey { return slices.Clone(t.keys) }

// Verify checks that one of the keys has signed the run. Its error has the code signature_invalid.
func (t *Trust) Verify(r *SignedRun, s Signature) error {
	if s.IsZero() {
		return Errorf(CodeSignatureInvalid, "the run bears no signature")
	}
	key := t.find(s.KeyID)
	if key == nil {
		return Errorf(CodeSignatureInvalid, "the run's signature is by a key that is not known here: %.40q", s.KeyID)
	}
	// Base64 has several texts for the same bytes. Only the one that Sign writes is accepted.
	value, err := base64.StdEncoding.DecodeString(s.Value)
	if err != nil || base64.StdEncoding.EncodeToString(value) != s.Value ||
		!ed25519.Verify(key, r.canonical(s.KeyID), value) {
		return Errorf(CodeSignatureInvalid, "the run is not what was accepted: its signature does not fit")
	}
	return nil
}

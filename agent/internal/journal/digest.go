package journal

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"

	"github.com/perdure/perdure"
)

// Digests tell values apart that are not recorded themselves. They are made of canonical JSON, so a
// library in another language makes the same.

// OfValue returns the digest of a value. The value itself is not stored, so it may be larger than what
// the store takes. It is nested as deep as a canonical text can be.
func OfValue(v any) (string, error) {
	text, err := perdure.Marshal(v)
	if err != nil {
		return "", err
	}
	// Raw JSON inside the value may name a field twice. The last one counts, as for every reader in Go.
	var plain any
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&plain); err != nil {
		return "", err
	}
	if text, err = perdure.Marshal(plain); err != nil {
		return "", err
	}
	if text, err = perdure.Canonical(text); err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return short(sum[:]), nil
}

// OfChild returns the digest of a child's kind and input. old is the one that was made before digests
// were made of canonical JSON, or empty if it is the same.
func OfChild(kind string, input json.RawMessage) (digest, old string) {
	sum := func(text []byte) string {
		all := sha256.Sum256(append([]byte(kind+"\x00"), text...))
		return short(all[:])
	}
	text := canonical(input)
	if digest = sum(text); !bytes.Equal(text, input) {
		old = sum(input)
	}
	return digest, old
}

// A Sum is a digest of the inputs of a map's children, in their order.
type Sum struct{ hash, old hash.Hash }

// NewSum returns the digest of none.
func NewSum() Sum { return Sum{sha256.New(), sha256.New()} }

// Add adds an input.
func (s Sum) Add(input json.RawMessage) {
	add := func(h hash.Hash, text []byte) {
		fmt.Fprintf(h, "%d\x00", len(text))
		h.Write(text)
	}
	add(s.hash, canonical(input))
	add(s.old, input)
}

// Text returns the digest.
func (s Sum) Text() string { return short(s.hash.Sum(nil)) }

// Is tells whether a recorded digest is that of the inputs, in its present or its old form.
func (s Sum) Is(recorded string) bool {
	return recorded == s.Text() || recorded == short(s.old.Sum(nil))
}

// canonical returns a text as canonical JSON. It was written by perdure.Encode, so it has a canonical form.
func canonical(text json.RawMessage) []byte {
	if len(text) == 0 {
		return nil
	}
	b, err := perdure.Canonical(text)
	if err != nil {
		return text
	}
	return b
}

// short returns the part of a hash that is recorded.
func short(sum []byte) string { return hex.EncodeToString(sum[:12]) }

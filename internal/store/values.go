package store

import (
	"crypto/sha256"
	"encoding/hex"

	"github.com/perdure/perdure"
)

// InlineMax is the size above which a value is stored once, by its content, instead of in the row.
const InlineMax = 8 << 10

// ShownMax is the size above which a value in a log line stands as {ref, size}.
const ShownMax = 64 << 10

// Intern keeps a value: as it is when it is small, and otherwise once per tenant, by its hash. owner is the
// run or thread that it lives as long as.
func (repo *Values) Intern(t perdure.TenantID, owner string, raw []byte) perdure.Value {
	return repo.intern(t, owner, raw, InlineMax)
}

// InternShown keeps a value as a log line shows it.
func (repo *Values) InternShown(t perdure.TenantID, owner string, raw []byte) perdure.Value {
	return repo.intern(t, owner, raw, ShownMax)
}

func (repo *Values) intern(t perdure.TenantID, owner string, raw []byte, inline int) perdure.Value {
	text := string(raw)
	if repo.in.s.opt.Redact != nil {
		text = repo.in.s.opt.Redact(text) // before the hash: a hash of a secret can be guessed at
	}
	repo.in.tx.bytes += len(text)
	if len(text) <= inline {
		return perdure.Value(text)
	}
	hash := Digest(text)
	push(repo.in.tx, &repo.blobs, blobRow{t, hash, int64(len(text)), text})
	push(repo.in.tx, &repo.refs, blobRefRow{t, owner, hash})
	return perdure.RefValue(hash, len(text))
}

// distinct leaves out what a batch has interned before: one statement may not touch a row twice.
func distinct(blobs []blobRow) []blobRow {
	if len(blobs) < 2 {
		return blobs
	}
	seen, out := make(map[blobRefRow]bool, len(blobs)), make([]blobRow, 0, len(blobs))
	for _, b := range blobs {
		if k := (blobRefRow{Tenant: b.Tenant, Hash: b.Hash}); !seen[k] {
			seen[k] = true
			out = append(out, b)
		}
	}
	return out
}

// Share lets another owner keep a value that is stored already.
func (repo *Values) Share(t perdure.TenantID, owner string, v perdure.Value) perdure.Value {
	if hash, _, ref := v.Ref(); ref {
		push(repo.in.tx, &repo.refs, blobRefRow{t, owner, hash})
	}
	return v
}

// Digest is the hash by which content is known.
func Digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// Resolve gives the content of a value.
func (repo *Values) Resolve(t perdure.TenantID, v perdure.Value) (perdure.Value, error) {
	hash, _, ref := v.Ref()
	if !ref {
		return v, nil
	}
	for _, b := range repo.blobs {
		if b.Tenant == t && b.Hash == hash {
			return perdure.Value(b.Content), nil
		}
	}
	return resolve(repo.in.sess, t, v)
}



func resolve(s Session, t perdure.TenantID, v perdure.Value) (perdure.Value, error) {
	hash, _, ref := v.Ref()
	if !ref {
		return v, nil
	}
	var content string
	err := s.Query("SELECT content FROM blobs WHERE tenant=? AND hash=?", []any{string(t), hash}, func(scan func(...any) error) error { return scan(&content) })
	if err == nil && Digest(content) != hash {
		err = perdure.Errorf(perdure.CodeInternal, "the content of %s is missing or damaged", hash)
	}
	return perdure.Value(content), err
}

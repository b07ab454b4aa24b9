package store

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"

	"github.com/perdure/perdure"
)

// InlineMax is the size above which a value is stored once per tenant by its hash, instead of in
// the row.
const InlineMax = 8 << 10

// shownMax is the size above which a value in a log line is shown as {ref, size}.
const shownMax = 64 << 10

// A blobRow is a large value of a tenant.
type blobRow struct {
	Tenant  perdure.TenantID
	Hash    string
	Size    int64
	Content string
}

var blobTable = register(&table[blobRow]{
	name: "blobs", quiet: true, lockColumn: "size", keys: []string{"tenant", "hash"},
	columns: func(c *columns, b *blobRow) {
		text(c, "tenant", &b.Tenant)
		text(c, "hash", &b.Hash)
		number(c, "size", &b.Size)
		text(c, "content", &b.Content)
	},
})

// A blobRefRow says that a run or thread owns a large value.
type blobRefRow struct {
	Tenant perdure.TenantID
	Owner  string
	Hash   string
}

var blobRefTable = register(&table[blobRefRow]{
	name: "blob_refs", quiet: true, keys: []string{"tenant", "owner", "hash"},
	columns: func(c *columns, b *blobRefRow) {
		text(c, "tenant", &b.Tenant)
		text(c, "owner", &b.Owner)
		text(c, "hash", &b.Hash)
	},
})

// Values holds large values, which are stored once per tenant by their hash (blobs), and their
// owners (blob_refs).
type Values struct {
	in    *base
	blobs added[blobRow]
	refs  added[blobRefRow]
}

func (repo *Values) open(in *base) {
	repo.in, repo.blobs.in, repo.refs.in = in, in, in
	repo.blobs.table, repo.refs.table = blobTable, blobRefTable
	in.write(repo)
}

func (repo *Values) pending() int { return len(repo.blobs.list) + len(repo.refs.list) }

func (repo *Values) statements(d *dialect) []statement {
	return append(blobTable.insert(d, distinct(repo.blobs.list)), blobRefTable.insert(d, repo.refs.list)...)
}

// distinct removes duplicates: one statement must not insert a row twice.
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

// Resolve gives the content of a value, also of one that the batch has staged.
func (repo *Values) Resolve(t perdure.TenantID, v perdure.Value) (perdure.Value, error) {
	hash, _, ref := v.Ref()
	if !ref {
		return v, nil
	}
	for _, b := range repo.blobs.list {
		if b.Tenant == t && b.Hash == hash {
			return perdure.Value(b.Content), nil
		}
	}
	return resolve(repo.in.sess, t, v)
}

// resolve gives the content of a stored value, and verifies its hash.
func resolve(s Conn, t perdure.TenantID, v perdure.Value) (perdure.Value, error) {
	hash, _, ref := v.Ref()
	if !ref {
		return v, nil
	}
	var content string
	err := s.Query("SELECT content FROM blobs WHERE tenant=? AND hash=?", []any{string(t), hash},
		func(scan func(...any) error) error { return scan(&content) })
	if err == nil && Digest(content) != hash {
		err = perdure.Errorf(perdure.CodeInternal, "the content of %s is missing or damaged", hash)
	}
	return perdure.Value(content), err
}

// Head gives the first characters of a value, without reading the rest of one that is stored by its hash.
func (repo *Values) Head(t perdure.TenantID, v perdure.Value, most int) (head string, err error) {
	if hash, _, ref := v.Ref(); ref {
		err = repo.in.sess.Query("SELECT substr(content,1,?) FROM blobs WHERE tenant=? AND hash=?",
			[]any{int64(most), string(t), hash}, func(scan func(...any) error) error { return scan(&head) })
		return head, err
	}
	n := 0
	for i := range string(v) {
		if n++; n > most {
			return string(v[:i]), nil
		}
	}
	return string(v), nil
}

// Digest gives the hash of a content.
func Digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	var digits [2 * len(sum)]byte
	hex.Encode(digits[:], sum[:])
	return string(digits[:])
}

// Intern gives the value to put into a row. A small value is kept as it is. A large one is stored
// by its hash and replaced by a reference. owner is the run or thread that it is removed with.
func (repo *Values) Intern(t perdure.TenantID, owner string, raw []byte) perdure.Value {
	return repo.intern(t, owner, raw, InlineMax)
}

// InternShown is Intern for a log line, with the limit shownMax.
func (repo *Values) InternShown(t perdure.TenantID, owner string, raw []byte) perdure.Value {
	return repo.intern(t, owner, raw, shownMax)
}

// intern keeps a value inline up to a size, and otherwise by its hash.
func (repo *Values) intern(t perdure.TenantID, owner string, raw []byte, inline int) perdure.Value {
	text := string(raw)
	if repo.in.s.opt.Redact != nil {
		text = repo.in.s.opt.Redact(text) // before hashing: the hash of a secret would allow guessing it
	}
	repo.in.tx.bytes += len(text)
	if len(text) <= inline {
		return perdure.Value(text)
	}
	hash := Digest(text)
	addRows(&repo.blobs, blobRow{t, hash, int64(len(text)), text})
	addRows(&repo.refs, blobRefRow{t, owner, hash})
	return perdure.RefValue(hash, len(text))
}

// Share adds an owner to a value that is already stored.
func (repo *Values) Share(t perdure.TenantID, owner string, v perdure.Value) perdure.Value {
	if hash, _, ref := v.Ref(); ref {
		addRows(&repo.refs, blobRefRow{t, owner, hash})
	}
	return v
}

// drop stages the removal of an owner's large values, as far as no other owner has them. more tells
// that values are left.
func (repo *Values) drop(t perdure.TenantID, owner string) (more bool, err error) {
	var hashes []string
	bytes := int64(0)
	err = repo.in.sess.Query("SELECT r.hash, b.size FROM blob_refs r JOIN blobs b ON b.tenant=r.tenant "+
		"AND b.hash=r.hash WHERE r.tenant=? AND r.owner=? ORDER BY r.hash"+atMost,
		[]any{string(t), owner, int64(clearValues + 1)}, func(scan func(...any) error) error {
			hash, size := "", int64(0)
			if err := scan(&hash, &size); err != nil {
				return err
			}
			if bytes += size; len(hashes) == clearValues || bytes > clearBytes && len(hashes) > 0 {
				more = true
				return errEnough
			}
			hashes = append(hashes, hash)
			return nil
		})
	if err != nil && !errors.Is(err, errEnough) {
		return false, err
	}
	_ = eachPart(repo.in.dialect, hashes, func(part []string) error {
		cond, args := repo.in.dialect.anyOf("hash", part)
		repo.in.tx.Stage("DELETE FROM blob_refs WHERE tenant=? AND owner=? AND "+cond,
			append([]any{string(t), owner}, args...)...)
		return nil
	})
	repo.dropBlobs(t, hashes)
	return more, nil
}

// dropBlobs stages the removal of those values that no owner refers to any more.
func (repo *Values) dropBlobs(t perdure.TenantID, hashes []string) {
	slices.Sort(hashes)
	_ = eachPart(repo.in.dialect, slices.Compact(hashes), func(part []string) error {
		cond, args := repo.in.dialect.anyOf("hash", part)
		args = append([]any{string(t)}, args...)
		if !repo.in.dialect.ownClock {
			// A transaction that stores the same value holds a lock on its row. When the lock is
			// free, the next statement sees the new reference.
			repo.in.tx.Stage("SELECT 1 FROM blobs WHERE tenant=? AND "+cond+" ORDER BY hash FOR UPDATE", args...)
		}
		repo.in.tx.Stage("DELETE FROM blobs WHERE tenant=? AND "+cond+
			" AND NOT EXISTS (SELECT 1 FROM blob_refs r WHERE r.tenant=blobs.tenant AND r.hash=blobs.hash)", args...)
		return nil
	})
}

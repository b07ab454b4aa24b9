package store

import (
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/perdure/perdure"
)

// ChunkSize is the number of bytes of an artifact in one row. The last row of an artifact may have
// fewer.
const ChunkSize = 256 << 10

var artifactTable = register(&table[perdure.Artifact]{
	name: "artifacts", keys: []string{"tenant", "run_id", "name"},
	columns: func(c *columns, a *perdure.Artifact) {
		text(c, "tenant", &a.Tenant)
		text(c, "run_id", &a.RunID)
		text(c, "name", &a.Name)
		text(c, "hash", &a.SHA256)
		number(c, "size", &a.Size)
		text(c, "media", &a.ContentType)
		number(c, "at", &a.At)
		number(c, "attempt", &a.Attempt)
	},
})

type artifactKey struct {
	runKey
	name string
}

// A content is the upload that brought some bytes first, and the number of artifacts that were put
// with them. The removal of the bytes is guarded by uses.
type content struct {
	upload string
	uses   int64
}

type contentKey struct {
	t    perdure.TenantID
	hash string
}

// Artifacts holds files of runs. Their bytes are uploaded in chunks, and the same bytes are kept
// once per tenant.
//
// An upload begins as a removal that is due in the future (BeginUpload). Put makes it the content
// of an artifact and deletes the removal. An upload that is never completed is removed when it is
// due.
type Artifacts struct {
	in       *base
	removals *Removals
	rows     stagedOfRuns[artifactKey, perdure.Artifact]
	contents staged[contentKey, content] // written by statements of their own, not as staged rows
}

func (repo *Artifacts) open(in *base, removals *Removals) {
	repo.removals = removals
	repo.in, repo.contents.in = in, in
	openRows(&repo.rows.staged, in, artifactTable)
}

// List gives a run's artifacts, by name.
func (repo *Artifacts) List(t perdure.TenantID, run perdure.RunID) ([]perdure.Artifact, error) {
	k := runKey{t, run}
	err := artifactTable.query(repo.in.sess, "WHERE tenant=? AND run_id=?", []any{string(t), string(run)},
		func(a *perdure.Artifact) error {
			absorbOfRun(&repo.rows, artifactKey{k, a.Name}, *a, true)
			return nil
		})
	var out []perdure.Artifact
	for a := range rowsOf(&repo.rows, k) {
		out = append(out, *a)
	}
	slices.SortFunc(out, func(a, b perdure.Artifact) int { return strings.Compare(a.Name, b.Name) })
	return out, err
}

// Chunk reads the nth chunk of an artifact's bytes.
func (repo *Artifacts) Chunk(t perdure.TenantID, hash string, n int64) (data []byte, err error) {
	found := false
	err = repo.in.sess.Query("SELECT c.data FROM contents k JOIN chunks c ON c.tenant=k.tenant "+
		"AND c.upload=k.upload WHERE k.tenant=? AND k.hash=? AND c.n=?",
		[]any{string(t), hash, n}, func(scan func(...any) error) error {
			found = true
			return scan(&data)
		})
	if err == nil && !found {
		err = io.ErrUnexpectedEOF
	}
	return data, err
}

// Uploading tells until when an upload is kept. It is zero if there is none.
func (repo *Artifacts) Uploading(t perdure.TenantID, id string) (until perdure.Instant, err error) {
	err = repo.in.sess.Query("SELECT due_at FROM removals WHERE tenant=? AND kind='upload' AND id=?",
		[]any{string(t), id}, func(scan func(...any) error) error { return scan(&until) })
	return until, err
}

// UploadsOf gives the uploads with the bytes of a run's artifacts.
func (repo *Artifacts) UploadsOf(t perdure.TenantID, run perdure.RunID) (out []string, err error) {
	err = repo.in.sess.Query("SELECT DISTINCT k.upload FROM artifacts a JOIN contents k ON k.tenant=a.tenant "+
		"AND k.hash=a.hash WHERE a.tenant=? AND a.run_id=?",
		[]any{string(t), string(run)}, func(scan func(...any) error) error {
			var id string
			err := scan(&id)
			out = append(out, id)
			return err
		})
	return out, err
}

// content gives the row of some bytes, including the changes of the batch. It is read before the
// artifacts that have the bytes. If another node adds an artifact later, uses changes, and the
// removal is decided again.
func (repo *Artifacts) content(k contentKey) (c content, ok bool, err error) {
	if c, ok, known := getRow(&repo.contents, k); known {
		return c, ok, nil
	}
	err = repo.in.sess.Query("SELECT upload, uses FROM contents WHERE tenant=? AND hash=?", []any{string(k.t), k.hash},
		func(scan func(...any) error) error {
			ok = true
			return scan(&c.upload, &c.uses)
		})
	if err == nil {
		absorbRow(&repo.contents, k, c, ok)
	}
	return c, ok, err
}

// BeginUpload stages an upload, as something to be removed at an instant unless it becomes an
// artifact.
func (repo *Artifacts) BeginUpload(t perdure.TenantID, id string, until perdure.Instant) {
	addRows(&repo.removals.rows, removal{Tenant: t, Kind: RemoveUpload, ID: id, Due: until})
}

// AddChunk stages a chunk of an upload, provided that the upload still exists. Otherwise nothing
// would ever remove the chunk.
func (repo *Artifacts) AddChunk(t perdure.TenantID, id string, n int64, data []byte) {
	lock := ""
	if !repo.in.dialect.ownClock {
		lock = " FOR KEY SHARE" // a removal waits for this transaction, and then sees the chunk
	}
	addRows(&repo.in.tx.later, statement{"INSERT INTO chunks (tenant,upload,n,data) " +
		"SELECT tenant, id, CAST(? AS BIGINT), CAST(? AS " + repo.in.dialect.schema.Replace("{bytes}") +
		") FROM removals WHERE tenant=? AND kind='upload' AND id=? AND due_at>?" + lock +
		" ON CONFLICT (tenant,upload,n) DO UPDATE SET data=excluded.data",
		[]any{n, data, string(t), id, int64(repo.in.Now)}, 1})
}

// EndUpload stages the removal of an upload by the next sweep.
func (repo *Artifacts) EndUpload(t perdure.TenantID, id string) {
	addRows(&repo.in.tx.later, statement{"UPDATE removals SET due_at=? WHERE tenant=? AND kind='upload' AND id=?",
		[]any{int64(repo.in.Now), string(t), id}, anyNumber})
}

// Put stages an artifact with the bytes of an upload. Bytes that are already stored are not kept
// twice.
func (repo *Artifacts) Put(a perdure.Artifact, upload string) error {
	k := contentKey{a.Tenant, a.SHA256}
	c, ok, err := repo.content(k)
	if err != nil {
		return err
	}
	if !ok {
		c = content{upload: upload}
	}
	c.uses++
	putRow(&repo.contents, k, c)
	putOfRun(&repo.rows, artifactKey{runKey{a.Tenant, a.RunID}, a.Name}, a)
	const ours = "EXISTS (SELECT 1 FROM contents WHERE tenant=? AND hash=? AND upload=?)"
	addRows(&repo.in.tx.later, statement{"INSERT INTO contents (tenant,hash,size,upload,uses) VALUES (?,?,?,?,1) " +
		"ON CONFLICT (tenant,hash) DO UPDATE SET uses=contents.uses+1",
		[]any{string(a.Tenant), a.SHA256, a.Size, upload}, 1},
		statement{"DELETE FROM removals WHERE tenant=? AND kind='upload' AND id=? AND " + ours,
			[]any{string(a.Tenant), upload, string(a.Tenant), a.SHA256, upload}, anyNumber})
	repo.EndUpload(a.Tenant, upload)
	return nil
}

// DropContents stages the removal of bytes that no artifact has any more. but selects artifacts
// that the caller removes, which do not count. If another upload brings the same bytes now, uses
// changes, and this batch is decided again.
func (repo *Artifacts) DropContents(t perdure.TenantID, hashes []string, but func(perdure.Artifact) bool) error {
	slices.Sort(hashes)
	for _, hash := range slices.Compact(hashes) {
		k := contentKey{t, hash}
		c, ok, err := repo.content(k)
		if err != nil {
			return err
		}
		wanted, err := repo.has(k, but)
		if err != nil {
			return err
		}
		if wanted || !ok {
			continue
		}
		dropRow(&repo.contents, k)
		// After what the batch has staged for the same bytes, which may have come with it.
		addRows(&repo.in.tx.later, statement{"DELETE FROM contents WHERE tenant=? AND hash=? AND uses=?",
			[]any{string(t), hash, c.uses}, 1},
			statement{"INSERT INTO removals (tenant,kind,id,due_at,lines) VALUES (?,?,?,?,0) " +
				"ON CONFLICT (tenant,kind,id) DO UPDATE SET due_at=excluded.due_at",
				[]any{string(t), RemoveUpload, c.upload, int64(repo.in.Now)}, 1})
	}
	return nil
}

// has tells whether an artifact has some bytes, not counting those that but selects.
func (repo *Artifacts) has(bytes contentKey, but func(perdure.Artifact) bool) (has bool, err error) {
	for _, k := range repo.rows.dirty {
		if known := repo.rows.byKey[k]; known.exists && k.t == bytes.t && known.val.SHA256 == bytes.hash {
			return true, nil
		}
	}
	err = artifactTable.query(repo.in.sess, "WHERE tenant=? AND hash=?", []any{string(bytes.t), bytes.hash},
		func(a *perdure.Artifact) error {
			if cur, ok, known := getRow(&repo.rows.staged, artifactKey{runKey{a.Tenant, a.RunID}, a.Name}); known &&
				(!ok || cur.SHA256 != bytes.hash) {
				return nil
			}
			if has = !but(*a); has {
				return errEnough
			}
			return nil
		})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return has, err
}

// dropOf stages the removal of a run's artifacts, and of bytes that no other artifact has.
func (repo *Artifacts) dropOf(t perdure.TenantID, run perdure.RunID) error {
	list, err := repo.List(t, run)
	if err != nil || len(list) == 0 {
		return err
	}
	hashes := make([]string, len(list))
	for i, a := range list {
		hashes[i] = a.SHA256
	}
	repo.in.tx.Stage("DELETE FROM artifacts WHERE tenant=? AND run_id=?", string(t), string(run))
	return repo.DropContents(t, hashes, func(a perdure.Artifact) bool { return a.RunID == run })
}

package store

import (
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/perdure/perdure"
)

// ChunkSize is how many bytes of an artifact one row holds; the last one of an artifact may hold less.
const ChunkSize = 256 << 10

var artifactTable = &table[perdure.Artifact]{
	name: "artifacts", keys: []string{"tenant", "run_id", "name"},
	cols: []string{"tenant", "run_id", "name", "hash", "size", "media", "at", "attempt"},
	bind: func(a *perdure.Artifact) []any {
		return []any{string(a.Tenant), string(a.RunID), a.Name, a.SHA256, a.Size, a.ContentType, int64(a.At), int64(a.Attempt)}
	},
	scan: func(a *perdure.Artifact) []any {
		return []any{&a.Tenant, &a.RunID, &a.Name, &a.SHA256, &a.Size, &a.ContentType, &a.At, &a.Attempt}
	},
}

type artifactKey struct {
	runKey
	name string
}

// A content is who brought some bytes first, and how often they were brought. Uses guards their removal.
type content struct {
	upload string
	uses   int64
}

type contentKey struct {
	t    perdure.TenantID
	hash string
}

// Artifacts are files of runs. Their bytes are uploads in parts; the same bytes are kept once per tenant.
type Artifacts struct {
	in       *Records
	rows     stagedOfRuns[artifactKey, perdure.Artifact]
	contents staged[contentKey, content] // written by statements of their own
}

func (repo *Artifacts) open(in *Records) {
	repo.in, repo.contents.in = in, in
	repo.rows.over(in, artifactTable)
}

// List gives a run's artifacts, by name.
func (repo *Artifacts) List(t perdure.TenantID, run perdure.RunID) ([]perdure.Artifact, error) {
	k := runKey{t, run}
	err := artifactTable.query(repo.in.sess, "WHERE tenant=? AND run_id=?", []any{string(t), string(run)}, func(a *perdure.Artifact) error {
		repo.rows.absorb(artifactKey{k, a.Name}, *a, true)
		return nil
	})
	var out []perdure.Artifact
	for a := range repo.rows.of(k) {
		out = append(out, *a)
	}
	slices.SortFunc(out, func(a, b perdure.Artifact) int { return strings.Compare(a.Name, b.Name) })
	return out, err
}

// Chunk reads a part of an artifact's bytes.
func (repo *Artifacts) Chunk(t perdure.TenantID, hash string, n int64) (data []byte, err error) {
	found := false
	err = repo.in.sess.Query("SELECT c.data FROM contents k JOIN chunks c ON c.tenant=k.tenant AND c.upload=k.upload WHERE k.tenant=? AND k.hash=? AND c.n=?",
		[]any{string(t), hash, n}, func(scan func(...any) error) error {
			found = true
			return scan(&data)
		})
	if err == nil && !found {
		err = io.ErrUnexpectedEOF
	}
	return data, err
}

// Uploading tells until when an upload is kept, or zero if there is none.
func (repo *Artifacts) Uploading(t perdure.TenantID, id string) (until perdure.Instant, err error) {
	err = repo.in.sess.Query("SELECT due_at FROM removals WHERE tenant=? AND kind='upload' AND id=?", []any{string(t), id},
		func(scan func(...any) error) error { return scan(&until) })
	return until, err
}

// UploadsOf names the uploads that brought the bytes of a run's artifacts.
func (repo *Artifacts) UploadsOf(t perdure.TenantID, run perdure.RunID) (out []string, err error) {
	err = repo.in.sess.Query("SELECT DISTINCT k.upload FROM artifacts a JOIN contents k ON k.tenant=a.tenant AND k.hash=a.hash WHERE a.tenant=? AND a.run_id=?",
		[]any{string(t), string(run)}, func(scan func(...any) error) error {
			var id string
			err := scan(&id)
			out = append(out, id)
			return err
		})
	return out, err
}

// content gives the row of some bytes, with what the batch has staged for it. It is read before the artifacts that have the
// bytes: an artifact that comes later raises uses, and a removal that was decided without it is decided again.
func (repo *Artifacts) content(k contentKey) (c content, ok bool, err error) {
	if c, ok, known := repo.contents.get(k); known {
		return c, ok, nil
	}
	err = repo.in.sess.Query("SELECT upload, uses FROM contents WHERE tenant=? AND hash=?", []any{string(k.t), k.hash},
		func(scan func(...any) error) error {
			ok = true
			return scan(&c.upload, &c.uses)
		})
	if err == nil {
		repo.contents.absorb(k, c, ok)
	}
	return c, ok, err
}

// BeginUpload stages an upload. Until it is an artifact's content, it is something to be removed, from an instant on.
func (repo *Artifacts) BeginUpload(t perdure.TenantID, id string, until perdure.Instant) {
	repo.in.Removals.rows.add(removal{Tenant: t, Kind: RemoveUpload, ID: id, Due: until})
}

// AddChunk stages a part of an upload, which must still be one: nobody would remove it otherwise.
func (repo *Artifacts) AddChunk(t perdure.TenantID, id string, n int64, data []byte) {
	lock := ""
	if !repo.in.dialect.ownClock {
		lock = " FOR KEY SHARE" // whoever removes the upload waits for this, and then sees it
	}
	repo.in.tx.later.add(statement{"INSERT INTO chunks (tenant,upload,n,data) SELECT tenant, id, CAST(? AS BIGINT), CAST(? AS " + repo.in.dialect.schema.Replace("{bytes}") + ") FROM removals " +
		"WHERE tenant=? AND kind='upload' AND id=? AND due_at>?" + lock + " ON CONFLICT (tenant,upload,n) DO UPDATE SET data=excluded.data",
		[]any{n, data, string(t), id, int64(repo.in.Now)}, 1})
}

// EndUpload gives an upload up: it goes with the next sweep.
func (repo *Artifacts) EndUpload(t perdure.TenantID, id string) {
	repo.in.tx.later.add(statement{"UPDATE removals SET due_at=? WHERE tenant=? AND kind='upload' AND id=?", []any{int64(repo.in.Now), string(t), id}, anyNumber})
}

// Put stages an artifact whose bytes an upload has brought. Bytes that are there already are not kept twice.
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
	repo.contents.put(k, c)
	repo.rows.put(artifactKey{runKey{a.Tenant, a.RunID}, a.Name}, a)
	const ours = "EXISTS (SELECT 1 FROM contents WHERE tenant=? AND hash=? AND upload=?)"
	repo.in.tx.later.add(statement{"INSERT INTO contents (tenant,hash,size,upload,uses) VALUES (?,?,?,?,1) ON CONFLICT (tenant,hash) DO UPDATE SET uses=contents.uses+1",
		[]any{string(a.Tenant), a.SHA256, a.Size, upload}, 1},
		statement{"DELETE FROM removals WHERE tenant=? AND kind='upload' AND id=? AND " + ours,
			[]any{string(a.Tenant), upload, string(a.Tenant), a.SHA256, upload}, anyNumber})
	repo.EndUpload(a.Tenant, upload)
	return nil
}

// DropContents has bytes removed that no artifact has any more, but for those that the batch takes away from these runs' artifacts.
// An upload that brings the same bytes at this moment raises uses, and this batch is decided again.
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
		repo.contents.drop(k)
		// In this order, behind what the batch has staged about the same bytes: they may have come with it.
		repo.in.tx.later.add(statement{"DELETE FROM contents WHERE tenant=? AND hash=? AND uses=?", []any{string(t), hash, c.uses}, 1},
			statement{"INSERT INTO removals (tenant,kind,id,due_at,lines) VALUES (?,?,?,?,0) ON CONFLICT (tenant,kind,id) DO UPDATE SET due_at=excluded.due_at",
				[]any{string(t), RemoveUpload, c.upload, int64(repo.in.Now)}, 1})
	}
	return nil
}

// has tells whether an artifact has some bytes, not counting those that the caller takes away.
func (repo *Artifacts) has(bytes contentKey, but func(perdure.Artifact) bool) (has bool, err error) {
	for _, k := range repo.rows.dirty {
		if sl := repo.rows.byKey[k]; sl.exists && k.t == bytes.t && sl.val.SHA256 == bytes.hash {
			return true, nil
		}
	}
	err = artifactTable.query(repo.in.sess, "WHERE tenant=? AND hash=?", []any{string(bytes.t), bytes.hash}, func(a *perdure.Artifact) error {
		if cur, ok, known := repo.rows.get(artifactKey{runKey{a.Tenant, a.RunID}, a.Name}); known && (!ok || cur.SHA256 != bytes.hash) {
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

// dropOf removes a run's artifacts. Bytes that are nobody else's are on their way out then.
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

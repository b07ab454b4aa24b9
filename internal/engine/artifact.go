package engine

import (
	"context"
	"io"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/store"
)

// uploadWithin is how long an upload may take. After that, retention removes its bytes. No artifact
// is created in the last minute before, so that bytes in use are not removed.
const (
	uploadWithin = time.Hour
	lastMinute   = time.Minute
)

// BeginArtifact opens an upload for a leased run. It refuses at once an artifact that would exceed
// a limit.
type BeginArtifact struct {
	Tenant      perdure.TenantID
	RunID       perdure.RunID
	Epoch       int64
	Name        string
	ContentType string
	// Size is zero if it is not known yet.
	Size int64

	Upload string
}

func (op *BeginArtifact) Needs() []store.Ref { return refs(op.Tenant, op.RunID) }

// Lane keeps artifact bytes apart from work on runs.
func (*BeginArtifact) Lane() store.Lane { return store.LaneBulk }

// Do opens the upload.
func (op *BeginArtifact) Do(tx *Tx) (err error) {
	if err := perdure.CheckArtifactName(op.Name); err != nil {
		return err
	}
	if op.ContentType, err = perdure.CheckContentType(op.ContentType); err != nil {
		return err
	}
	r, err := tx.run(op.Tenant, op.RunID)
	if err != nil {
		return err
	}
	if err := holds(&r, op.Epoch); err != nil {
		return err
	}
	have, err := tx.DB.Artifacts.List(op.Tenant, op.RunID)
	if err != nil {
		return err
	}
	if err := artifactFits(tx, have, op.Name, op.Size); err != nil {
		return err
	}
	if err := tx.DB.RefuseIfFull(); err != nil {
		return err
	}
	if op.Upload, err = tx.newID(); err != nil {
		return err
	}
	tx.DB.Artifacts.BeginUpload(op.Tenant, op.Upload, tx.Now.Add(uploadWithin))
	return nil
}

// artifactFits checks the limits of one artifact and of all artifacts of a run.
func artifactFits(tx *Tx, have []perdure.Artifact, name string, size int64) error {
	p, others, total := tx.Policy(), 0, size
	for _, a := range have {
		if a.Name != name {
			others++
			total += a.Size
		}
	}
	switch {
	case size > p.ArtifactMaxBytes:
		return perdure.Errorf(perdure.CodeTooLarge, "an artifact has at most %d bytes", p.ArtifactMaxBytes)
	case total > p.ArtifactTotalBytes:
		return perdure.Errorf(perdure.CodeTooLarge, "the artifacts of a run have at most %d bytes together",
			p.ArtifactTotalBytes)
	case others >= perdure.MaxArtifacts:
		return perdure.Errorf(perdure.CodeTooLarge, "a run has at most %d artifacts", perdure.MaxArtifacts)
	}
	return nil
}

// AddChunk stores a chunk of an upload. All chunks but the last have store.ChunkSize bytes.
type AddChunk struct {
	Tenant perdure.TenantID
	Upload string
	N      int64
	Data   []byte
}

func (*AddChunk) Needs() []store.Ref { return nil }

func (*AddChunk) Lane() store.Lane { return store.LaneBulk }

// Do stores the chunk.
func (op *AddChunk) Do(tx *Tx) error {
	if err := checkUpload(tx, op.Tenant, op.Upload); err != nil {
		return err
	}
	if err := tx.DB.RefuseIfFull(); err != nil {
		return err
	}
	tx.DB.Artifacts.AddChunk(op.Tenant, op.Upload, op.N, op.Data)
	return nil
}

// checkUpload refuses an upload that has taken too long.
func checkUpload(tx *Tx, t perdure.TenantID, id string) error {
	until, err := tx.DB.Artifacts.Uploading(t, id)
	if err == nil && until < tx.Now.Add(lastMinute) {
		err = perdure.Errorf(perdure.CodeUnavailable, "the upload took too long: send it again")
	}
	return err
}

// EndUpload drops an upload that does not become an artifact.
type EndUpload struct {
	Tenant perdure.TenantID
	Upload string
}

func (*EndUpload) Needs() []store.Ref { return nil }

func (*EndUpload) Lane() store.Lane { return store.LaneBulk }

// Do drops the upload.
func (op *EndUpload) Do(tx *Tx) error {
	tx.DB.Artifacts.EndUpload(op.Tenant, op.Upload)
	return nil
}

// PutArtifact turns an upload into a visible artifact. It counts as a heartbeat of the run's
// holder. The same name with the same bytes changes nothing; with other bytes the artifact is
// replaced.
type PutArtifact struct {
	Tenant      perdure.TenantID
	RunID       perdure.RunID
	Epoch       int64
	Name        string
	ContentType string
	Size        int64
	SHA256      string
	Upload      string

	Artifact perdure.Artifact
	// Created is set if there was no artifact of that name.
	Created bool
}

func (op *PutArtifact) Needs() []store.Ref { return refs(op.Tenant, op.RunID) }

func (*PutArtifact) Lane() store.Lane { return store.LaneBulk }

// Do creates or replaces the artifact.
func (op *PutArtifact) Do(tx *Tx) error {
	op.Created = false
	r, err := tx.run(op.Tenant, op.RunID)
	if err != nil {
		return err
	}
	if err := holds(&r, op.Epoch); err != nil {
		return err
	}
	// Writing the run's row makes concurrent calls for the run conflict, so that each counts the
	// artifacts of the others.
	if err := heartbeat(tx, &r, BeatOf{Lease: Lease{RunID: op.RunID, Epoch: op.Epoch}}); err != nil {
		return err
	}
	if err := checkUpload(tx, op.Tenant, op.Upload); err != nil {
		return err
	}
	have, err := tx.DB.Artifacts.List(op.Tenant, op.RunID)
	if err != nil {
		return err
	}
	if err := artifactFits(tx, have, op.Name, op.Size); err != nil {
		return err
	}
	op.Artifact = perdure.Artifact{Tenant: op.Tenant, RunID: op.RunID, Name: op.Name, Size: op.Size,
		SHA256: op.SHA256, ContentType: op.ContentType,
		At: tx.Now, Attempt: r.Attempt}
	op.Created = true
	for _, old := range have {
		if old.Name != op.Name {
			continue
		}
		if op.Created = false; old.SHA256 == op.SHA256 && old.ContentType == op.ContentType {
			op.Artifact = old
			tx.DB.Artifacts.EndUpload(op.Tenant, op.Upload)
			return nil
		}
		if err := tx.DB.Artifacts.Put(op.Artifact, op.Upload); err != nil || old.SHA256 == op.SHA256 {
			return err
		}
		return tx.DB.Artifacts.DropContents(op.Tenant, []string{old.SHA256},
			func(perdure.Artifact) bool { return false })
	}
	return tx.DB.Artifacts.Put(op.Artifact, op.Upload)
}

// ChunkSize is the size of a stored chunk in bytes. The last chunk may be shorter.
const ChunkSize = store.ChunkSize

// Artifacts lists the artifacts of a run.
func (q Runs) Artifacts(
	ctx context.Context, t perdure.TenantID, id perdure.RunID,
) (list []perdure.Artifact, err error) {
	err = q.e.store.View(ctx, func(v *store.View) error {
		if _, ok, err := v.Runs.Get(t, id); err != nil {
			return err
		} else if !ok {
			return notFound("run")
		}
		list, err = v.Artifacts.List(t, id)
		return err
	})
	return list, err
}

// Artifact opens an artifact of a run for reading.
func (q Runs) Artifact(
	ctx context.Context, t perdure.TenantID, id perdure.RunID, name string,
) (*ArtifactReader, error) {
	list, err := q.Artifacts(ctx, t, id)
	if err != nil {
		return nil, err
	}
	for _, a := range list {
		if a.Name == name {
			return &ArtifactReader{Artifact: a, e: q.e, ctx: ctx, have: -1}, nil
		}
	}
	return nil, notFound("artifact")
}

// An ArtifactReader reads an artifact's bytes. It reads one chunk per snapshot, so that a slow
// reader holds no transaction open.
type ArtifactReader struct {
	perdure.Artifact
	// Err is the first error. Bytes that were replaced or removed meanwhile can't be read any
	// further.
	Err error

	e   *Engine
	ctx context.Context
	at  int64
	// have is the number of the chunk in memory.
	have  int64
	chunk []byte
}

// Loads tells whether the next Read reads a chunk from the store.
func (r *ArtifactReader) Loads() bool {
	return r.Err == nil && r.at < r.Size && r.at/store.ChunkSize != r.have
}

// Read implements io.Reader.
func (r *ArtifactReader) Read(p []byte) (int, error) {
	if r.Err != nil {
		return 0, r.Err
	}
	if r.at >= r.Size {
		return 0, io.EOF
	}
	if n := r.at / store.ChunkSize; n != r.have {
		r.Err = r.e.store.View(r.ctx, func(v *store.View) (err error) {
			r.chunk, err = v.Artifacts.Chunk(r.Tenant, r.SHA256, n)
			return err
		})
		if r.Err == nil && int64(len(r.chunk)) != min(store.ChunkSize, r.Size-n*store.ChunkSize) {
			r.Err = io.ErrUnexpectedEOF
		}
		if r.Err != nil {
			return 0, r.Err
		}
		r.have = n
	}
	n := copy(p, r.chunk[r.at%store.ChunkSize:])
	r.at += int64(n)
	return n, nil
}

// Seek implements io.Seeker.
func (r *ArtifactReader) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += r.at
	case io.SeekEnd:
		offset += r.Size
	}
	if offset < 0 {
		return 0, perdure.Errorf(perdure.CodeInvalid, "before the beginning")
	}
	r.at = offset
	return offset, nil
}

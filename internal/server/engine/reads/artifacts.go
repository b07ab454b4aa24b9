package reads

import (
	"context"
	"io"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// Artifacts lists the artifacts of a run.
func (q Runs) Artifacts(
	ctx context.Context, t perdure.TenantID, id perdure.RunID,
) (list []perdure.Artifact, err error) {
	err = q.e.Store().View(ctx, func(v *store.View) error {
		if _, ok, err := v.Runs.Get(t, id); err != nil {
			return err
		} else if !ok {
			return kernel.NotFound("run")
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
	return nil, kernel.NotFound("artifact")
}

// An ArtifactReader reads an artifact's bytes. It reads one chunk per snapshot, so that a slow
// reader holds no transaction open.
type ArtifactReader struct {
	perdure.Artifact
	// Err is the first error. Bytes that were replaced or removed meanwhile can't be read any
	// further.
	Err error

	e   *kernel.Engine
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
		r.Err = r.e.Store().View(r.ctx, func(v *store.View) (err error) {
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

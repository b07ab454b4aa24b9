package life

import (
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
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

func (op *BeginArtifact) Needs() []store.Ref { return kernel.Refs(op.Tenant, op.RunID) }

// Lane keeps artifact bytes apart from work on runs.
func (*BeginArtifact) Lane() store.Lane { return store.LaneBulk }

// Do opens the upload.
func (op *BeginArtifact) Do(tx *kernel.Tx) (err error) {
	if err := perdure.CheckArtifactName(op.Name); err != nil {
		return err
	}
	if op.ContentType, err = perdure.CheckContentType(op.ContentType); err != nil {
		return err
	}
	r, err := tx.Run(op.Tenant, op.RunID)
	if err != nil {
		return err
	}
	if err := Holds(&r, op.Epoch); err != nil {
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
	if op.Upload, err = tx.NewID(); err != nil {
		return err
	}
	tx.DB.Artifacts.BeginUpload(op.Tenant, op.Upload, tx.Now.Add(uploadWithin))
	return nil
}

// artifactFits checks the limits of one artifact and of all artifacts of a run.
func artifactFits(tx *kernel.Tx, have []perdure.Artifact, name string, size int64) error {
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
func (op *AddChunk) Do(tx *kernel.Tx) error {
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
func checkUpload(tx *kernel.Tx, t perdure.TenantID, id string) error {
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
func (op *EndUpload) Do(tx *kernel.Tx) error {
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

func (op *PutArtifact) Needs() []store.Ref { return kernel.Refs(op.Tenant, op.RunID) }

func (*PutArtifact) Lane() store.Lane { return store.LaneBulk }

// Do creates or replaces the artifact.
func (op *PutArtifact) Do(tx *kernel.Tx) error {
	op.Created = false
	r, err := tx.Run(op.Tenant, op.RunID)
	if err != nil {
		return err
	}
	if err := Holds(&r, op.Epoch); err != nil {
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

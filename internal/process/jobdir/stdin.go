package jobdir

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// StdinFile is the file of a job that has the standard input of its command.
const StdinFile = ".stdin"

// MaxStdin bounds the standard input that is kept.
const MaxStdin = 16 << 20

// A Staged is standard input that is on the disk, and whose run does not exist yet. It is in a folder of
// its own among those of the jobs. If its maker is killed, clean-up takes it for the folder of a job
// that nobody knows, and removes it.
type Staged struct{ dir Dir }

// StageStdin writes standard input to the workspace. It is on the disk when the function returns.
func StageStdin(workspace string, b []byte) (_ *Staged, err error) {
	if len(b) > MaxStdin {
		return nil, fmt.Errorf("the standard input has more than %d MiB", MaxStdin>>20)
	}
	d, err := Of(workspace, "stdin-"+rand.Text())
	if err != nil {
		return nil, err
	}
	if err := d.Create(); err != nil {
		return nil, err
	}
	s := &Staged{d}
	defer func() {
		if err != nil {
			s.Remove()
		}
	}()
	f, err := os.OpenFile(d.file(StdinFile), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	return s, syncFolder(d.Path)
}

// MoveTo makes it the standard input of a run, whose folder does not exist yet.
func (s *Staged) MoveTo(id string) error {
	d, err := Of(filepath.Dir(filepath.Dir(s.dir.Path)), id)
	if err != nil {
		return err
	}
	if err := os.Rename(s.dir.Path, d.Path); err != nil {
		return err
	}
	s.dir = d
	return syncFolder(filepath.Dir(d.Path))
}

// Remove deletes it.
func (s *Staged) Remove() { _ = s.dir.Remove() }

// syncFolder makes the names of a folder durable.
func syncFolder(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// OpenStdin opens the standard input of the job's command, which has so many bytes.
func (d Dir) OpenStdin(size int64) (*os.File, error) {
	f, err := d.openPlain(StdinFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("the standard input is no longer there: %w", err)
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && info.Size() != size {
		err = &BadFile{d.file(StdinFile), fmt.Sprintf("has %d bytes, and not %d", info.Size(), size)}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// ReadStdin returns the standard input of the job's command, which has so many bytes.
func (d Dir) ReadStdin(size int64) ([]byte, error) {
	f, err := d.OpenStdin(size)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := make([]byte, size)
	if _, err := f.ReadAt(b, 0); err != nil {
		return nil, err
	}
	return b, nil
}

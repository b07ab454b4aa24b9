package jobdir

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Names of the files of a job.
const (
	SentinelFile = ".sentinel.json"
	LockFile     = ".lock"
	ResultFile   = ".result.json"
	LogFile      = "runner.log"
)

// ownFiles are all files of a job that are not the command's.
var ownFiles = map[string]bool{
	SentinelFile: true, SentinelFile + tempSuffix: true, LockFile: true, ResultFile: true,
	ResultFile + tempSuffix: true, TerminalFile: true,
	LogFile: true, StdinFile: true, "stdout.log": true, "stderr.log": true,
}

// Sizes beyond which a file is not read.
const (
	maxSentinel = 64 << 10
	maxResult   = 4 << 20
)

// jobsFolder is the folder of a workspace that has a folder for each job.
const jobsFolder = "jobs"

// isJobID tells whether a text can be a job's id: that of a run, as a file name. It has letters, digits,
// and after the first of them hyphens and underscores.
func isJobID(id string) bool {
	if len(id) == 0 || len(id) > 128 {
		return false
	}
	for i := range len(id) {
		c := id[i]
		alphanumeric := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !alphanumeric && (i == 0 || c != '-' && c != '_') {
			return false
		}
	}
	return true
}

// A Dir is the folder of a job.
type Dir struct {
	// ID is the id of the job, and of its run.
	ID string
	// Path is absolute.
	Path string
}

// Of returns the folder of a job, which need not exist.
func Of(workspace, id string) (Dir, error) {
	if !isJobID(id) {
		return Dir{}, fmt.Errorf("%q is no id of a job", id)
	}
	path, err := filepath.Abs(filepath.Join(workspace, jobsFolder, id))
	return Dir{ID: id, Path: path}, err
}

// Create makes the folder, readable by its owner only.
func (d Dir) Create() error { return os.MkdirAll(d.Path, 0o700) }

// Remove deletes the folder with all that is in it. It does not follow links.
func (d Dir) Remove() error { return os.RemoveAll(d.Path) }

// file is the path of one of the job's files.
func (d Dir) file(name string) string { return filepath.Join(d.Path, name) }

// A BadFile is a file that is not what its name says: a link, a pipe, too large, torn, or not
// signed by the job's runner.
type BadFile struct {
	Path, Reason string
}

func (e *BadFile) Error() string { return e.Path + ": " + e.Reason }

// openPlain opens a regular file of the job for reading. It follows no link, neither to the folder
// nor to the file, and does not block on a pipe.
func (d Dir) openPlain(name string) (*os.File, error) {
	folder, err := unix.Open(d.Path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, d.openError("", err)
	}
	defer unix.Close(folder)
	fd, err := unix.Openat(folder, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, d.openError(name, err)
	}
	f := os.NewFile(uintptr(fd), d.file(name))
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &BadFile{d.file(name), "is no regular file"}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// openError says what is wrong with a file that can't be opened. One that is not there is an
// fs.ErrNotExist.
func (d Dir) openError(name string, err error) error {
	path := d.file(name)
	switch {
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EMLINK):
		return &BadFile{path, "is a link"}
	case errors.Is(err, unix.ENOTDIR):
		return &BadFile{path, "is no folder"}
	case errors.Is(err, unix.ENXIO):
		return &BadFile{path, "is no regular file"}
	}
	return &fs.PathError{Op: "open", Path: path, Err: err}
}

// read returns the contents of one of the job's files, if it is not larger than limit.
func (d Dir) read(name string, limit int64) ([]byte, error) {
	f, err := d.openPlain(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = &BadFile{d.file(name), fmt.Sprintf("is larger than %d bytes", limit)}
	}
	return b, err
}

// Jobs calls a function for each entry of the workspace's folder of jobs, at most limit of them, in
// no order. ok is false for an entry that can't be the folder of a job. A workspace that does not
// exist has no jobs.
func Jobs(workspace string, limit int, each func(d Dir, ok bool)) (more bool, err error) {
	root, err := filepath.Abs(filepath.Join(workspace, jobsFolder))
	if err != nil {
		return false, err
	}
	f, err := os.Open(root)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	for n := 0; ; {
		entries, err := f.ReadDir(1024)
		for _, e := range entries {
			if n++; n > limit {
				return true, nil
			}
			// A workspace may have 100 000 folders: no pattern is matched, and no path cleaned.
			d := Dir{ID: e.Name(), Path: root + string(filepath.Separator) + e.Name()}
			each(d, e.IsDir() && isJobID(d.ID))
		}
		if err == io.EOF {
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
}

// HasData tells whether the folder has anything beside our own files: something that the command left.
func (d Dir) HasData() bool {
	f, err := os.Open(d.Path)
	if err != nil {
		return false
	}
	defer f.Close()
	for {
		names, err := f.Readdirnames(256)
		for _, n := range names {
			if !ownFiles[n] {
				return true
			}
		}
		if err != nil {
			return false
		}
	}
}

// Names of folders beside that of the jobs.
const (
	asideFolder   = "set-aside"
	removedFolder = "removed"
)

// maxAside bounds the files that are set aside. Those beyond it stay where they are.
const maxAside = 1000

// SetAside moves a file, a link or a folder of the workspace to {workspace}/set-aside, where it is
// not looked at again, and returns its new path. It follows no link out of the workspace.
func SetAside(workspace, path string) (string, error) {
	at, err := filepath.Abs(workspace)
	if err != nil {
		return "", err
	}
	from, err := filepath.Rel(at, path)
	if err != nil {
		return "", err
	}
	root, err := os.OpenRoot(at)
	if err != nil {
		return "", err
	}
	defer root.Close()
	if err := root.MkdirAll(asideFolder, 0o700); err != nil {
		return "", err
	}
	name := filepath.Base(filepath.Dir(path)) + "." + filepath.Base(path)
	for n := 0; n < maxAside; n++ {
		target := filepath.Join(asideFolder, name)
		if n > 0 {
			target = fmt.Sprintf("%s.%d", target, n)
		}
		if _, err := root.Lstat(target); errors.Is(err, fs.ErrNotExist) {
			return filepath.Join(at, target), root.Rename(from, target)
		}
	}
	return "", fmt.Errorf("%s has %d files of the name %s", filepath.Join(at, asideFolder), maxAside, name)
}

// AsideFull tells whether so much was set aside that nothing more is.
func AsideFull(workspace string) bool {
	f, err := os.Open(filepath.Join(workspace, asideFolder))
	if err != nil {
		return false
	}
	defer f.Close()
	names, _ := f.Readdirnames(maxAside)
	return len(names) >= maxAside
}

// Discard takes a job's folder out of the workspace's jobs, in one step. [Empty] then deletes it. It
// follows no link out of the workspace.
func Discard(workspace, id string) error {
	if !isJobID(id) {
		return fmt.Errorf("%q is no id of a job", id)
	}
	root, err := os.OpenRoot(workspace)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := root.MkdirAll(removedFolder, 0o700); err != nil {
		return err
	}
	to := filepath.Join(removedFolder, id)
	if _, err := root.Lstat(to); err == nil {
		if err := root.RemoveAll(to); err != nil {
			return err
		}
	}
	return root.Rename(filepath.Join(jobsFolder, id), to)
}

// Empty deletes what was discarded. It may take long.
func Empty(workspace string) error {
	root, err := os.OpenRoot(workspace)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	return root.RemoveAll(removedFolder)
}

// Check tells whether the workspace's folder of jobs can be used: it is a folder, or not there yet. A
// link in its place could lead anywhere.
func Check(workspace string) error {
	path := filepath.Join(workspace, jobsFolder)
	info, err := os.Lstat(path)
	if err == nil && !info.IsDir() {
		err = &BadFile{path, "is no folder"}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Has tells whether the folder has an entry of that name, of whatever type.
func (d Dir) Has(name string) bool {
	_, err := os.Lstat(d.file(name))
	return err == nil
}

// Changed returns when an entry of the folder was last added, renamed or removed.
func (d Dir) Changed() (time.Time, error) {
	info, err := os.Lstat(d.Path)
	if err != nil {
		return time.Time{}, err
	}
	return info.ModTime(), nil
}

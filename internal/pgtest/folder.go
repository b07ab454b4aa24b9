package pgtest

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// prefix is how the folder of a cluster begins, in the folder for temporary files.
const prefix = "perdure-postgres-"

// A folder belongs to a process for as long as that holds its lock, which the kernel lets go however the
// process ends. The lock is a plain descriptor: an os.File would be closed once nobody refers to it, and nobody
// has to refer to a cluster that lives as long as the process.
type folder struct {
	path string
	lock int
}

// newFolder makes an empty folder, locked. It has its name only once it is locked, so that no sweep takes
// it for one that was left behind.
func newFolder(parent string) (_ *folder, err error) {
	path, err := os.MkdirTemp(parent, "new-"+prefix)
	if err != nil {
		return nil, err
	}
	f := &folder{path, -1}
	defer func() {
		if err != nil {
			f.remove()
		}
	}()
	if f.lock, err = lock(path); err != nil {
		return nil, err
	}
	named := filepath.Join(parent, strings.TrimPrefix(filepath.Base(path), "new-"))
	if err := os.Rename(path, named); err != nil {
		return nil, err
	}
	f.path = named
	return f, nil
}

// lock takes the lock of a folder, or fails if somebody has it.
func lock(path string) (int, error) {
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	if err := syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		syscall.Close(fd)
		return -1, &os.PathError{Op: "lock", Path: path, Err: err}
	}
	return fd, nil
}

// remove may be called again.
func (f *folder) remove() error {
	err := os.RemoveAll(f.path)
	if f.lock >= 0 {
		syscall.Close(f.lock)
		f.lock = -1
	}
	return err
}

// sweep removes the folders of processes that could not do so themselves. One that belongs to another user
// stays, and so does one that is in use.
func sweep(parent string) {
	left, _ := filepath.Glob(filepath.Join(parent, prefix+"*"))
	for _, path := range left {
		if fd, err := lock(path); err == nil {
			os.RemoveAll(path)
			syscall.Close(fd)
		}
	}
}

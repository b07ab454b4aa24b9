package pgtest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// memory is where Linux keeps files in memory.
const memory = "/dev/shm"

// enough is how many bytes have to be free in memory for a cluster to be kept there. All tests together
// fill less than a quarter of it.
const enough = 4 << 30

// place gives the folder in which a cluster makes its own.
func place(o Options) string {
	if o.InMemory && free(memory) >= enough {
		return memory
	}
	return os.TempDir()
}

// enoughForAll is how many bytes have to be free in memory for the files of all tests to be kept there
// too. At any time these have less than a quarter of it.
const enoughForAll = 12 << 30

// TempFolder makes a folder in memory for the temporary files of tests, where a sync costs nothing. The
// path is empty if the machine has too little memory.
func TempFolder() (path string, remove func() error, err error) {
	if free(memory) < enoughForAll {
		return "", func() error { return nil }, nil
	}
	sweep(memory)
	f, err := newFolder(memory)
	if err != nil {
		return "", nil, err
	}
	// A test that starts a cluster of its own does so as another user, in a folder below this one.
	if err := os.Chmod(f.path, 0o711); err != nil {
		return "", nil, errors.Join(err, f.remove())
	}
	return f.path, f.remove, nil
}

// free gives how many bytes a folder in memory still takes: zero, if it is none.
func free(folder string) uint64 {
	var fs unix.Statfs_t
	if err := unix.Statfs(folder, &fs); err != nil || fs.Type != unix.TMPFS_MAGIC {
		return 0
	}
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	var kib uint64
	for line := range strings.Lines(string(text)) {
		if n, _ := fmt.Sscanf(line, "MemAvailable: %d kB", &kib); n == 1 {
			break
		}
	}
	return min(kib<<10, fs.Bavail*uint64(fs.Bsize))
}

// prefix is how the name of a cluster's folder begins.
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

package jobdir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// ErrLocked means that a runner or a command holds the job's lock.
var ErrLocked = errors.New("the job is being executed by another runner")

// Lock takes the job's lock. It is held until the last copy of the file is closed: the runner passes
// one to its command, which passes it to its own children.
func (d Dir) Lock() (*os.File, error) {
	fd, err := unix.Open(d.file(LockFile),
		unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, d.openError(LockFile, err)
	}
	f := os.NewFile(uintptr(fd), d.file(LockFile))
	// A server that looks at the lock holds it for an instant.
	for n := 0; ; n++ {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) || n == 20 {
			f.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil, ErrLocked
			}
			return nil, fmt.Errorf("%s: %w", d.file(LockFile), err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// serverLock is the file of a workspace that the server locks which looks after it.
const serverLock = ".server.lock"

// Own makes this process the one that looks after a workspace. It returns ErrLocked if another one is.
// The file is kept open for as long.
func Own(workspace string) (*os.File, error) {
	if err := os.MkdirAll(workspace, 0o700); err != nil {
		return nil, err
	}
	path := filepath.Join(workspace, serverLock)
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	// A command that looks at the lock holds it for an instant.
	for n := 0; ; n++ {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if errors.Is(err, unix.EWOULDBLOCK) && n < 20 {
			time.Sleep(5 * time.Millisecond)
			continue
		}
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, ErrLocked
		}
		return nil, &fs.PathError{Op: "lock", Path: path, Err: err}
	}
}

// Watched tells whether a server looks after a workspace: one that sees its files, and notices within
// seconds that a runner is gone. A file system without locks tells nothing, so it counts as watched.
func Watched(workspace string) bool {
	fd, err := unix.Open(filepath.Join(workspace, serverLock),
		unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR)
	}
	defer unix.Close(fd) // releases the lock, if it was free
	return unix.Flock(fd, unix.LOCK_SH|unix.LOCK_NB) != nil
}

// LockID names the lock file that is open: its device and its inode. The runner puts it into its
// sentinel. While the file is open no other file can have the same name.
func LockID(f *os.File) (string, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return "", fmt.Errorf("%s: %w", f.Name(), err)
	}
	return fmt.Sprintf("%d:%d", st.Dev, st.Ino), nil
}

// LockHeld tells whether a runner or its command lives. id is the lock of the sentinel: only that
// file can be free. With another file in its place, or none, the answer is unknown: true, and a
// BadFile. A neighbour that replaces the lock so does not make a living process look dead. Without an
// id, whatever is at the path decides, and a file that is not there is free.
//
// With any error the answer is true: nothing proves that runner and command are gone.
func (d Dir) LockHeld(id string) (bool, error) {
	f, err := d.openPlain(LockFile)
	if errors.Is(err, fs.ErrNotExist) {
		if id != "" {
			return true, &BadFile{d.file(LockFile), "is gone, although the sentinel names it"}
		}
		return false, nil
	}
	if err != nil {
		return true, err
	}
	defer f.Close() // releases the lock, if it was free
	if id != "" {
		have, err := LockID(f)
		if err != nil {
			return true, err
		}
		if have != id {
			return true, &BadFile{d.file(LockFile), "is not the file that the sentinel names"}
		}
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	return err != nil, err
}

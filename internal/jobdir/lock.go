package jobdir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// ErrLocked means that a runner or a command holds the job's lock.
var ErrLocked = errors.New("the job is being executed by another runner")

// Lock takes the job's lock. It is held until the last copy of the file is closed: the runner passes
// one to its command, which passes it to its own children.
func (d Dir) Lock() (*os.File, error) {
	fd, err := unix.Open(d.file(LockFile), unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
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

// LockHeld tells whether a runner or its command lives. A lock file that is not there is free.
func (d Dir) LockHeld() (bool, error) {
	f, err := d.openPlain(LockFile)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close() // releases the lock, if it was free
	err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	return false, err
}

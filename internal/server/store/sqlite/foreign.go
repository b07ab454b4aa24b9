package sqlite

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
)

// Other programs can do two things to a SQLite file in use: hold its write lock, and move or remove it.

// lockWait is how long a write waits for the file's lock. While another program is known to hold
// it, a write waits blockedWait, so that callers are answered soon.
const (
	lockWait    = 5 * time.Second
	blockedWait = 500 * time.Millisecond
)

// Blocked records that another program holds the file's lock.
func (f *File) Blocked() {
	if f != nil && f.blocked.CompareAndSwap(0, time.Now().UnixNano()) {
		f.log.Error("another program holds the database locked: nothing can be written until it lets go", "file",
			f.path)
		f.waitForLock(min(blockedWait, f.opt.LockWait))
	}
}

// Written records that a write got the file's lock.
func (f *File) Written() {
	if f == nil {
		return
	}
	if since := f.blocked.Swap(0); since != 0 {
		f.log.Info("the database is no longer locked", "file", f.path, "after",
			time.Since(time.Unix(0, since)).Round(time.Millisecond))
		f.waitForLock(f.opt.LockWait)
	}
}

// BlockedFor tells for how long another program has held the file's lock. It is zero if none does.
func (f *File) BlockedFor() time.Duration {
	if f == nil {
		return 0
	}
	if since := f.blocked.Load(); since != 0 {
		return max(time.Since(time.Unix(0, since)), 1)
	}
	return 0
}

// waitForLock sets how long the writer waits for the file's lock.
func (f *File) waitForLock(d time.Duration) {
	if _, err := f.writer.Exec(fmt.Sprintf("PRAGMA busy_timeout=%d", d.Milliseconds()), nil); err != nil {
		f.log.Warn("the time to wait for the database's lock can't be set", "error", err)
	}
}

// A kept file has to stay in place while the database is open.
type kept struct {
	path string
	was  os.FileInfo
}

// keepFiles records the identities of the database's files.
func (f *File) keepFiles() error {
	for _, path := range []string{f.path, f.path + "-wal"} {
		info, err := os.Stat(path)
		if err != nil {
			return fmt.Errorf("look at the database: %w", err)
		}
		f.files = append(f.files, kept{path, info})
	}
	return nil
}

// inPlace checks that the files are still in place. Otherwise writes would go to a file that nobody
// can open again.
func (f *File) inPlace() error {
	for _, k := range f.files {
		info, err := os.Stat(k.path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("%s was removed while it was in use: what is written from now on would be lost", k.path)
		case err == nil && !os.SameFile(info, k.was):
			return fmt.Errorf("%s was replaced while it was in use: what is written from now on would be lost", k.path)
		}
	}
	return nil
}

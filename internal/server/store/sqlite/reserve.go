package sqlite

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// reserveBytes is the default size of the reserve. It has to hold a whole write-ahead log when that
// is copied into the database, and the ends of the runs under way.
const reserveBytes = 32 << 20

// A diskReserve watches the space on the disk of the database. When little is left, new work is
// refused. Work under way can still end, first in the space that is left, then in the reserve. The
// reserve is a file of allocated blocks, which is truncated when it is needed. When there is space
// again, the reserve is allocated again and new work is taken.
type diskReserve struct {
	path string                // the reserve's file
	free func() (int64, error) // bytes in free pages of the database
	log  *slog.Logger
	size int64

	mu          sync.Mutex
	held        bool  // the file has its blocks
	spent       int64 // how often it was freed
	full        bool
	tight       bool   // little space is left: the log is kept short
	lastWarning string // the last warning that was logged
}

// newReserve checks the disk before the database is opened. Opening takes space too, so that the
// reserve is freed if there is little.
func newReserve(db string, size int64, log *slog.Logger) (*diskReserve, error) {
	if size == 0 {
		size = reserveBytes
	}
	r := &diskReserve{path: db + ".reserve", log: log, size: size}
	var st unix.Stat_t
	if unix.Stat(r.path, &st) == nil {
		r.held = st.Size == size && st.Blocks*512 >= size // a sparse file is no reserve
	}
	free, err := freeBytes(filepath.Dir(r.path))
	if err == nil && free < size {
		r.becomeFull()
		err = r.release()
	}
	return r, err
}

// check finds out whether the disk is full, or no longer.
func (r *diskReserve) check() {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.checkOnce()
	if err != nil && err.Error() != r.lastWarning {
		r.log.Warn("space on the disk can't be kept back", "error", err)
		r.lastWarning = err.Error()
	}
}

// checkOnce is check without logging. The caller holds the lock.
func (r *diskReserve) checkOnce() error {
	spare, err := freeBytes(filepath.Dir(r.path)) // not counting the reserve
	if err != nil {
		return err
	}
	if !r.held {
		spare -= r.size
	}
	// Removed rows leave free pages in the database, which the disk does not count. The log needs
	// some disk space all the same.
	inside := int64(0)
	r.tight = spare < r.size
	if spare < r.size && spare >= r.size/8 && r.free != nil {
		if inside, err = r.free(); err != nil {
			return err
		}
	}
	switch {
	case !r.full && spare+inside < r.size/2:
		r.becomeFull()
	case spare >= r.size || spare >= r.size/4 && spare+inside >= r.size:
		if r.full {
			r.full = false
			r.log.Info("the disk has room again: new work is taken")
		}
		if !r.held {
			return r.allocate()
		}
	}
	return nil
}

// spend frees the reserve after the disk has refused a write, which began when it had been freed so often. It
// tells whether that was done now or since then, so that the write may succeed now.
func (r *diskReserve) spend(before int64) (again bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.becomeFull()
	if !r.held {
		return r.spent != before
	}
	if err := r.release(); err != nil {
		r.log.Error("the reserve can't be given away", "error", err)
		return false
	}
	r.spent++
	return true
}

func (r *diskReserve) timesSpent() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.spent
}

func (r *diskReserve) becomeFull() {
	if !r.full {
		r.full = true
		r.log.Error("the disk is full: no new work is taken until there is room", "file", r.path)
	}
}

func (r *diskReserve) isFull() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.full
}

func (r *diskReserve) isTight() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.full || r.tight
}

// allocate allocates the blocks of the reserve.
func (r *diskReserve) allocate() (err error) {
	f, err := os.OpenFile(r.path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	err = unix.Fallocate(int(f.Fd()), 0, 0, r.size)
	if errors.Is(err, unix.EOPNOTSUPP) {
		zeros := make([]byte, 1<<20)
		for at := int64(0); at < r.size && (err == nil || at == 0); at += int64(len(zeros)) {
			_, err = f.WriteAt(zeros[:min(int64(len(zeros)), r.size-at)], at)
		}
	}
	if err != nil {
		return errors.Join(err, f.Truncate(0))
	}
	r.held = true
	return nil
}

// release frees the blocks of the reserve.
func (r *diskReserve) release() error {
	r.held = false
	if err := os.Truncate(r.path, 0); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// freeBytes gives the free space of the disk that holds a folder.
func freeBytes(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return int64(st.Bavail) * st.Bsize, nil
}

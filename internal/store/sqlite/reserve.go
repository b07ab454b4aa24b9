package sqlite

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// reserveBytes is how much of the disk is kept back for when it is full. A whole write-ahead log has to find
// a place in the database with it, and the ends of the runs under way in the log.
const reserveBytes = 32 << 20

// A reserve watches the space on the disk that holds the database. When little is left, no new work is taken,
// and what is under way can still end: in what is left and, when that is used up, whoever used it, in a
// reserve that is kept allocated in a file. When there is space again, so is the reserve, and all goes on.
type reserve struct {
	path string                // of the reserve
	free func() (int64, error) // bytes inside of the database that nothing uses
	log  *slog.Logger
	size int64

	mu    sync.Mutex
	held  bool // the reserve is allocated
	full  bool
	tight bool   // there is little, so that the log is kept short
	said  string // the last complaint
}

// newReserve looks at the disk before the database is opened. That takes space as well, so it gets the reserve
// if there is little.
func newReserve(db string, size int64, log *slog.Logger) (*reserve, error) {
	if size == 0 {
		size = reserveBytes
	}
	r := &reserve{path: db + ".reserve", log: log, size: size}
	var st unix.Stat_t
	if unix.Stat(r.path, &st) == nil {
		r.held = st.Size == size && st.Blocks*512 >= size // a hole is no reserve
	}
	free, err := freeBytes(filepath.Dir(r.path))
	if err == nil && free < size {
		r.becomeFull()
		err = r.give()
	}
	return r, err
}

// look finds out whether the disk has become full, or is so no more.
func (r *reserve) look() {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.lookOnce()
	if err != nil && err.Error() != r.said {
		r.log.Warn("space on the disk can't be kept back", "error", err)
		r.said = err.Error()
	}
}

func (r *reserve) lookOnce() error {
	spare, err := freeBytes(filepath.Dir(r.path)) // beyond the reserve
	if err != nil {
		return err
	}
	if !r.held {
		spare -= r.size
	}
	// What was removed from the database leaves room in it, which the disk does not know of. The log needs some of the disk all the same.
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
			return r.take()
		}
	}
	return nil
}

// out is told that the disk has refused a write. It gives the reserve away; if there was one, the write may
// succeed now.
func (r *reserve) out() (again bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.becomeFull()
	if !r.held {
		return false
	}
	if err := r.give(); err != nil {
		r.log.Error("the reserve can't be given away", "error", err)
		return false
	}
	return true
}

func (r *reserve) becomeFull() {
	if !r.full {
		r.full = true
		r.log.Error("the disk is full: no new work is taken until there is room", "file", r.path)
	}
}

func (r *reserve) isFull() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.full
}

func (r *reserve) isTight() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.full || r.tight
}

// take allocates the reserve.
func (r *reserve) take() (err error) {
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

// give frees what the reserve holds.
func (r *reserve) give() error {
	r.held = false
	if err := os.Truncate(r.path, 0); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func freeBytes(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return int64(st.Bavail) * st.Bsize, nil
}

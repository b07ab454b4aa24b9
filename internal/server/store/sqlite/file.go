package sqlite

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Options are the settings of a file.
type Options struct {
	Synchronous string        // FULL (default) or EXTRA; lower levels are refused
	Reserve     int64         // bytes of disk space kept for when the disk is full; default 32 MiB
	WALPages    int           // pages of the log from which it is copied; default 4000
	Every       time.Duration // how often the log and the disk are checked; default 100 ms
	LockWait    time.Duration // how long a write waits for another program's lock; default 5 s
	Logger      *slog.Logger
}

func (o *Options) setDefaults() {
	if o.Synchronous == "" {
		o.Synchronous = "FULL"
	}
	if o.WALPages <= 0 {
		o.WALPages = walPages
	}
	if o.Every <= 0 {
		o.Every = checkpointEvery
	}
	if o.LockWait <= 0 {
		o.LockWait = lockWait
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

// A File is a database file that this process has locked. A nil File stands for a database that is
// not a file: its disk is never full, and no other program locks it.
type File struct {
	path    string
	opt     Options
	log     *slog.Logger
	lock    *os.File
	folder  *os.File // open until its entries are synced
	reserve *diskReserve
	files   []kept       // the database's files, which must stay in place
	blocked atomic.Int64 // since when another program holds the file's lock; zero: none does

	writer *Conn
	copier *Conn // for checkpoints
}

// Open opens a file, and creates it and its folder if they are missing.
func Open(path string, opt Options) (_ *File, err error) {
	opt.setDefaults()
	f := &File{path: path, opt: opt, log: opt.Logger}
	if err := makeFolder(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("make the data folder: %w", err)
	}
	if err := Missing(path, path+"-wal"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			f.Close(false)
		}
	}()
	if f.folder, err = os.Open(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("open the data folder: %w", err)
	}
	if f.lock, err = lockFile(path + ".lock"); err != nil {
		return nil, err
	}
	if err := dropOldJournal(path, f.folder); err != nil {
		return nil, err
	}
	if err := keepBrokenLog(path, f.log); err != nil {
		return nil, err
	}
	if f.reserve, err = newReserve(path, opt.Reserve, f.log); err != nil {
		return nil, fmt.Errorf("look at the disk: %w", err)
	}
	if level := opt.Synchronous; level != "FULL" && level != "EXTRA" {
		return nil, fmt.Errorf("refusing to start with synchronous=%s: it loses acknowledged writes when the power "+
			"fails; use FULL or EXTRA", level)
	}
	// SQLite creates its other files with the mode of the database: only the owner may read them.
	if f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	} else if err := f.Close(); err != nil {
		return nil, err
	}
	if f.copier, err = f.session("BEGIN", true); err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	if err := f.copier.checkDurable(path); err != nil {
		return nil, err
	}
	return f, nil
}

// ErrInUse means that another process has the file open as a store.
var ErrInUse = errors.New("another server has this store open")

// lockFile takes the lock that a server holds on a store. The lock ends with the process, however
// it ends.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock file: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("refusing to start: %w (%s is locked)", ErrInUse, path)
	}
	return f, nil
}

// writerCache gives the connection that writes 32 MiB of pages to keep: it touches the ends of
// every index over and over.
const writerCache = "PRAGMA cache_size=-32768"

// Writer gives the session that writes. There is one.
func (f *File) Writer() (*Conn, error) {
	s, err := f.session("BEGIN IMMEDIATE", true)
	if err != nil {
		return nil, err
	}
	for _, setting := range []string{writerCache, fmt.Sprintf("PRAGMA journal_size_limit=%d", f.walBytes())} {
		if _, err := s.Exec(setting, nil); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	f.writer = s
	f.waitForLock(f.opt.LockWait)
	return s, nil
}

// Reader gives a session that reads. A query that takes longer than deadline is interrupted; zero
// means no limit.
func (f *File) Reader(deadline time.Duration) (*Conn, error) {
	s, err := f.session("BEGIN", false)
	if err == nil && deadline != 0 {
		s.limit = &interrupter{conn: s.conn, after: deadline}
	}
	return s, err
}

// Settle completes the opening of a file, after its tables were created. From then on its directory
// entries are on disk, and its files must stay in place.
func (f *File) Settle() (err error) {
	// Sync the directory before anything is acknowledged. SQLite syncs it too, but ignores an
	// error. A handle that was opened before the files were created reports it.
	if err := f.folder.Sync(); err != nil {
		return fmt.Errorf("sync the data folder: %w", err)
	}
	if err := f.folder.Close(); err != nil {
		return err
	}
	f.folder = nil
	return f.keepFiles()
}

// Full tells whether the disk is full, so that the rest is kept for work under way.
func (f *File) Full() bool { return f != nil && f.reserve.isFull() }

// ReserveSpent tells how often the reserve was freed.
func (f *File) ReserveSpent() int64 {
	if f == nil {
		return 0
	}
	return f.reserve.timesSpent()
}

// SpendReserve frees the reserve after the disk has refused a write. before is ReserveSpent of when that began.
// SpendReserve tells whether the write may succeed now: the reserve was freed, by this call or since before.
func (f *File) SpendReserve(before int64) (again bool) { return f != nil && f.reserve.spend(before) }

// Close closes the file. Its sessions have to be closed before.
//
// If the disk is sound, the log is copied into the database and removed. Otherwise it stays as it is.
// A sync of the database that failed may have lost pages that an earlier checkpoint of this process
// had copied. SQLite would not copy them again before it removes the log, but the next process does:
// see settle.
func (f *File) Close(sound bool) error {
	var errs []error
	if f.copier != nil {
		if sound {
			errs = append(errs, f.copier.conn.copyLogOnClose(true))
		}
		errs = append(errs, f.copier.Close())
	}
	if f.folder != nil {
		errs = append(errs, f.folder.Close())
	}
	if f.lock != nil {
		// Closing is not enough while a process that was just forked still has the descriptor.
		errs = append(errs, unix.Flock(int(f.lock.Fd()), unix.LOCK_UN), f.lock.Close())
	}
	return errors.Join(errs...)
}

package sqlite

import (
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Options are what may be different about a file.
type Options struct {
	Synchronous string        // FULL (default) or EXTRA; less is refused
	Reserve     int64         // bytes of the disk kept back for when it is full; default 32 MiB
	WALPages    int           // pages of the log that wait before they are copied into the database; default 4000
	Every       time.Duration // how often the log and the disk are looked at; default 100 ms
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

// A File is a database in a file that this process alone has open. A File that is nil stands for a
// database that is in none: its disk is never full, and nobody else locks it.
type File struct {
	path    string
	opt     Options
	log     *slog.Logger
	db      *sql.DB
	lock    *os.File
	folder  *os.File // open until its names are on disk
	reserve *reserve
	files   []kept       // where they have to stay
	blocked atomic.Int64 // since when another program holds the file's lock; zero: none does

	writer *Session
	copier *Session // copies the log into the database
}

// Open opens a file. It makes it, and the folder, if need be.
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
			f.Close()
		}
	}()
	if f.folder, err = os.Open(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("open the data folder: %w", err)
	}
	if f.lock, err = lockFile(path + ".lock"); err != nil {
		return nil, err
	}
	if err := keepBrokenLog(path, f.log); err != nil {
		return nil, err
	}
	if f.reserve, err = newReserve(path, opt.Reserve, f.log); err != nil {
		return nil, fmt.Errorf("look at the disk: %w", err)
	}
	if level := opt.Synchronous; level != "FULL" && level != "EXTRA" {
		return nil, fmt.Errorf("refusing to start with synchronous=%s: it loses acknowledged writes when the power fails; use FULL or EXTRA", level)
	}
	// The database's other files take its mode: what is in them is for the owner alone.
	if f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	} else if err := f.Close(); err != nil {
		return nil, err
	}
	if f.db, err = open(path, opt.Synchronous); err != nil {
		return nil, err
	}
	return f, nil
}

// lockFile takes the lock that one server holds on a store for its life. The lock goes with the
// process, however it ends.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock file: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("refusing to start: another server has this store open (%s is locked)", path)
	}
	return f, nil
}

// writerCache gives the connection that writes 32 MiB of pages to keep: it touches the ends of
// every index over and over.
const writerCache = "PRAGMA cache_size=-32768"

// Writer gives the session that writes. There is one.
func (f *File) Writer() (*Session, error) {
	s, err := newSession(f.db, "BEGIN IMMEDIATE")
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

// Reader gives a session that reads. With a deadline, a query that takes longer is ended; zero
// means none.
func (f *File) Reader(deadline time.Duration) (*Session, error) {
	s, err := newSession(f.db, "BEGIN")
	if err != nil || deadline == 0 {
		return s, err
	}
	if s.limit, err = newInterrupter(s.conn, deadline); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Settle ends the opening of a file that has its tables now. From here on its files are known to be
// on disk by their names, and have to stay where they are.
func (f *File) Settle() (err error) {
	// The names are on disk before anything is acknowledged. SQLite syncs them as well, but does
	// not look whether that succeeds; who has had the folder open all the time is told.
	if err := f.folder.Sync(); err != nil {
		return fmt.Errorf("sync the data folder: %w", err)
	}
	if err := f.folder.Close(); err != nil {
		return err
	}
	f.folder = nil
	if err := f.keepFiles(); err != nil {
		return err
	}
	f.copier, err = f.Reader(0)
	return err
}

// Full tells whether the disk is full: what is left is for what is under way.
func (f *File) Full() bool { return f != nil && f.reserve.isFull() }

// SpendReserve is told that the disk has refused a write. It gives the reserve away; if there was
// one, the write may succeed now.
func (f *File) SpendReserve() (again bool) { return f != nil && f.reserve.out() }

// Close closes the file. Its sessions have to be closed before.
func (f *File) Close() error {
	var errs []error
	if f.copier != nil {
		errs = append(errs, f.copier.Close())
	}
	if f.db != nil {
		errs = append(errs, f.db.Close())
	}
	if f.folder != nil {
		errs = append(errs, f.folder.Close())
	}
	if f.lock != nil {
		// Closing it is not enough while a process that was forked a moment ago still has it.
		errs = append(errs, unix.Flock(int(f.lock.Fd()), unix.LOCK_UN), f.lock.Close())
	}
	return errors.Join(errs...)
}

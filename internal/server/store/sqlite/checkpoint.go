package sqlite

import (
	"fmt"
	"os"
	"sync"
	"time"
)

// walPages is the number of pages in the write-ahead log from which it is copied into the database,
// checkpointEvery how often that is checked.
//
// A checkpoint has two steps. Most pages are copied while the writer goes on. The pages that it
// added meanwhile are copied with the writer blocked for a moment, so that SQLite can restart the
// log at its beginning. Without the second step a busy log would grow without bound.
const (
	walPages        = 4000
	checkpointEvery = 100 * time.Millisecond
)

// walBytes is the length to which the log's file is cut: twice its usual length. A long read keeps
// SQLite from restarting the log, and the file grows. After the read, the first commit that
// restarts the log cuts the file (PRAGMA journal_size_limit); without a commit, a checkpoint does.
// On a full disk the reserve is written through the log, so that walBytes is at least that.
func (f *File) walBytes() int64 {
	return max(f.opt.Reserve, 2*int64(f.opt.WALPages)*(frameHeader+4096))
}

// walTooLong tells whether the log's file is longer than walBytes.
func (f *File) walTooLong() bool {
	info, err := os.Stat(f.path + "-wal")
	return err == nil && info.Size() > f.walBytes()
}

// Checkpoints copies the write-ahead log into the database periodically, so that commits never do.
// writing is the lock of the writers, and commits gives the number of commits so far. It returns
// when done is closed, or with an error if the file is gone or its disk fails. After an error
// nothing may be written.
func (f *File) Checkpoints(done <-chan struct{}, writing sync.Locker, commits func() int64) error {
	sess := f.copier
	tick := time.NewTicker(f.opt.Every)
	defer tick.Stop()
	if _, err := sess.Exec("PRAGMA busy_timeout=0", nil); err != nil { // don't wait for readers
		f.log.Warn("the time to wait for readers can't be set", "error", err)
	}
	f.reserve.free = func() (int64, error) { return unused(sess) }
	seen := int64(0)
	for {
		select {
		case <-done:
			return nil
		case <-tick.C:
		}
		full := f.reserve.isFull()
		f.reserve.check()
		if err := f.inPlace(); err != nil {
			f.log.Error("the store is lost", "error", err)
			return err
		}
		now, long := commits(), f.walTooLong()
		if now == seen && !full && !long {
			continue
		}
		seen = now
		err := f.checkpointOnce(writing, full, long)
		switch {
		case err == nil, IsConflict(err), IsLocked(err):
		case IsFull(err):
			f.reserve.spend(f.reserve.timesSpent())
		default: // if the disk fails here, the next commit fails too
			f.log.Error("the write-ahead log could not be copied into the database", "error", err)
			return fmt.Errorf("the write-ahead log could not be copied into the database: %w", err)
		}
	}
}

// checkpointOnce copies the log if it has enough pages, cuts its file if it is too long, and frees
// its space on a full disk.
func (f *File) checkpointOnce(writing sync.Locker, full, long bool) error {
	wait := f.opt.WALPages
	if full || f.reserve.isTight() {
		wait = 1 // a restarted log takes no more space
	}
	if err := copyLog(f.copier, writing, wait); err != nil {
		return err
	}
	if long {
		if err := cutLog(f.copier, writing); err != nil {
			return err
		}
	}
	if full {
		return f.shrinkLog(writing)
	}
	return nil
}

// copyLog copies the log into the database if it has at least so many pages.
func copyLog(sess *Conn, writing sync.Locker, pages int) error {
	left, err := checkpoint(sess, "NOOP")
	if err != nil || left < pages {
		return err
	}
	if _, err := checkpoint(sess, "PASSIVE"); err != nil {
		return err
	}
	// Copy what was added meanwhile: the log restarts only when all of it is copied.
	writing.Lock() // before the lock of the session
	defer writing.Unlock()
	_, err = checkpoint(sess, "PASSIVE")
	return err
}

// cutLog truncates the log's file if all of it is copied and no reader uses it. Otherwise the next
// call does. It waits for no reader, and blocks the writers only while the file is cut.
func cutLog(sess *Conn, writing sync.Locker) error {
	if _, err := checkpoint(sess, "PASSIVE"); err != nil {
		return err
	}
	writing.Lock()
	defer writing.Unlock()
	if left, err := checkpoint(sess, "NOOP"); err != nil || left > 0 {
		return err
	}
	_, err := checkpoint(sess, "TRUNCATE")
	return err
}

// shrinkLog frees the log's space on a full disk, if the database has enough free pages for further
// writes. If a reader is in the way, the next call does.
func (f *File) shrinkLog(writing sync.Locker) error {
	inside, err := unused(f.copier)
	if err != nil || inside < f.reserve.size {
		return err
	}
	writing.Lock()
	defer writing.Unlock()
	_, err = checkpoint(f.copier, "TRUNCATE")
	return err
}

// checkpoint runs wal_checkpoint without waiting, and gives how many pages are left. NOOP copies
// nothing.
func checkpoint(sess *Conn, how string) (left int, err error) {
	err = sess.Query("PRAGMA wal_checkpoint("+how+")", nil, func(scan func(...any) error) error {
		var busy, log, copied int
		err := scan(&busy, &log, &copied)
		left = log - copied
		return err
	})
	return left, err
}

// unused gives the number of bytes in free pages of the database.
func unused(sess *Conn) (n int64, err error) {
	err = sess.Query("SELECT f.freelist_count*p.page_size FROM pragma_freelist_count f, pragma_page_size p", nil,
		func(scan func(...any) error) error { return scan(&n) })
	return n, err
}

package sqlite

import (
	"fmt"
	"os"
	"sync"
	"time"
)

// How many pages of the write-ahead log wait to be copied into the database before that is done, and how often
// that is looked at.
const (
	walPages        = 4000
	checkpointEvery = 100 * time.Millisecond
)

// walBytes is how long the file of the log may stay: twice of what it has when it is copied in time. A read that takes
// long keeps the log from being begun anew, and the file grows. When the read is over, the first commit that begins
// the log anew cuts the file to this length (PRAGMA journal_size_limit). If there is no commit, the checkpoints do.
// On a full disk the reserve is written through the log: it is never cut below that.
func (f *File) walBytes() int64 {
	return max(f.opt.Reserve, 2*int64(f.opt.WALPages)*(frameHeader+4096))
}

// walTooLong tells whether the file of the log is longer than it may stay.
func (f *File) walTooLong() bool {
	info, err := os.Stat(f.path + "-wal")
	return err == nil && info.Size() > f.walBytes()
}

// Checkpoints copies the write-ahead log into the database file from time to time, beside the writers: a commit
// never pays for it. What comes in while the bulk is copied is copied with the writers held off for a moment, so
// that the log is begun anew and can't grow without bound. writing is what the writers hold, and commits is how many
// there have been. It returns when done is closed, or with an error when the file is lost or its disk fails: nothing
// may be written any more then.
func (f *File) Checkpoints(done <-chan struct{}, writing sync.Locker, commits func() int64) error {
	sess := f.copier
	tick := time.NewTicker(f.opt.Every)
	defer tick.Stop()
	if _, err := sess.Exec("PRAGMA busy_timeout=0", nil); err != nil { // readers are not waited for
		f.log.Error("the time to wait for readers can't be set", "error", err)
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
		f.reserve.look()
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
			f.reserve.out()
		default: // a disk that fails here fails the next commit as well
			f.log.Error("the write-ahead log could not be copied into the database", "error", err)
			return fmt.Errorf("the write-ahead log could not be copied into the database: %w", err)
		}
	}
}

// checkpointOnce copies the log if it is long, cuts its file if that is too long, and gives back what it holds of a disk
// that is full.
func (f *File) checkpointOnce(writing sync.Locker, full, long bool) error {
	wait := f.opt.WALPages
	if full || f.reserve.isTight() {
		wait = 1 // a log that is begun anew takes no more of a full disk
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

// copyLog copies the log into the database if so many pages wait for it.
func copyLog(sess *Session, writing sync.Locker, pages int) error {
	left, err := checkpoint(sess, "NOOP")
	if err != nil || left < pages {
		return err
	}
	if _, err := checkpoint(sess, "PASSIVE"); err != nil {
		return err
	}
	// That does not tell what came in meanwhile, and a log of which the least is left is not begun anew.
	writing.Lock()
	defer writing.Unlock()
	_, err = checkpoint(sess, "PASSIVE")
	return err
}

// cutLog empties the file of the log if all of it is in the database and nobody reads it. Otherwise it is for the next
// time: nobody is waited for, and the writers are held off only while the file is cut.
func cutLog(sess *Session, writing sync.Locker) error {
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

// shrinkLog gives back what the log holds of a full disk, if the database has room to go on in: what is written from now on takes the
// place of what was removed. A reader may be in the way; then it is for the next time.
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

// checkpoint copies what it can without waiting for anybody, or nothing with NOOP, and says how many pages are left.
func checkpoint(sess *Session, how string) (left int, err error) {
	err = sess.Query("PRAGMA wal_checkpoint("+how+")", nil, func(scan func(...any) error) error {
		var busy, log, copied int
		err := scan(&busy, &log, &copied)
		left = log - copied
		return err
	})
	return left, err
}

// unused tells how many bytes of the database hold nothing.
func unused(sess *Session) (n int64, err error) {
	err = sess.Query("SELECT f.freelist_count*p.page_size FROM pragma_freelist_count f, pragma_page_size p", nil, func(scan func(...any) error) error { return scan(&n) })
	return n, err
}

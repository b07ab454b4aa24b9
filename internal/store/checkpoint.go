package store

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
func (s *Store) walBytes() int64 {
	return max(s.opt.Reserve, 2*int64(s.walPages())*(frameHeader+4096))
}

func (s *Store) walPages() int {
	if n := s.opt.Hooks.WALPages; n > 0 {
		return n
	}
	return walPages
}

// walTooLong tells whether the file of the log is longer than it may stay.
func (s *Store) walTooLong() bool {
	info, err := os.Stat(s.opt.Path + "-wal")
	return err == nil && info.Size() > s.walBytes()
}

// checkpoints copies the write-ahead log into the database file from time to time, beside the writers: a commit
// never pays for it. What comes in while the bulk is copied is copied with the writers held off for a moment, so
// that the log is begun anew and can't grow without bound.
func (s *Store) checkpoints(sess Session, writing *sync.Mutex) {
	defer sess.Close()
	pages, every := s.walPages(), checkpointEvery
	switch {
	case s.opt.Hooks.Clock != nil:
		every = time.Minute // of a test's time, which may pass by the day
	case s.opt.Hooks.WALPages > 0:
		every = checkpointEvery / 20
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	if _, err := sess.Exec("PRAGMA busy_timeout=0", nil); err != nil { // readers are not waited for
		s.log.Error("the time to wait for readers can't be set", "error", err)
	}
	s.room.free = func() (int64, error) { return unused(sess) }
	seen := int64(0)
	for {
		select {
		case <-s.done:
			return
		case <-tick.C:
		}
		full := s.room.isFull()
		s.room.look()
		if err := s.inPlace(); err != nil {
			s.log.Error("the store is lost", "error", err)
			s.doubt(err)
			return
		}
		commits, long := s.commits.Load(), s.walTooLong()
		if commits == seen && !full && !long {
			continue
		}
		seen = commits
		wait := pages
		if full || s.room.isTight() {
			wait = 1 // a log that is begun anew takes no more of a full disk
		}
		err := copyLog(sess, writing, wait)
		if long && err == nil {
			err = cutLog(sess, writing)
		}
		if full && err == nil {
			err = s.shrinkLog(sess, writing)
		}
		if diskFull(err) {
			s.room.out()
			continue
		}
		if err != nil && !s.dialect.conflict(err) && !s.dialect.blocked(err) { // a disk that fails here fails the next commit as well
			s.log.Error("the write-ahead log could not be copied into the database", "error", err)
			s.doubt(fmt.Errorf("the write-ahead log could not be copied into the database: %w", err))
			return
		}
	}
}

// copyLog copies the log into the database if so many pages wait for it.
func copyLog(sess Session, writing *sync.Mutex, pages int) error {
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
func cutLog(sess Session, writing *sync.Mutex) error {
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
func (s *Store) shrinkLog(sess Session, writing *sync.Mutex) error {
	inside, err := unused(sess)
	if err != nil || inside < s.room.size {
		return err
	}
	writing.Lock()
	defer writing.Unlock()
	_, err = checkpoint(sess, "TRUNCATE")
	return err
}

// checkpoint copies what it can without waiting for anybody, or nothing with NOOP, and says how many pages are left.
func checkpoint(sess Session, how string) (left int, err error) {
	err = sess.Query("PRAGMA wal_checkpoint("+how+")", nil, func(scan func(...any) error) error {
		var busy, log, copied int
		err := scan(&busy, &log, &copied)
		left = log - copied
		return err
	})
	return left, err
}

// unused tells how many bytes of the database hold nothing.
func unused(sess Session) (n int64, err error) {
	err = sess.Query("SELECT f.freelist_count*p.page_size FROM pragma_freelist_count f, pragma_page_size p", nil, func(scan func(...any) error) error { return scan(&n) })
	return n, err
}

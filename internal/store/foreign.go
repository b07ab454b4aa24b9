package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
)

// What other programs can do to a SQLite file that is in use: hold its lock for writing, and take it away.

// How long a write waits for the lock of the file; and while another program is known to hold it, so that who asks is answered soon.
const (
	lockPatience    = 5 * time.Second
	blockedPatience = 500 * time.Millisecond
)

// beBlocked notes that another program holds the file's lock. The caller is the writer.
func (s *Store) beBlocked(l *lane) {
	if s.blocked.CompareAndSwap(0, time.Now().UnixNano()) {
		s.log.Error("another program holds the database locked: nothing can be written until it lets go", "file", s.opt.Path)
		s.patience(l.write, min(blockedPatience, s.lockPatience()))
	}
}

// written notes that the file's lock can be had.
func (s *Store) written(l *lane) {
	s.commits.Add(1)
	s.wrote(0)
	if since := s.blocked.Load(); since != 0 {
		s.blocked.Store(0)
		s.log.Info("the database is no longer locked", "file", s.opt.Path, "after", time.Since(time.Unix(0, since)).Round(time.Millisecond))
		s.patience(l.write, s.lockPatience())
	}
}

func (s *Store) lockPatience() time.Duration {
	if d := s.opt.Hooks.LockPatience; d > 0 {
		return d
	}
	return lockPatience
}

func (s *Store) patience(write Session, d time.Duration) {
	if _, err := write.Exec(fmt.Sprintf("PRAGMA busy_timeout=%d", d.Milliseconds()), nil); err != nil {
		s.log.Warn("the time to wait for the database's lock can't be set", "error", err)
	}
}

// A kept file is one that has to stay where it is as long as the store is open.
type kept struct {
	path string
	was  os.FileInfo
}

// keepFiles notes which files the database is in.
func (s *Store) keepFiles() error {
	for _, path := range []string{s.opt.Path, s.opt.Path + "-wal"} {
		info, err := os.Stat(path)
		if err != nil {
			return fmt.Errorf("look at the database: %w", err)
		}
		s.files = append(s.files, kept{path, info})
	}
	return nil
}

// inPlace looks whether the files are still where they were. What is acknowledged otherwise is in a file that nobody can open again.
func (s *Store) inPlace() error {
	for _, f := range s.files {
		info, err := os.Stat(f.path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("%s was removed while it was in use: what is written from now on would be lost", f.path)
		case err == nil && !os.SameFile(info, f.was):
			return fmt.Errorf("%s was replaced while it was in use: what is written from now on would be lost", f.path)
		}
	}
	return nil
}

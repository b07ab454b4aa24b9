package sqlite

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// makeFolder creates a folder and the missing ones above it, and syncs its name to disk. Otherwise
// a power loss could remove the folder with the database.
func makeFolder(dir string) error {
	dir = filepath.Clean(dir)
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	above := filepath.Dir(dir)
	if err := makeFolder(above); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	f, err := os.Open(above)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// Missing refuses to create a database where one was before: the database is missing or empty, but
// a file exists that only comes after it. The database was moved, or its disk is not mounted. A new
// database beside an old write-ahead log would destroy the log.
func Missing(path string, signs ...string) error {
	if info, err := os.Stat(path); err == nil && info.Size() > 0 || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, sign := range signs {
		if info, err := os.Stat(sign); err == nil && info.Size() > 0 {
			return fmt.Errorf("refusing to start: the database %s is missing or empty, but %s is there, so there "+
				"was one. Nothing was touched. Bring the database back, "+
				"together with its -wal if that was moved too; or restore a backup into another folder; or, to "+
				"begin with nothing, use another folder", path, sign)
		}
	}
	return nil
}

// settle copies the log of an earlier process into the database and restarts it. If that process
// ended because a sync failed, the kernel's cache has log pages that are not on disk and never will
// be written. Appended commits would be lost behind that hole. Copying writes all of it again.
func settle(s *Conn) error {
	var busy, pages, moved int
	if err := s.one("PRAGMA wal_checkpoint(TRUNCATE)", &busy, &pages, &moved); err != nil {
		return fmt.Errorf("move the log into the database: %w", err)
	}
	if busy != 0 {
		return errors.New("the log can't be moved into the database: another program is reading it")
	}
	return nil
}

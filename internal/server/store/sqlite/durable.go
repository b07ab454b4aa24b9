package sqlite

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
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

// dropOldJournal removes a rollback journal that came back after a power loss. SQLite uses one when a new
// file is made a database with a write-ahead log, and deletes it. Whether a deletion is on disk is up to
// the file system. Taken for the journal of an interrupted write, it would cut the database to nothing,
// and an empty database loses its log.
//
// A file that is in the making has one page and no log: its journal stays, and SQLite rolls it back.
func dropOldJournal(path string, folder *os.File) error {
	journal := path + "-journal"
	if _, err := os.Stat(journal); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	logged, pages, err := inUse(path)
	if err != nil || !logged || pages < 2 {
		return err
	}
	if err := os.Remove(journal); err != nil {
		return fmt.Errorf("remove a journal from before the write-ahead log: %w", err)
	}
	return folder.Sync()
}

// inUse tells whether a file is a database with a write-ahead log, and how many pages file and log have at
// least.
func inUse(path string) (logged bool, pages int64, err error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, 0, nil
	}
	if err != nil {
		return false, 0, err
	}
	defer f.Close()
	head := make([]byte, 100)
	if _, err := io.ReadFull(f, head); err != nil {
		return false, 0, notEnd(err)
	}
	size := int64(binary.BigEndian.Uint16(head[16:]))
	if size == 1 {
		size = maxPageBytes
	}
	info, err := f.Stat()
	if err != nil || size == 0 || head[18] != 2 {
		return false, 0, err
	}
	pages = info.Size() / size
	log, err := os.Stat(path + "-wal")
	switch {
	case err == nil:
		pages += max(0, log.Size()-walHeader) / (size + frameHeader)
	case !errors.Is(err, fs.ErrNotExist):
		return false, 0, err
	}
	return true, pages, nil
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

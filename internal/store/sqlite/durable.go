package sqlite

import (
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// makeFolder makes a folder and what is missing above it, and has its name on disk before anything is put
// into it: the most careful database is gone with a folder that the disk has forgotten.
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

// Missing refuses to begin anew where a database was, when it is missing or empty and one of the files that only come after it is not: it
// was moved away, or its disk is not mounted. To make a new one beside a write-ahead log would destroy what is in the log.
func Missing(path string, signs ...string) error {
	if info, err := os.Stat(path); err == nil && info.Size() > 0 || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, sign := range signs {
		if info, err := os.Stat(sign); err == nil && info.Size() > 0 {
			return fmt.Errorf("refusing to start: the database %s is missing or empty, but %s is there, so there was one. Nothing was touched. Bring the database back, "+
				"together with its -wal if that was moved too; or restore a backup into another folder; or, to begin with nothing, use another folder", path, sign)
		}
	}
	return nil
}

// settle moves what a process before this one has left in the log into the database, and begins the log
// anew. If that process died of a failed sync, the kernel shows a log that is not on disk and never will be:
// whatever was appended to it would be lost with the hole. Moving it writes it once more.
func settle(db *sql.DB) error {
	var busy, pages, moved int
	if err := db.QueryRow("PRAGMA wal_checkpoint(TRUNCATE)").Scan(&busy, &pages, &moved); err != nil {
		return fmt.Errorf("move the log into the database: %w", err)
	}
	if busy != 0 {
		return errors.New("the log can't be moved into the database: another program is reading it")
	}
	return nil
}

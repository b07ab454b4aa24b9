package sqlite

import (
	"database/sql"
	"errors"
	"fmt"
	"net/url"
)

// minSQLite is the oldest version without a known bug that corrupts a database in WAL mode.
const minSQLite = "3.51.3"

// OpenMemory opens an empty database in memory.
func OpenMemory() (*Session, error) {
	db, err := open("", "")
	if err != nil {
		return nil, err
	}
	return own(db)
}

// OpenPlain opens a file that no server uses, with the given settings.
func OpenPlain(path string, settings ...string) (*Session, error) {
	q := url.Values{"_pragma": settings}
	db, err := sql.Open("sqlite", fileAddress(path, q))
	if err != nil {
		return nil, err
	}
	return own(db)
}

// fileAddress gives the driver's address of a file with settings.
func fileAddress(path string, q url.Values) string {
	return "file:" + (&url.URL{Path: path}).EscapedPath() + "?" + q.Encode()
}

// open opens a database file, or one in memory if path is empty, and checks that acknowledged
// writes are durable.
func open(path, synchronous string) (db *sql.DB, err error) {
	q := url.Values{}
	q.Add("_pragma", fmt.Sprintf("busy_timeout(%d)", lockWait.Milliseconds()))
	q.Add("_pragma", "foreign_keys(0)")
	dsn := "file::memory:?" + q.Encode()
	if path != "" {
		q.Add("_pragma", "journal_mode(WAL)")
		q.Add("_pragma", "synchronous("+synchronous+")")
		q.Add("_pragma", "mmap_size(0)")
		q.Add("_pragma", "wal_autocheckpoint(0)") // see checkpoint.go
		q.Add("_pragma", "secure_delete(ON)")     // removed data is overwritten
		dsn = fileAddress(path, q)
	}
	db, err = sql.Open("sqlite", dsn)
	if err != nil {
		return nil, err
	}
	var version, journal string
	var sync int
	if err := db.QueryRow("SELECT sqlite_version()").Scan(&version); err != nil {
		db.Close()
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	if olderThan(version, minSQLite) {
		db.Close()
		return nil, fmt.Errorf("SQLite %s is too old: %s is the first that is safe to use here", version, minSQLite)
	}
	if path == "" {
		return db, nil
	}
	err = errors.Join(db.QueryRow("PRAGMA journal_mode").Scan(&journal), db.QueryRow("PRAGMA synchronous").Scan(&sync))
	if err != nil {
		db.Close()
		return nil, fmt.Errorf("read the settings of %s: %w", path, err)
	}
	if journal != "wal" || sync < 2 {
		db.Close()
		return nil, fmt.Errorf("refusing to start: journal_mode is %s and synchronous is %d, "+
			"but an acknowledged write survives a power loss only with wal and 2 (FULL) or 3 (EXTRA)", journal, sync)
	}
	if err := settle(db); err != nil {
		db.Close()
		return nil, err
	}
	return db, nil
}

// olderThan compares versions.
func olderThan(v, least string) bool {
	var a, b [3]int
	fmt.Sscanf(v, "%d.%d.%d", &a[0], &a[1], &a[2])
	fmt.Sscanf(least, "%d.%d.%d", &b[0], &b[1], &b[2])
	for i := range a {
		if a[i] != b[i] {
			return a[i] < b[i]
		}
	}
	return false
}

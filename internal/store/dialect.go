package store

import (
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// A dialect is all that differs between the databases.
type dialect struct {
	name         string
	withoutRowID string // a table that is its primary key
	ownClock     bool   // the database has no clock of its own: the process keeps it
	// input writes the relation of rows that a bulk update joins with.
	input func(columns []string, rows int) string
	// conflict tells an error that means "somebody else was quicker" from a real one.
	conflict func(error) bool
	// fatal tells whether a failed commit leaves the process in doubt of its own file.
	fatal bool
}

var sqliteDialect = &dialect{
	name:         "sqlite",
	withoutRowID: "WITHOUT ROWID",
	ownClock:     true,
	fatal:        true,
	input: func(columns []string, rows int) string {
		row := "(" + strings.TrimSuffix(strings.Repeat("?,", len(columns)), ",") + ")"
		return "input(" + strings.Join(columns, ",") + ") AS (VALUES " + strings.TrimSuffix(strings.Repeat(row+",", rows), ",") + ")"
	},
	conflict: func(err error) bool {
		var e *sqlite.Error
		if !errors.As(err, &e) {
			return false
		}
		switch e.Code() {
		case sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_BUSY_SNAPSHOT:
			return true
		}
		return false
	},
}

// minSQLite is the oldest version without a known way to damage a database in WAL mode.
const minSQLite = "3.51.3"

// openSQLite opens a database file, or one in memory when path is empty, and makes sure that what it
// acknowledges is on disk.
func openSQLite(path, synchronous string) (db *sql.DB, err error) {
	q := url.Values{}
	q.Add("_pragma", "busy_timeout(5000)")
	q.Add("_pragma", "foreign_keys(0)")
	dsn := "file::memory:?" + q.Encode()
	if path != "" {
		q.Add("_pragma", "journal_mode(WAL)")
		q.Add("_pragma", "synchronous("+synchronous+")")
		q.Add("_pragma", "mmap_size(0)")
		q.Add("_pragma", "wal_autocheckpoint(4000)")
		dsn = "file:" + (&url.URL{Path: path}).EscapedPath() + "?" + q.Encode()
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
		return nil, fmt.Errorf("refusing to start: journal_mode is %s and synchronous is %d, but an acknowledged write "+
			"survives a power loss only with wal and 2 (FULL) or 3 (EXTRA)", journal, sync)
	}
	return db, nil
}

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

package store

import (
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

var sqliteDialect = &dialect{
	name:        "sqlite",
	schema:      strings.NewReplacer("{without rowid}", "WITHOUT ROWID", "{text}", "TEXT", "{bytes}", "BLOB"),
	ownClock:    true,
	fatal:       true,
	tableExists: "SELECT count(*) FROM sqlite_master WHERE type='table' AND name=?",
	contains:    "instr(metadata, ?)>0",
	sizes:       []int{64, 32, 16, 8, 4, 2, 1},
	orFail:      "OR FAIL ",
	indexed:     func(index string) string { return "INDEXED BY " + index + " " },
	anyOf: func(column string, values []string) (string, []any) {
		args := make([]any, len(values))
		for i, v := range values {
			args[i] = v
		}
		return column + " IN (" + marks(len(values)) + ")", args
	},
	keyed: func(_ string, columns, fixed, values []string) (string, []any) {
		args := make([]any, 0, len(fixed)+len(values))
		for _, v := range slices.Concat(fixed, values) {
			args = append(args, v)
		}
		var given strings.Builder
		for _, c := range columns[:len(fixed)] {
			given.WriteString(c + "=? AND ")
		}
		return "WHERE " + given.String() + columns[len(fixed)] + " IN (" + marks(len(values)) + ")", args
	},
	// No column is left out, even if it has the same value in all rows: given apart, it would lead the planner to an
	// index of which it and the next column are the beginning.
	among: func(_ string, columns []string, rows string) string {
		return "WHERE (" + strings.Join(columns, ",") + ") IN (" + rows + ")"
	},
	rows: func(part [][]any) string {
		row := "(" + marks(len(part[0])) + ")"
		return "VALUES " + strings.TrimSuffix(strings.Repeat(row+",", len(part)), ",")
	},
	args: flat,
	conflict: func(err error) bool {
		var e *sqlite.Error
		if !errors.As(err, &e) {
			return false
		}
		switch e.Code() {
		case sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_BUSY_SNAPSHOT:
			return true
		}
		return false
	},
	lost:   func(error) bool { return false },
	locked: func(error) bool { return false },
	late:   interrupted,
	readOnly: func(err error) bool {
		var e *sqlite.Error
		return errors.As(err, &e) && e.Code()&0xff == sqlite3.SQLITE_READONLY
	},
	busy:    fileLocked,
	blocked: fileLocked,
}

// interrupted tells the error of a query that was ended by an interrupter.
func interrupted(err error) bool {
	var e *sqlite.Error
	return errors.As(err, &e) && e.Code() == sqlite3.SQLITE_INTERRUPT
}

// fileLocked tells an error that means "another program holds the file's lock".
func fileLocked(err error) bool {
	var e *sqlite.Error
	return errors.As(err, &e) && e.Code() == sqlite3.SQLITE_BUSY
}

func marks(n int) string { return strings.TrimSuffix(strings.Repeat("?,", n), ",") }

// writerCache gives the connection that writes 32 MiB of pages to keep: it touches the ends of every index over and over.
const writerCache = "PRAGMA cache_size=-32768"

// minSQLite is the oldest version without a known way to damage a database in WAL mode.
const minSQLite = "3.51.3"

// openSQLite opens a database file, or one in memory when path is empty, and makes sure that what it
// acknowledges is on disk.
func openSQLite(path, synchronous string) (db *sql.DB, err error) {
	q := url.Values{}
	q.Add("_pragma", fmt.Sprintf("busy_timeout(%d)", lockPatience.Milliseconds()))
	q.Add("_pragma", "foreign_keys(0)")
	dsn := "file::memory:?" + q.Encode()
	if path != "" {
		q.Add("_pragma", "journal_mode(WAL)")
		q.Add("_pragma", "synchronous("+synchronous+")")
		q.Add("_pragma", "mmap_size(0)")
		q.Add("_pragma", "wal_autocheckpoint(0)") // see checkpoint.go
		q.Add("_pragma", "secure_delete(ON)")     // what is removed is overwritten, and not only free to be
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
	if err := settle(db); err != nil {
		db.Close()
		return nil, err
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

package sqlite

import (
	"errors"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// code gives the code of SQLite's error, or zero, which is success, if it is not one.
func code(err error) int {
	var e *sqlite.Error
	if errors.As(err, &e) {
		return e.Code()
	}
	return sqlite3.SQLITE_OK
}

// IsConflict tells whether somebody else was quicker: a key is there already, or what was read has
// changed.
func IsConflict(err error) bool {
	switch code(err) {
	case sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_BUSY_SNAPSHOT:
		return true
	}
	return false
}

// IsLocked tells whether another program holds the file's lock.
func IsLocked(err error) bool { return code(err) == sqlite3.SQLITE_BUSY }

// IsLate tells whether a query took longer than it may.
func IsLate(err error) bool { return code(err) == sqlite3.SQLITE_INTERRUPT }

// IsReadOnly tells whether the database takes no writes.
func IsReadOnly(err error) bool { return code(err)&0xff == sqlite3.SQLITE_READONLY }

// IsFull tells whether there was no space to write. SQLite has rolled back then: what a commit
// writes ends with the page that makes it one, and did not get there. A sync for which there is no
// space is another error.
func IsFull(err error) bool { return code(err) == sqlite3.SQLITE_FULL }

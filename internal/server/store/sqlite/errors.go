package sqlite

import (
	"errors"
	"fmt"

	sqlite3 "modernc.org/sqlite/lib"
)

// An Error is one of SQLite.
type Error struct {
	Code int // the extended result code
	text string
}

func (e *Error) Error() string { return fmt.Sprintf("%s (%d)", e.text, e.Code) }

// code gives the code of a SQLite error. It is zero for other errors.
func code(err error) int {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return sqlite3.SQLITE_OK
}

// IsConflict tells whether another writer was first: a key exists already, or what was read has
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

// IsLate tells whether a query exceeded its time limit.
func IsLate(err error) bool { return code(err) == sqlite3.SQLITE_INTERRUPT }

// IsReadOnly tells whether the database takes no writes.
func IsReadOnly(err error) bool { return code(err)&0xff == sqlite3.SQLITE_READONLY }

// IsFull tells whether there was no disk space. SQLite has rolled back then: a commit's last page
// in the log makes it valid, and that page was not written. A sync that fails for lack of space is
// another error.
func IsFull(err error) bool { return code(err) == sqlite3.SQLITE_FULL }

package pg

import (
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

var (
	// ErrLost says that the connection is gone and that nothing of the transaction was committed.
	ErrLost = errors.New("the connection to the database is gone")
	// ErrStandby says that the server takes no writes, and that nothing of the transaction was
	// committed.
	ErrStandby = errors.New("the server of the database is read-only")
	// ErrInDoubt says that nobody can tell whether a commit happened.
	ErrInDoubt = errors.New("the connection to the database went away during a commit")
)

// The codes of the server's errors: https://www.postgresql.org/docs/current/errcodes-appendix.html
const (
	uniqueViolation      = "23505"
	serializationFailure = "40001"
	deadlock             = "40P01"
	lockTimeout          = "55P03" // a lock was waited for too long
	queryCancelled       = "57014" // a statement took too long
	diskFull             = "53100"
	invalidParameter     = "22023"
	readOnly             = "25006" // the server has become a standby: another one is to be looked for

	// Classes, which codes begin with.
	noResources  = "53"
	noConnection = "08"
	shutdown     = "57P"
)

// code gives the code of the server's error, or nothing if it is not one.
func code(err error) string {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// IsConflict tells whether somebody else was quicker: a key is there already, the transaction can't
// be put in order with those of others, or it was chosen to end a deadlock.
func IsConflict(err error) bool {
	switch code(err) {
	case uniqueViolation, serializationFailure, deadlock:
		return true
	}
	return false
}

// IsLocked tells whether somebody else has held a row locked for too long.
func IsLocked(err error) bool { return code(err) == lockTimeout }

// IsLate tells whether a statement took longer than it may.
func IsLate(err error) bool { return code(err) == queryCancelled }

// IsBusy tells whether a statement or a lock took too long, or the server has too little of
// something.
func IsBusy(err error) bool {
	return IsLate(err) || IsLocked(err) || strings.HasPrefix(code(err), noResources)
}

// IsFull tells whether the server's disk is full.
func IsFull(err error) bool { return code(err) == diskFull }

// passing tells whether a connection that was refused may be given later.
func passing(err error) bool {
	c := code(err)
	return c == "" || strings.HasPrefix(c, shutdown) || strings.HasPrefix(c, noResources) ||
		strings.HasPrefix(c, noConnection)
}

// dropped tells whether the connection was given up with an error.
func dropped(err error) bool { return errors.Is(err, ErrLost) || errors.Is(err, ErrStandby) }

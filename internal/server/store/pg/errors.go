package pg

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

var (
	// ErrLost means that the connection is gone and nothing of the transaction was committed.
	ErrLost = errors.New("the connection to the database is gone")
	// ErrStandby means that the server takes no writes and nothing of the transaction was
	// committed.
	ErrStandby = errors.New("the server of the database is read-only")
	// ErrOld means that the server was replaced by another primary, and ErrOther that it is another
	// database. Neither is written to or read from.
	ErrOld   = fmt.Errorf("%w: it was replaced by another primary", ErrStandby)
	ErrOther = fmt.Errorf("%w: it is another database", ErrStandby)
	// ErrInDoubt means that the outcome of a commit is unknown.
	ErrInDoubt = errors.New("the connection to the database went away during a commit")
)

// OldPrimary is the error about a server with an older timeline than another one. known says whose
// that is.
func OldPrimary(at string, timeline, newest int64, known string) error {
	return &connectError{fmt.Sprintf("PostgreSQL at %s is an old primary and is not used: its timeline is %d, and "+
		"%s is %d (stop it, and make it a standby of the new one)", at, timeline, known, newest), ErrOld, nil}
}

// Other is the error about a server that is another database than the store's.
func Other(format string, args ...any) error {
	return &connectError{fmt.Sprintf(format, args...), ErrOther, nil}
}

// Refused tells whether a reachable server is not used: it was replaced, or is another database.
func Refused(err error) bool { return errors.Is(err, ErrOld) || errors.Is(err, ErrOther) }

// Codes of the server's errors: https://www.postgresql.org/docs/current/errcodes-appendix.html
const (
	uniqueViolation      = "23505"
	serializationFailure = "40001"
	deadlock             = "40P01"
	lockTimeout          = "55P03" // waiting for a lock took too long
	queryCancelled       = "57014" // a statement took too long
	diskFull             = "53100"
	invalidParameter     = "22023"
	readOnly             = "25006" // the server has become a standby: look for the primary

	// Classes: the first characters of a code.
	noResources  = "53"
	noConnection = "08"
	shutdown     = "57P"
)

// code gives the code of a server's error. It is empty for other errors.
func code(err error) string {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// IsConflict tells whether another writer was first: a key exists already, the transaction can't be
// serialized, or it was chosen to end a deadlock.
func IsConflict(err error) bool {
	switch code(err) {
	case uniqueViolation, serializationFailure, deadlock:
		return true
	}
	return false
}

// IsLocked tells whether waiting for a lock took too long.
func IsLocked(err error) bool { return code(err) == lockTimeout }

// IsLate tells whether a statement exceeded its time limit.
func IsLate(err error) bool { return code(err) == queryCancelled }

// IsBusy tells whether a statement or a lock took too long, or the server is out of resources.
func IsBusy(err error) bool {
	return IsLate(err) || IsLocked(err) || strings.HasPrefix(code(err), noResources)
}

// IsFull tells whether the server's disk is full.
func IsFull(err error) bool { return code(err) == diskFull }

// passing tells whether a refused connection may succeed later.
func passing(err error) bool {
	c := code(err)
	return c == "" && certificate(err) == nil || strings.HasPrefix(c, shutdown) || strings.HasPrefix(c, noResources) ||
		strings.HasPrefix(c, noConnection)
}

// dropped tells whether the connection was closed because of an error.
func dropped(err error) bool { return errors.Is(err, ErrLost) || errors.Is(err, ErrStandby) }

package sqlite

import (
	"errors"
	"fmt"
	"net/url"
)

// minSQLite is the oldest version without a known bug that corrupts a database in WAL mode.
const minSQLite = "3.51.3"

// inMemory is the address of a new database in memory.
const inMemory = "file::memory:"

// OpenMemory opens an empty database in memory.
func OpenMemory() (*Conn, error) {
	s, err := newSession(inMemory, "BEGIN IMMEDIATE", waitForLocks, "foreign_keys(0)")
	if err != nil {
		return nil, err
	}
	return s, s.closeUnless(s.checkVersion())
}

// OpenPlain opens a file that no server uses, with the given settings.
func OpenPlain(path string, settings ...string) (*Conn, error) {
	return newSession(fileAddress(path), "BEGIN IMMEDIATE", settings...)
}

// OpenLooking opens a file to look at it, also while a server has it open. It changes neither the file
// nor its write-ahead log: a start has to find the log as it is.
func OpenLooking(path string) (*Conn, error) {
	s, err := newSession(fileAddress(path)+"?mode=ro", "BEGIN", waitForLocks, "query_only(1)", "wal_autocheckpoint(0)")
	if err != nil {
		return nil, err
	}
	return s, s.closeUnless(s.conn.copyLogOnClose(false))
}

// fileAddress gives the address of a file.
func fileAddress(path string) string { return "file:" + (&url.URL{Path: path}).EscapedPath() }

var waitForLocks = fmt.Sprintf("busy_timeout(%d)", lockWait.Milliseconds())

// session opens another session of the file.
//
// The settings of a session that writes make acknowledged writes durable. They also have SQLite read the schema, which
// a session that only reads does with its first query: most readers of a server with little to do have none.
func (f *File) session(begin string, writes bool) (*Conn, error) {
	settings := []string{
		waitForLocks,
		"foreign_keys(0)",
		"mmap_size(0)",
		"wal_autocheckpoint(0)", // see checkpoint.go
	}
	if writes {
		settings = append(settings,
			"journal_mode(WAL)",
			"synchronous("+f.opt.Synchronous+")",
			"secure_delete(ON)", // removed data is overwritten
		)
	}
	s, err := newSession(fileAddress(f.path), begin, settings...)
	if err != nil {
		return nil, err
	}
	return s, s.closeUnless(s.conn.copyLogOnClose(false)) // see Close
}

// checkDurable checks that acknowledged writes of a session are durable, and copies the write-ahead
// log that an earlier process has left.
func (s *Conn) checkDurable(path string) error {
	if err := s.checkVersion(); err != nil {
		return err
	}
	var journal string
	var sync int64
	if err := errors.Join(s.one("PRAGMA journal_mode", &journal), s.one("PRAGMA synchronous", &sync)); err != nil {
		return fmt.Errorf("read the settings of %s: %w", path, err)
	}
	if journal != "wal" || sync < 2 {
		return fmt.Errorf("refusing to start: journal_mode is %s and synchronous is %d, "+
			"but an acknowledged write survives a power loss only with wal and 2 (FULL) or 3 (EXTRA)", journal, sync)
	}
	return settle(s)
}

// checkVersion refuses a version of SQLite that is too old.
func (s *Conn) checkVersion() error {
	var version string
	if err := s.one("SELECT sqlite_version()", &version); err != nil {
		return err
	}
	if olderThan(version, minSQLite) {
		return fmt.Errorf("SQLite %s is too old: %s is the first that is safe to use here", version, minSQLite)
	}
	return nil
}

// one reads the only row of a query.
func (s *Conn) one(query string, dest ...any) error {
	return s.Query(query, nil, func(scan func(...any) error) error { return scan(dest...) })
}

// closeUnless closes the session if there is an error, which it returns.
func (s *Conn) closeUnless(err error) error {
	if err == nil {
		return nil
	}
	return errors.Join(err, s.Close())
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

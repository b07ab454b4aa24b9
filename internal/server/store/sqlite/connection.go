package sqlite

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// A Conn is one connection to a database, with its prepared statements.
type Conn struct {
	mu    sync.Mutex // taken before the lock of limit
	conn  *conn
	begin string
	stmts map[string]stmt
	limit *interrupter // time limit of queries; nil: none
}

// maxStatements is the number of prepared statements above which all of them are discarded.
const maxStatements = 500

var errClosed = errors.New("the session is closed")

// newSession opens a database by its address and applies settings. begin is the statement that
// begins a transaction.
func newSession(address, begin string, settings ...string) (*Conn, error) {
	c, err := connect(address)
	if err != nil {
		return nil, err
	}
	s := &Conn{conn: c, begin: begin, stmts: make(map[string]stmt)}
	for _, x := range settings {
		if _, err := s.Exec("PRAGMA "+x, nil); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return s, nil
}

// prepare gives a prepared statement. A text of several statements is not prepared: rest is the
// whole text then.
func (s *Conn) prepare(query string) (st stmt, rest string, err error) {
	if st, ok := s.stmts[query]; ok {
		return st, "", nil
	}
	if s.conn == nil {
		return st, "", errClosed
	}
	st, rest, err = s.conn.prepare(query)
	switch {
	case err != nil:
		return st, "", fmt.Errorf("prepare %.80q: %w", query, err)
	case rest != "":
		st.finalize()
		return st, query, nil
	}
	if len(s.stmts) > maxStatements {
		s.discard()
	}
	s.stmts[query] = st
	return st, "", nil
}

// discard frees all prepared statements.
func (s *Conn) discard() {
	for q, st := range s.stmts {
		st.finalize()
		delete(s.stmts, q)
	}
}

// Begin begins a transaction.
func (s *Conn) Begin() error {
	_, err := s.Exec(s.begin, nil)
	return err
}

// Exec executes a statement and gives how many rows it changed. A text without arguments may have
// several statements.
func (s *Conn) Exec(query string, args []any) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, rest, err := s.prepare(query)
	if err == nil && rest == "" {
		err = run(st, args, nil)
	}
	for err == nil && rest != "" {
		if st, rest, err = s.conn.prepare(rest); err == nil {
			err = run(st, nil, nil)
			st.finalize()
		}
	}
	if err != nil {
		return 0, err
	}
	return s.conn.changed(), nil
}

// Query calls row for every row. scan is valid during that call.
func (s *Conn) Query(query string, args []any, row func(scan func(dest ...any) error) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, rest, err := s.prepare(query)
	if err != nil {
		return err
	}
	if rest != "" {
		return fmt.Errorf("%.80q are several statements", query)
	}
	s.limit.begin()
	defer s.limit.end()
	return run(st, args, row)
}

// run executes a statement, and calls row for every row that it gives.
func run(st stmt, args []any, row func(scan func(dest ...any) error) error) error {
	if st.p == 0 {
		return nil
	}
	defer st.end()
	if err := st.bind(args); err != nil {
		return err
	}
	for {
		more, err := st.step()
		if err != nil || !more {
			return err
		}
		if row == nil {
			continue
		}
		if err := row(st.scan); err != nil {
			return err
		}
	}
}

// slower is the time in nanoseconds that every commit of this process takes longer.
var slower atomic.Int64

// SlowDown makes every commit of this process take longer, as on a disk that syncs more slowly. It is
// for measurements.
func SlowDown(by time.Duration) { slower.Store(int64(by)) }

// Commit commits the transaction. It is on disk when Commit returns.
func (s *Conn) Commit() error {
	if d := slower.Load(); d > 0 {
		defer time.Sleep(time.Duration(d))
	}
	_, err := s.Exec("COMMIT", nil)
	return err
}

// Rollback ends the transaction without its changes.
func (s *Conn) Rollback() error {
	_, err := s.Exec("ROLLBACK", nil)
	return err
}

// Close closes the session.
func (s *Conn) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil {
		return nil
	}
	s.limit.end() // the timer must not use a closed connection
	s.discard()
	err := s.conn.close()
	s.conn = nil
	return err
}

package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
)

// A Session is one connection to a database, with its prepared statements.
type Session struct {
	mu    sync.Mutex
	conn  *sql.Conn
	owns  *sql.DB // closed with the session; nil: other sessions use it
	begin string
	stmts map[string]*sql.Stmt
	limit *interrupter // time limit of queries; nil: none
}

// own gives the only session of a database, which closes it.
func own(db *sql.DB) (*Session, error) {
	db.SetMaxOpenConns(1)
	s, err := newSession(db, "BEGIN IMMEDIATE")
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	s.owns = db
	return s, nil
}

func newSession(db *sql.DB, begin string) (*Session, error) {
	conn, err := db.Conn(context.Background())
	if err != nil {
		return nil, err
	}
	return &Session{conn: conn, begin: begin, stmts: make(map[string]*sql.Stmt)}, nil
}

// prepare gives a prepared statement. Above 500 statements it discards all of them.
func (s *Session) prepare(query string) (*sql.Stmt, error) {
	if st := s.stmts[query]; st != nil {
		return st, nil
	}
	st, err := s.conn.PrepareContext(context.Background(), query)
	if err != nil {
		return nil, fmt.Errorf("prepare %.80q: %w", query, err)
	}
	if len(s.stmts) > 500 {
		for q, old := range s.stmts {
			old.Close()
			delete(s.stmts, q)
		}
	}
	s.stmts[query] = st
	return st, nil
}

// Begin begins a transaction.
func (s *Session) Begin() error {
	_, err := s.Exec(s.begin, nil)
	return err
}

// Exec executes a statement and gives how many rows it changed.
func (s *Session) Exec(query string, args []any) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, err := s.prepare(query)
	if err != nil {
		return 0, err
	}
	res, err := st.ExecContext(context.Background(), args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// Query calls row for every row. scan is valid during that call.
func (s *Session) Query(query string, args []any, row func(scan func(dest ...any) error) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, err := s.prepare(query)
	if err != nil {
		return err
	}
	s.limit.begin()
	defer s.limit.end()
	rows, err := st.QueryContext(context.Background(), args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// Commit commits the transaction. It is on disk when Commit returns.
func (s *Session) Commit() error {
	_, err := s.Exec("COMMIT", nil)
	return err
}

// Rollback ends the transaction without its changes.
func (s *Session) Rollback() error {
	_, err := s.Exec("ROLLBACK", nil)
	return err
}

// Close closes the session, and its database if no other session uses it.
func (s *Session) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, st := range s.stmts {
		errs = append(errs, st.Close())
	}
	clear(s.stmts)
	errs = append(errs, s.conn.Close())
	if s.owns != nil {
		errs = append(errs, s.owns.Close())
	}
	return errors.Join(errs...)
}

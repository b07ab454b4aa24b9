package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
)

// A Session is one connection to the database. It is the seam where a test makes statements fail, before
// and after they were executed.
type Session interface {
	Begin() error
	Exec(query string, args []any) (affected int64, err error)
	// Query calls row for every row; scan is valid during that call.
	Query(query string, args []any, row func(scan func(dest ...any) error) error) error
	Commit() error
	Rollback() error
	Close() error
}

// sqlSession is a Session over database/sql that keeps its statements prepared.
type sqlSession struct {
	mu    sync.Mutex
	conn  *sql.Conn
	begin string
	stmts map[string]*sql.Stmt
	limit *interrupter // of queries; nil: they may take as long as they do
}

func newSQLSession(db *sql.DB, begin string) (*sqlSession, error) {
	conn, err := db.Conn(context.Background())
	if err != nil {
		return nil, err
	}
	return &sqlSession{conn: conn, begin: begin, stmts: make(map[string]*sql.Stmt)}, nil
}

func (s *sqlSession) prepare(query string) (*sql.Stmt, error) {
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

func (s *sqlSession) Begin() error {
	_, err := s.Exec(s.begin, nil)
	return err
}

func (s *sqlSession) Exec(query string, args []any) (int64, error) {
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

func (s *sqlSession) Query(query string, args []any, row func(scan func(dest ...any) error) error) error {
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

func (s *sqlSession) Commit() error {
	_, err := s.Exec("COMMIT", nil)
	return err
}

func (s *sqlSession) Rollback() error {
	_, err := s.Exec("ROLLBACK", nil)
	return err
}

func (s *sqlSession) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, st := range s.stmts {
		errs = append(errs, st.Close())
	}
	clear(s.stmts)
	return errors.Join(append(errs, s.conn.Close())...)
}

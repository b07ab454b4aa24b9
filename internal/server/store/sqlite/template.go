package sqlite

import (
	"fmt"
	"sync"
)

// A Template is a copy of a database that new databases begin with. A copy is made page by page,
// without any statement.
type Template struct {
	mu   sync.Mutex
	conn *conn
}

// Template copies a database into memory.
func (s *Conn) Template() (*Template, error) {
	c, err := connect(inMemory)
	if err != nil {
		return nil, err
	}
	t := &Template{conn: c}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.conn.copyTo(c); err != nil {
		return nil, fmt.Errorf("copy a database: %w", err)
	}
	return t, nil
}

// Fill replaces the content of a database by the template.
func (t *Template) Fill(s *Conn) error {
	t.mu.Lock() // before the lock of the session
	defer t.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := t.conn.copyTo(s.conn); err != nil {
		return fmt.Errorf("copy a new database: %w", err)
	}
	return nil
}

// Renew closes the session, and gives one with its connection and prepared statements. It gives nil if the
// session is closed.
func (s *Conn) Renew() *Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil {
		return nil
	}
	next := &Conn{conn: s.conn, begin: s.begin, stmts: s.stmts, limit: s.limit}
	s.conn, s.stmts = nil, nil
	return next
}

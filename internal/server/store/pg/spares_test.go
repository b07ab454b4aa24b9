package pg

import (
	"testing"
	"time"

	"github.com/perdure/perdure/internal/testkit/pgtest"
)

// spared opens a database whose sessions leave their connections to the next.
func spared(t *testing.T) (*Server, *Spares) {
	t.Helper()
	url := pgtest.New(t)
	k := KeepSpares(url)
	t.Cleanup(k.Close)
	p, err := Open(Options{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	return p, k
}

const queryBackend = "SELECT pg_backend_pid()::bigint"

// backend gives the process of a new session, and has before act on the session before it is closed.
func backend(t *testing.T, s *Conn, before func(s *Conn)) (pid int64) {
	t.Helper()
	one(t, s, queryBackend, nil, &pid)
	if before != nil {
		before(s)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return pid
}

func TestNextSessionGetsTheConnection(t *testing.T) {
	t.Parallel()
	p, k := spared(t)
	writer := func() *Conn { return p.Writer(WriterOptions{Timeout: 30 * time.Second}) }
	first := backend(t, writer(), nil)
	s := writer()
	if got := backend(t, s, func(s *Conn) {
		if s.stmts[queryBackend] == nil {
			t.Error("the session has lost the statement that was prepared on its connection")
		}
	}); got != first {
		t.Errorf("the next session has the process %d, want %d", got, first)
	}
	if got := backend(t, s, nil); got == first {
		t.Error("a session that connects again has its old connection, want a new one")
	}
	if got := backend(t, p.Reader(30*time.Second), nil); got == first {
		t.Error("a session with other settings has the connection")
	}
	k.Close()
	if got := backend(t, writer(), nil); got == first {
		t.Error("the connection is used after the end")
	}
	if pids := k.PIDs(); len(pids) != 0 {
		t.Errorf("the processes %v are kept after the end", pids)
	}
}

func TestConnectionThatIsNotCleanIsNotKept(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(t *testing.T, p *Server, s *Conn){
		"a transaction is open": func(t *testing.T, p *Server, s *Conn) {
			if err := s.Begin(); err != nil {
				t.Fatal(err)
			}
			one(t, s, "SELECT 1::bigint", nil, new(int64))
		},
		"the server has closed it": func(t *testing.T, p *Server, s *Conn) {
			killer := p.session("BEGIN", checkTimeout)
			defer killer.Close()
			one(t, killer, "SELECT pg_terminate_backend(?::bigint::int, 10000)::int::bigint",
				[]any{int64(s.conn.PID())}, new(int64))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, _ := spared(t)
			first := backend(t, p.Reader(30*time.Second), func(s *Conn) { spoil(t, p, s) })
			if got := backend(t, p.Reader(30*time.Second), nil); got == first {
				t.Error("the next session has it")
			}
		})
	}
}

func TestKeptConnectionHoldsNoLock(t *testing.T) {
	t.Parallel()
	p, _ := spared(t)
	locks := func() (n int64) {
		s := p.session("BEGIN", checkTimeout)
		defer s.Close()
		one(t, s, "SELECT count(*) FROM pg_locks WHERE locktype='advisory' AND database="+
			"(SELECT oid FROM pg_database WHERE datname=current_database())", nil, &n)
		return n
	}
	m, err := p.Migrator(func() error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	if n := locks(); n != 1 {
		t.Errorf("%d locks are held during a migration, want 1", n)
	}
	m.Close()
	if n := locks(); n != 0 {
		t.Errorf("%d locks are held after a migration, want none", n)
	}
}

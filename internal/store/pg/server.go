package pg

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// How long one statement may take at the server where the caller does not say, and how long its
// answer may take beyond that before the connection is given up: a server that is gone without a
// word is not waited for.
const (
	checkTimeout   = 30 * time.Second
	migrateTimeout = time.Minute
	auditTimeout   = time.Hour
	answerWithin   = 10 * time.Second
)

// leastIdle is how long a transaction may at least be idle before the server ends it.
const leastIdle = 30 * time.Second

// A Server is where a store's sessions come from.
type Server struct {
	cfg         *pgconn.Config
	synchronous string
	down        atomic.Int64 // of all sessions
}

// Open reads an address and makes sure that what the server acknowledges is on disk.
func Open(url string) (*Server, error) {
	cfg, err := pgconn.ParseConfig(url)
	if err != nil {
		return nil, errors.New("the address of PostgreSQL can't be read: it looks like postgres://user:password@host:5432/database")
	}
	if cfg.RuntimeParams["application_name"] == "" {
		cfg.RuntimeParams["application_name"] = "perdure"
	}
	cfg.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	p := &Server{cfg: cfg}
	s := p.session("BEGIN", checkTimeout)
	defer s.Close()
	if err := p.check(s); err != nil {
		return nil, fmt.Errorf("%s: %w", p, err)
	}
	return p, nil
}

// String says where it is, without the password.
func (p *Server) String() string {
	return fmt.Sprintf("postgres://%s@%s:%d/%s", p.cfg.User, p.cfg.Host, p.cfg.Port, p.cfg.Database)
}

// check refuses settings under which an acknowledged write could be lost, and texts that it could
// not hold.
func (p *Server) check(s *Session) error {
	set := make(map[string]string)
	for _, name := range []string{"fsync", "synchronous_commit", "full_page_writes", "server_encoding", "server_version_num"} {
		err := s.Query("SELECT current_setting(?::text)", []any{name}, func(scan func(...any) error) error {
			v := ""
			err := scan(&v)
			set[name] = v
			return err
		})
		if err != nil {
			return fmt.Errorf("read its settings: %w", err)
		}
	}
	if version, _ := strconv.Atoi(set["server_version_num"]); version < 130000 {
		return fmt.Errorf("this server is version %s: 13 is the first that can be used", set["server_version_num"])
	}
	if set["server_encoding"] != "UTF8" {
		return fmt.Errorf("the database's encoding is %s, and has to be UTF8", set["server_encoding"])
	}
	for _, name := range []string{"fsync", "full_page_writes"} {
		if set[name] != "on" {
			return fmt.Errorf("refusing to start: %s is %s, and an acknowledged write survives a power loss only when it is on", name, set[name])
		}
	}
	if p.synchronous = set["synchronous_commit"]; p.synchronous == "off" {
		return errors.New("refusing to start: synchronous_commit is off, and an acknowledged write survives a crash only when it is on")
	}
	return nil
}

// session gives a session of its own connection, made when it is first used.
func (p *Server) session(begin string, timeout time.Duration) *Session {
	cfg := p.cfg.Copy()
	params := map[string]string{
		"statement_timeout": milliseconds(timeout), "lock_timeout": milliseconds(max(timeout/3, time.Millisecond)),
		// A reader may do other things between two queries.
		"idle_in_transaction_session_timeout": milliseconds(max(2*timeout, leastIdle)),
		"default_transaction_isolation":       "read committed", "jit": "off",
	}
	if p.synchronous != "" { // as it was when it was checked: whoever turns it off later does not turn it off for us
		params["synchronous_commit"] = p.synchronous
	}
	for name, v := range params {
		cfg.RuntimeParams[name] = v
	}
	return newSession(cfg, begin, timeout+answerWithin, &p.down)
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// WriterOptions are what may be different about sessions that write.
type WriterOptions struct {
	Timeout     time.Duration // of one statement
	LockTimeout time.Duration // of waiting for somebody else's lock; zero: a third of Timeout
	Reconnected func()        // is called when a lost connection was replaced, perhaps by one to another server
}

// Writer gives a session that decides and writes. Everything it does goes by an index, in that
// index's order; the planner shall not think otherwise because it once saw the table empty.
func (p *Server) Writer(opt WriterOptions) *Session {
	s := p.session("BEGIN", opt.Timeout)
	s.again = opt.Reconnected
	if opt.LockTimeout > 0 {
		s.cfg.RuntimeParams["lock_timeout"] = milliseconds(opt.LockTimeout)
	}
	for _, name := range []string{"enable_seqscan", "enable_bitmapscan", "enable_sort", "enable_hashjoin", "enable_mergejoin"} {
		s.cfg.RuntimeParams[name] = "off"
	}
	s.cfg.RuntimeParams["plan_cache_mode"] = "force_generic_plan"
	return s
}

// Reader gives a session that reads, each of its transactions as of one moment.
func (p *Server) Reader(timeout time.Duration) *Session {
	s := p.session(snapshot, timeout)
	s.cfg.RuntimeParams["plan_cache_mode"] = "force_custom_plan" // what is asked for varies, and how large the tables are
	s.cfg.ValidateConnect = validatePrimary
	return s
}

// Auditor gives a session that reads whole tables and joins them with each other: one row after the
// other is never the way, whatever the planner thinks of tables that nobody has counted yet.
func (p *Server) Auditor() *Session {
	s := p.session(snapshot, auditTimeout)
	s.cfg.RuntimeParams["enable_nestloop"] = "off"
	s.cfg.ValidateConnect = validatePrimary
	return s
}

// validatePrimary lets a session read from a primary that takes no writes, and refuses a standby:
// what a standby shows may be older than what was acknowledged.
func validatePrimary(ctx context.Context, conn *pgconn.PgConn) error {
	got, err := conn.Exec(ctx, "SELECT pg_is_in_recovery()").ReadAll()
	if err == nil && string(got[0].Rows[0][0]) == "t" {
		err = pgconn.ErrReadOnlyConnection
	}
	return err
}

// snapshot begins a transaction that reads everything as of one moment.
const snapshot = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"

// Migrator gives a session that changes the schema. It has the lock for that: nodes that start at
// once get theirs one after the other. The lock goes with the session.
func (p *Server) Migrator() (*Session, error) {
	s := p.session("BEGIN", migrateTimeout)
	const key = "hashtext('perdure ' || current_schema())"
	err := s.Query("SELECT 1 FROM (SELECT pg_advisory_lock("+key+")) AS locked", nil,
		func(func(...any) error) error { return nil })
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

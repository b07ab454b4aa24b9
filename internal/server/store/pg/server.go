package pg

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/perdure/perdure/internal/wire/release"
)

// Time limits of one statement where the caller gives none. answerWithin is how much longer an
// answer may take before the connection is closed, so that a server that vanished is noticed.
const (
	checkTimeout   = 30 * time.Second
	migrateTimeout = time.Minute
	auditTimeout   = time.Hour
	answerWithin   = 10 * time.Second
)

// leastIdle is the minimal time that a transaction may be idle before the server ends it.
const leastIdle = 30 * time.Second

// A Server gives sessions to one database.
type Server struct {
	cfg         *pgconn.Config
	synchronous string
	down        atomic.Int64 // see Conn.down
}

// Open parses an address and checks that the server makes acknowledged writes durable.
func Open(url string) (*Server, error) {
	cfg, err := pgconn.ParseConfig(url)
	if err != nil {
		return nil, errors.New("the address of PostgreSQL can't be read: it looks like " +
			"postgres://user:password@host:5432/database")
	}
	// The name begins with the release, so that people and later releases see which are connected.
	theirs := cfg.RuntimeParams["application_name"]
	cfg.RuntimeParams["application_name"] = strings.TrimSpace("perdure/" + release.Version + " " + theirs)
	cfg.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	p := &Server{cfg: cfg}
	s := p.session("BEGIN", checkTimeout)
	defer s.Close()
	if err := p.check(s); err != nil {
		return nil, fmt.Errorf("%s: %w", p, err)
	}
	return p, nil
}

// String gives the address without the password.
func (p *Server) String() string {
	return fmt.Sprintf("postgres://%s@%s:%d/%s", p.cfg.User, p.cfg.Host, p.cfg.Port, p.cfg.Database)
}

// check refuses settings under which an acknowledged write could be lost, and encodings other than
// UTF-8.
func (p *Server) check(s *Conn) error {
	set := make(map[string]string)
	for _, name := range []string{"fsync", "synchronous_commit", "full_page_writes", "server_encoding",
		"server_version_num"} {
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
			return fmt.Errorf("refusing to start: %s is %s, and an acknowledged write survives a power loss only "+
				"when it is on", name, set[name])
		}
	}
	if p.synchronous = set["synchronous_commit"]; p.synchronous == "off" {
		return errors.New("refusing to start: synchronous_commit is off, and an acknowledged write survives a crash " +
			"only when it is on")
	}
	return nil
}

// session gives a session with a connection of its own, which is made when it is first used.
func (p *Server) session(begin string, timeout time.Duration) *Conn {
	cfg := p.cfg.Copy()
	params := map[string]string{
		"statement_timeout": milliseconds(timeout), "lock_timeout": milliseconds(max(timeout/3, time.Millisecond)),
		// A reader may be idle between two queries.
		"idle_in_transaction_session_timeout": milliseconds(max(2*timeout, leastIdle)),
		"default_transaction_isolation":       "read committed", "jit": "off",
	}
	if p.synchronous != "" { // as checked: a later change of the server's default does not apply to this session
		params["synchronous_commit"] = p.synchronous
	}
	for name, v := range params {
		cfg.RuntimeParams[name] = v
	}
	return newSession(cfg, begin, timeout+answerWithin, &p.down)
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// WriterOptions are the settings of a session that writes.
type WriterOptions struct {
	Timeout     time.Duration // time limit of one statement
	LockTimeout time.Duration // time limit of waiting for a lock; zero: a third of Timeout
	// Reconnected is called after a lost connection was replaced, perhaps by one to another server.
	Reconnected func()
}

// Writer gives a session that decides and writes. All its statements use an index in its order. The
// planner settings enforce that, because its statistics may be those of an empty table.
func (p *Server) Writer(opt WriterOptions) *Conn {
	s := p.session("BEGIN", opt.Timeout)
	s.onReconnect = opt.Reconnected
	if opt.LockTimeout > 0 {
		s.cfg.RuntimeParams["lock_timeout"] = milliseconds(opt.LockTimeout)
	}
	for _, name := range []string{"enable_seqscan", "enable_bitmapscan", "enable_sort", "enable_incremental_sort",
		"enable_hashjoin", "enable_mergejoin"} {
		s.cfg.RuntimeParams[name] = "off"
	}
	s.cfg.RuntimeParams["plan_cache_mode"] = "force_generic_plan"
	return s
}

// Reader gives a session that reads, with one snapshot per transaction.
func (p *Server) Reader(timeout time.Duration) *Conn {
	s := p.session(snapshot, timeout)
	s.cfg.RuntimeParams["plan_cache_mode"] = "force_custom_plan" // arguments and table sizes vary
	s.cfg.ValidateConnect = validatePrimary
	return s
}

// Auditor gives a session that reads and joins whole tables. Nested loops are off, because without
// statistics the planner would choose them.
func (p *Server) Auditor() *Conn {
	s := p.session(snapshot, auditTimeout)
	s.cfg.RuntimeParams["enable_nestloop"] = "off"
	s.cfg.ValidateConnect = validatePrimary
	return s
}

// validatePrimary accepts a primary that takes no writes, and refuses a standby, which may show
// older data than was acknowledged.
func validatePrimary(ctx context.Context, conn *pgconn.PgConn) error {
	got, err := conn.Exec(ctx, "SELECT pg_is_in_recovery()").ReadAll()
	if err == nil && string(got[0].Rows[0][0]) == "t" {
		err = pgconn.ErrReadOnlyConnection
	}
	return err
}

// snapshot begins a transaction that reads everything as of one moment.
const snapshot = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"

// Migrator gives a session that changes the schema. It holds an advisory lock until it is closed,
// so that nodes that start at the same time migrate one after the other.
func (p *Server) Migrator() (*Conn, error) {
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

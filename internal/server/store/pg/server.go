package pg

import (
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
	migrateTimeout = 7 * 24 * time.Hour // a migration says how far it is
	migrateLock    = 2 * time.Second
	migrateAsk     = 100 * time.Millisecond
	auditTimeout   = time.Hour
	answerWithin   = 10 * time.Second
)

// leastIdle is the minimal time that a transaction may be idle before the server ends it.
const leastIdle = 30 * time.Second

// NodeProgram begins the name of a node's connection.
const NodeProgram = "perdure"

// The name of a connection in pg_stat_activity begins with one of these, so that people and other
// nodes see which releases are connected. The application_name of the address follows.
const (
	nodeName = NodeProgram + "/" + release.Version
	toolName = "perdure-tool/" + release.Version
)

// A Server gives sessions to one database.
type Server struct {
	cfg         *pgconn.Config
	opt         Options
	hosts       []host
	synchronous string
	down        atomic.Int64 // since when no session could connect; zero: one could
	spares      *Spares      // of tests; nil: sessions close their connections

	choice    choice
	asking    chan struct{} // held by the one that asks all servers
	admission atomic.Int64  // the latest number of Options.Admit
}

// Open parses an address and checks that the server makes acknowledged writes durable.
func Open(opt Options) (*Server, error) {
	cfg, err := pgconn.ParseConfig(opt.URL)
	if err != nil {
		return nil, errors.New("the address of PostgreSQL can't be read: it looks like " +
			"postgres://user:password@host:5432/database")
	}
	theirs := cfg.RuntimeParams["application_name"]
	name := nodeName
	if opt.Tool {
		name = toolName
	}
	cfg.RuntimeParams["application_name"] = strings.TrimSpace(name + " " + theirs)
	opt.defaults()
	p := &Server{cfg: cfg, opt: opt, hosts: hostsOf(cfg), asking: make(chan struct{}, 1), spares: sparesOf(opt.URL)}
	cfg.ValidateConnect = p.validate(true)
	p.down.Store(1) // as if it were away for long: the first failure is returned, and the caller may wait
	s := p.session("BEGIN", checkTimeout)
	defer s.Close()
	if err := p.check(s); dropped(err) {
		return nil, err // it names the server
	} else if err != nil {
		return nil, fmt.Errorf("%s: %w", p, err)
	}
	return p, nil
}

// Unreachable tells whether Open has failed for a reason that may pass: the server is away or
// starting, it has no free connection, or it is a standby that may be promoted.
func Unreachable(err error) bool {
	return errors.Is(err, ErrStandby) && !errors.Is(err, ErrOther) || errors.Is(err, ErrLost) && passing(err)
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
			if dropped(err) {
				return err
			}
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
	return newSession(p, cfg, begin, timeout+answerWithin)
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

// Reader gives a session that reads, with one snapshot per transaction. Its pages come in the order of an index:
// without statistics, which a new store has not, the planner would read a bitmap of all runs of a tenant and sort them.
func (p *Server) Reader(timeout time.Duration) *Conn {
	s := p.session(snapshot, timeout)
	s.cfg.RuntimeParams["enable_bitmapscan"] = "off"
	s.cfg.RuntimeParams["plan_cache_mode"] = "force_custom_plan" // arguments and table sizes vary
	s.cfg.ValidateConnect = p.validate(false)
	return s
}

// Auditor gives a session that reads and joins whole tables. Nested loops are off, because without
// statistics the planner would choose them.
func (p *Server) Auditor() *Conn {
	s := p.session(snapshot, auditTimeout)
	s.cfg.RuntimeParams["enable_nestloop"] = "off"
	s.cfg.ValidateConnect = p.validate(false)
	return s
}

// snapshot begins a transaction that reads everything as of one moment.
const snapshot = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"

// Migrator gives a session that changes the schema. It holds an advisory lock until it is closed, so
// that nodes that start at the same time migrate one after the other. waits is called now and then
// while another one holds it. The lock is asked for again and again: a session that waits for it
// would have a snapshot, and an index that is built concurrently waits for all snapshots.
//
// A statement may take as long as it takes, and waits for a lock for migrateLock only: meanwhile
// everybody else who wants the table waits behind it. An error of waits ends the wait.
func (p *Server) Migrator(waits func() error) (*Conn, error) {
	s := p.session("BEGIN", migrateTimeout)
	s.locks = true
	s.cfg.RuntimeParams["lock_timeout"] = milliseconds(migrateLock)
	const key = "hashtext('perdure ' || current_schema())"
	for {
		got := int64(0)
		err := s.Query("SELECT pg_try_advisory_lock("+key+")::int", nil,
			func(scan func(...any) error) error { return scan(&got) })
		if err != nil {
			s.Close()
			return nil, err
		}
		if got == 1 {
			return s, nil
		}
		if err := waits(); err != nil {
			s.Close()
			return nil, err
		}
		time.Sleep(migrateAsk)
	}
}

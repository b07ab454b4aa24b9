package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/perdure/perdure"
)

var postgresDialect = &dialect{
	name: "postgres",
	// Texts compare byte by byte, as they do in Go and in SQLite, whatever the database's language is.
	schema:      strings.NewReplacer("{without rowid}", "", "{text}", `TEXT COLLATE "C"`, "{bytes}", "BYTEA"),
	tableExists: "SELECT count(*) FROM information_schema.tables WHERE table_schema=current_schema() AND table_name=?::text",
	contains:    "position(?::text IN metadata)>0",
	indexed:     func(string) string { return "" },
	skipLocked:  " FOR UPDATE SKIP LOCKED",
	anyOf: func(column string, values []string) (string, []any) {
		return column + " = ANY(?::text[])", []any{values}
	},
	// All columns come from the arguments: the planner, who may have seen the table empty, has no way to read more of
	// it than these rows.
	keyed: func(table string, columns, fixed, values []string) (string, []any) {
		kinds, args := slices.Repeat([]string{"?::text[]"}, len(columns)), make([]any, len(columns))
		for i := range columns {
			if args[i] = values; i < len(fixed) {
				args[i] = slices.Repeat(fixed[i:i+1], len(values))
			}
		}
		return joinGiven(table, columns, "unnest("+strings.Join(kinds, ",")+")"), args
	},
	among: func(table string, columns []string, rows string) string {
		return joinGiven(table, columns, "("+rows+")")
	},
	rows: func(part [][]any) string {
		kinds := make([]string, len(part[0]))
		for i, v := range part[0] {
			if kinds[i] = "?::bigint[]"; isText(v) {
				kinds[i] = "?::text[]"
			}
		}
		return "SELECT * FROM unnest(" + strings.Join(kinds, ",") + ")"
	},
	args: columns,
	conflict: func(err error) bool {
		var e *pgconn.PgError
		if !errors.As(err, &e) {
			return false
		}
		switch e.Code {
		case "23505", // a key that is there already
			"40001", // not to be put in order with what others did
			"40P01": // a deadlock
			return true
		}
		return false
	},
	lost:     func(err error) bool { return errors.Is(err, errLost) },
	blocked:  func(error) bool { return false },
	readOnly: func(err error) bool { return errors.Is(err, errStandby) },
	locked: func(err error) bool {
		var e *pgconn.PgError
		return errors.As(err, &e) && e.Code == lockTimeout
	},
	late: func(err error) bool {
		var e *pgconn.PgError
		return errors.As(err, &e) && e.Code == queryCancelled
	},
	busy: func(err error) bool {
		var e *pgconn.PgError
		// A statement or a lock that took too long, or too little of something at the server.
		return errors.As(err, &e) && (e.Code == queryCancelled || e.Code == lockTimeout || strings.HasPrefix(e.Code, "53"))
	},
}

// What the server says when a lock was waited for too long, and when a statement took too long.
const (
	lockTimeout    = "55P03"
	queryCancelled = "57014"
)

// joinGiven joins a table with what is given of its columns.
func joinGiven(table string, columns []string, given string) string {
	names, on := make([]string, len(columns)), make([]string, len(columns))
	for i, c := range columns {
		names[i] = "k" + strconv.Itoa(i)
		on[i] = table + "." + c + "=" + names[i]
	}
	return "JOIN " + given + " AS given(" + strings.Join(names, ",") + ") ON " + strings.Join(on, " AND ")
}

func isText(v any) bool {
	_, ok := v.(string)
	return ok
}

// How long one statement may take at the server, and how long its answer may take before the connection is
// given up: a server that is gone without a word is not waited for. The watchdog's statements are small, and whatever
// else it has to do waits for the one that is slow. The readers have Options.QueryDeadline.
const (
	writeTimeout = 15 * time.Second
	watchTimeout = 5 * time.Second
	readTimeout  = 30 * time.Second
	answerWithin = 10 * time.Second
	auditTimeout = time.Hour
)

// A postgres is where a store's sessions come from.
type postgres struct {
	cfg         *pgconn.Config
	synchronous string
	down        atomic.Int64 // of all sessions
}

// openPostgres reads an address and makes sure that what the server acknowledges is on disk.
func openPostgres(url string) (*postgres, error) {
	cfg, err := pgconn.ParseConfig(url)
	if err != nil {
		return nil, errors.New("the address of PostgreSQL can't be read: it looks like postgres://user:password@host:5432/database")
	}
	if cfg.RuntimeParams["application_name"] == "" {
		cfg.RuntimeParams["application_name"] = "perdure"
	}
	cfg.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	p := &postgres{cfg: cfg}
	s := p.session("BEGIN", readTimeout)
	defer s.Close()
	if err := p.check(s); err != nil {
		return nil, fmt.Errorf("%s: %w", p, err)
	}
	return p, nil
}

// String says where it is, without the password.
func (p *postgres) String() string {
	return fmt.Sprintf("postgres://%s@%s:%d/%s", p.cfg.User, p.cfg.Host, p.cfg.Port, p.cfg.Database)
}

// check refuses settings under which an acknowledged write could be lost, and texts that it could not hold.
func (p *postgres) check(s *pgSession) error {
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
func (p *postgres) session(begin string, timeout time.Duration) *pgSession {
	cfg := p.cfg.Copy()
	ms := func(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
	params := map[string]string{
		"statement_timeout": ms(timeout), "lock_timeout": ms(max(timeout/3, time.Millisecond)),
		// A reader may do other things between two queries.
		"idle_in_transaction_session_timeout": ms(2 * max(timeout, writeTimeout)),
		"default_transaction_isolation":       "read committed", "jit": "off",
	}
	if p.synchronous != "" { // as it was when it was checked: whoever turns it off later does not turn it off for us
		params["synchronous_commit"] = p.synchronous
	}
	for name, v := range params {
		cfg.RuntimeParams[name] = v
	}
	s := newPGSession(cfg, begin, timeout+answerWithin)
	s.down = &p.down
	return s
}

// writer is a session that decides and writes. Everything it does goes by an index, in that index's order; the
// planner shall not think otherwise because it once saw the table empty.
func (p *postgres) writer(timeout time.Duration) *pgSession {
	s := p.session("BEGIN", timeout)
	for _, name := range []string{"enable_seqscan", "enable_bitmapscan", "enable_sort", "enable_hashjoin", "enable_mergejoin"} {
		s.cfg.RuntimeParams[name] = "off"
	}
	s.cfg.RuntimeParams["plan_cache_mode"] = "force_generic_plan"
	return s
}

func (p *postgres) reader(timeout time.Duration) *pgSession {
	s := p.session(snapshot, timeout)
	s.cfg.RuntimeParams["plan_cache_mode"] = "force_custom_plan" // what is asked for varies, and how large the tables are
	s.cfg.ValidateConnect = validatePrimary
	return s
}

// auditor is a session that reads whole tables and joins them with each other: one row after the other is never the
// way, whatever the planner thinks of tables that nobody has counted yet.
func (p *postgres) auditor() *pgSession {
	s := p.session(snapshot, auditTimeout)
	s.cfg.RuntimeParams["enable_nestloop"] = "off"
	s.cfg.ValidateConnect = validatePrimary
	return s
}

// validatePrimary lets a session read from a primary that takes no writes, and refuses a standby: what a standby shows
// may be older than what was acknowledged.
func validatePrimary(ctx context.Context, conn *pgconn.PgConn) error {
	got, err := conn.Exec(ctx, "SELECT pg_is_in_recovery()").ReadAll()
	if err == nil && string(got[0].Rows[0][0]) == "t" {
		err = pgconn.ErrReadOnlyConnection
	}
	return err
}

// snapshot begins a transaction that reads everything as of one moment.
const snapshot = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"

// migrate brings the schema up to date. Nodes that start at once do it one after the other.
func (p *postgres) migrate(asIs bool) error {
	s := p.session("BEGIN", time.Minute)
	defer s.Close()
	const key = "hashtext('perdure ' || current_schema())"
	if err := s.Query("SELECT 1 FROM (SELECT pg_advisory_lock("+key+")) AS locked", nil, func(func(...any) error) error { return nil }); err != nil {
		return err
	}
	return migrate(s, postgresDialect, asIs) // the lock goes with the connection
}

// A serverClock follows the clock of the database. In between it counts on its own, and it asks again every
// second. It is never ahead of the server's by more than the two drift apart in that time, and behind it by no
// more than an answer takes.
type serverClock struct {
	sess *pgSession
	log  *slog.Logger

	mu   sync.Mutex
	at   perdure.Instant // the server's clock …
	zero time.Duration   // … when our own counter showed this
	last perdure.Instant // the latest instant that was given out

	heard time.Time // when the server last answered
	err   error     // of the last question
	back  func()    // is called when the clock goes back
}

const clockEvery = time.Second

// awayAfter is how long a database may be silent. A restart passes unnoticed, except by who has to wait for it.
const awayAfter = 3 * time.Second

// jump is by how much the server's clock may be set back without anybody noticing: the time stands still that long.
const jump = time.Second

func startServerClock(p *postgres, log *slog.Logger) (*serverClock, error) {
	c := &serverClock{sess: p.reader(readTimeout), log: log}
	if err := c.ask(); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *serverClock) ask() error {
	var at int64
	err := c.sess.Query("SELECT (extract(epoch FROM clock_timestamp())*1000000)::bigint", nil, func(scan func(...any) error) error { return scan(&at) })
	now := counting()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err = err; err != nil {
		return err
	}
	c.at, c.zero, c.heard = perdure.Instant(at), now, time.Now()
	if back := c.last.Sub(c.at); back > jump {
		c.log.Warn("the clock of the database was set back", "by", back)
		c.last = 0
		if c.back != nil {
			c.back()
		}
	}
	return nil
}

// now is the server's time. It does not go back, unless the server's clock was set back by more than a moment.
func (c *serverClock) now() perdure.Instant {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = max(c.last, c.at.Add(counting()-c.zero))
	return c.last
}

// away tells whether the server is silent.
func (c *serverClock) away() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if d := time.Since(c.heard); d > awayAfter && errors.Is(c.err, errStandby) {
		return errReadOnly
	} else if d > awayAfter {
		return fmt.Errorf("the database has not answered for %s", d.Round(time.Second))
	}
	return nil
}

// follow asks until done.
func (c *serverClock) follow(done <-chan struct{}) {
	tick := time.NewTicker(clockEvery)
	defer tick.Stop()
	defer c.sess.Close()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
		}
		if err := c.ask(); err != nil {
			c.log.Warn("the clock of the database can't be read; counting on", "error", err)
		}
	}
}

package store

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/store/pg"
)

var postgresDialect = &dialect{
	name: "postgres",
	// Texts compare byte by byte, as in Go and SQLite, whatever the locale of the database is.
	schema: strings.NewReplacer("{without rowid}", "", "{text}", `TEXT COLLATE "C"`, "{bytes}", "BYTEA",
		"{concurrently}", "CONCURRENTLY IF NOT EXISTS"),
	invalidIndex: "SELECT count(*) FROM pg_index AS i JOIN pg_class AS c ON c.oid=i.indexrelid " +
		"JOIN pg_namespace AS n ON n.oid=c.relnamespace " +
		"WHERE n.nspname=current_schema() AND c.relname=?::text AND NOT i.indisvalid",
	tableExists: "SELECT count(*) FROM information_schema.tables WHERE table_schema=current_schema() " +
		"AND table_name=?::text",
	contains:   func(column string) string { return "position(?::text IN " + column + ")>0" },
	indexed:    func(string) string { return "" },
	skipLocked: " FOR UPDATE SKIP LOCKED",
	skipRows:   func(table string) string { return " FOR NO KEY UPDATE OF " + table + " SKIP LOCKED" },
	recursive:  true,
	anyOf: func(column string, values []string) (string, []any) {
		return column + " = ANY(?::text[])", []any{values}
	},
	// All columns come from the arguments. The planner may have statistics of an empty table, and
	// this leaves it no plan that reads more than these rows.
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
			kinds[i] = kindOf(v) + "[]"
		}
		return "SELECT * FROM unnest(" + strings.Join(kinds, ",") + ")"
	},
	shared: func(first []any, g grouping, all sharing) string {
		list, names, kinds := make([]string, len(first)), []string(nil), []string(nil)
		for i, v := range first {
			if list[i] = kindOf(v); !all.has(g[i]) {
				kinds = append(kinds, list[i]+"[]")
				list[i] = "c" + strconv.Itoa(i)
				names = append(names, list[i])
			}
		}
		return "SELECT " + strings.Join(list, ",") + " FROM unnest(" + strings.Join(kinds, ",") + ") AS varied(" +
			strings.Join(names, ",") + ")"
	},
	lockTables: func(tables []string) string {
		return "LOCK TABLE " + strings.Join(tables, ", ") + " IN ROW EXCLUSIVE MODE"
	},
	args:     pg.Columns,
	conflict: pg.IsConflict,
	lost:     func(err error) bool { return errors.Is(err, pg.ErrLost) },
	blocked:  func(error) bool { return false },
	readOnly: func(err error) bool { return errors.Is(err, pg.ErrStandby) },
	locked:   pg.IsLocked,
	late:     pg.IsLate,
	busy:     pg.IsBusy,
}

// joinGiven joins a table with given values of its columns.
func joinGiven(table string, columns []string, given string) string {
	names, on := make([]string, len(columns)), make([]string, len(columns))
	for i, c := range columns {
		names[i] = "k" + strconv.Itoa(i)
		on[i] = table + "." + c + "=" + names[i]
	}
	return "JOIN " + given + " AS given(" + strings.Join(names, ",") + ") ON " + strings.Join(on, " AND ")
}

// kindOf is a parameter for a value.
func kindOf(v any) string {
	if isText(v) {
		return "?::text"
	}
	return "?::bigint"
}

func isText(v any) bool {
	_, ok := v.(string)
	return ok
}

// Time limits of one statement at the server. The watchdog's statements are small, and the rest of
// its work waits for a slow one. Readers have Options.QueryDeadline.
const (
	writeTimeout = 15 * time.Second
	watchTimeout = 5 * time.Second
	clockTimeout = 30 * time.Second
)

// migratePostgres migrates the schema. Nodes that start at the same time do it one after the other.
func migratePostgres(p *pg.Server, log *slog.Logger, asIs bool, migrating func(why string) bool) error {
	said := time.Now()
	s, err := p.Migrator(func() error {
		if time.Since(said) >= slowEvery {
			said = time.Now()
			log.Info("another node migrates the schema; waiting for it")
		}
		if migrating != nil && !migrating("another node brings the schema up to date") {
			return errMigrationStopped
		}
		return nil
	})
	if err != nil {
		return err
	}
	defer s.Close()
	m, err := newMigrator(s, postgresDialect, log)
	if err != nil {
		return err
	}
	look := p.Reader(watchTimeout)
	defer look.Close()
	m.waits = migrating
	m.progress = func() string { return indexProgress(look) }
	return m.run(asIs)
}

// indexProgress says how far the build of an index is.
func indexProgress(s Conn) (text string) {
	err := s.Query("SELECT phase, blocks_done, blocks_total FROM pg_stat_progress_create_index "+
		"WHERE datname=current_database()", nil, func(scan func(...any) error) error {
		var phase string
		var done, total int64
		err := scan(&phase, &done, &total)
		text = fmt.Sprintf("%s, %d of %d blocks", phase, done, total)
		return err
	})
	if err != nil {
		return ""
	}
	return text
}

// A serverClock follows the clock of the database. It asks once a second and counts on its own in
// between. It is ahead of the server's clock at most by the drift in that time and the time that an
// answer takes, and behind at most by the time that its quickest answer took.
type serverClock struct {
	sess *pg.Conn
	log  *slog.Logger
	lost func(error) // called when the server does not answer

	mu   sync.Mutex
	at   perdure.Instant // the server's clock …
	zero time.Duration   // … when the local counter showed this
	last perdure.Instant // the latest instant that now has returned

	heard time.Time // when the server last answered
	err   error     // of the last query
	back  func()    // called when the server's clock was set back
}

const clockEvery = time.Second

// awayAfter is how long a database may be silent before it counts as away. A restart usually takes
// less.
const awayAfter = 3 * time.Second

// jump is by how much the server's clock may be set back without a warning. The store's clock
// stands still for that long.
const jump = time.Second

// startServerClock reads the server's clock for the first time.
func startServerClock(p *pg.Server, log *slog.Logger, lost func(error)) (*serverClock, error) {
	c := &serverClock{sess: p.Reader(clockTimeout), log: log, lost: lost}
	if err := c.ask(); err != nil {
		return nil, err
	}
	return c, nil
}

// ask reads the server's clock.
func (c *serverClock) ask() error {
	var at int64
	sent := counting()
	err := c.sess.Query("SELECT (extract(epoch FROM clock_timestamp())*1000000)::bigint", nil,
		func(scan func(...any) error) error { return scan(&at) })
	now := counting()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err = err; err != nil {
		return err
	}
	c.heard = time.Now()
	c.answered(perdure.Instant(at), sent, now)
	return nil
}

// answered takes an answer of the server's clock. The server gave it between the local times sent and
// now, so its clock shows an instant between at and latest by now. If the clock as it was known is
// between these, it goes on: a slow line would otherwise put it behind.
func (c *serverClock) answered(at perdure.Instant, sent, now time.Duration) {
	latest := at.Add(now - sent)
	if c.at != 0 {
		at = min(max(at, c.at.Add(now-c.zero)), latest)
	}
	c.at, c.zero = at, now
	if back := c.last.Sub(c.at); back > jump {
		c.log.Warn("the clock of the database was set back", "by", back)
		c.last = 0
		if c.back != nil {
			c.back()
		}
	}
}

// now gives the server's time. It does not go back, unless the server's clock was set back by more
// than jump.
func (c *serverClock) now() perdure.Instant {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = max(c.last, c.at.Add(counting()-c.zero))
	return c.last
}

// away tells whether the server has been silent for longer than awayAfter.
func (c *serverClock) away() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if pg.Refused(c.err) {
		return readOnly(c.err)
	}
	if d := time.Since(c.heard); d > awayAfter && errors.Is(c.err, pg.ErrStandby) {
		return errReadOnly
	} else if d > awayAfter {
		return fmt.Errorf("%w for %s", errAway, d.Round(time.Second))
	}
	return nil
}

// follow asks every second until done is closed.
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
			c.lost(err)
		}
	}
}

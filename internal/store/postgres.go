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
	"github.com/perdure/perdure/internal/store/pg"
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
	args:     pg.Columns,
	conflict: pg.IsConflict,
	lost:     func(err error) bool { return errors.Is(err, pg.ErrLost) },
	blocked:  func(error) bool { return false },
	readOnly: func(err error) bool { return errors.Is(err, pg.ErrStandby) },
	locked:   pg.IsLocked,
	late:     pg.IsLate,
	busy:     pg.IsBusy,
}

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

// How long one statement may take at the server. The watchdog's statements are small, and whatever else it has to do
// waits for the one that is slow. The readers have Options.QueryDeadline.
const (
	writeTimeout = 15 * time.Second
	watchTimeout = 5 * time.Second
	clockTimeout = 30 * time.Second
)

// migratePostgres brings the schema up to date. Nodes that start at once do it one after the other.
func migratePostgres(p *pg.Server, asIs bool) error {
	s, err := p.Migrator()
	if err != nil {
		return err
	}
	defer s.Close()
	return migrate(s, postgresDialect, asIs)
}

// A serverClock follows the clock of the database. In between it counts on its own, and it asks again every
// second. It is never ahead of the server's by more than the two drift apart in that time, and behind it by no
// more than an answer takes.
type serverClock struct {
	sess *pg.Session
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

func startServerClock(p *pg.Server, log *slog.Logger) (*serverClock, error) {
	c := &serverClock{sess: p.Reader(clockTimeout), log: log}
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
	if d := time.Since(c.heard); d > awayAfter && errors.Is(c.err, pg.ErrStandby) {
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

package pgtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Env is the variable with the URL of a database on the cluster that tests share, as a role that may create
// others. Without it each test process that needs a cluster has its own.
const Env = "PERDURE_TEST_POSTGRES"

// shared is the URL of the cluster of this process. One that is started here is never stopped: it dies
// with the process, and its folder is removed by the next.
var shared = sync.OnceValues(func() (string, error) {
	if given := os.Getenv(Env); given != "" {
		return given, nil
	}
	c, err := Start(Options{InMemory: true})
	if err != nil {
		return "", err
	}
	return c.URL("postgres"), nil
})

// New gives the URL of an empty database, which is dropped when the test ends.
func New(t testing.TB) string {
	t.Helper()
	address, drop, err := create()
	if err != nil {
		t.Fatalf("a database for this test: %v", err)
	}
	t.Cleanup(func() {
		if err := drop(); err != nil {
			t.Errorf("dropping the database of this test: %v", err)
		}
	})
	return address
}

// create makes an empty database in the shared cluster.
func create() (address string, drop func() error, err error) {
	maintenance, err := shared()
	if err != nil {
		return "", nil, err
	}
	u, err := url.Parse(maintenance)
	if err != nil {
		return "", nil, fmt.Errorf("%s: %w", Env, err)
	}
	name := "perdure_test_" + strings.ToLower(rand.Text())
	if err := execute(maintenance, "CREATE DATABASE "+name); err != nil {
		return "", nil, err
	}
	u.Path = "/" + name
	return u.String(), func() error {
		return execute(maintenance, "DROP DATABASE "+name+" WITH (FORCE)")
	}, nil
}

// execute runs a statement on a connection of its own.
func execute(address, sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgconn.Connect(ctx, address)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, sql).ReadAll()
	return err
}

// query gives the only value of a query's answer.
func query(address, sql string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgconn.Connect(ctx, address)
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)
	got, err := conn.Exec(ctx, sql).ReadAll()
	if err != nil {
		return "", err
	}
	if len(got) != 1 || len(got[0].Rows) != 1 || len(got[0].Rows[0]) != 1 {
		return "", fmt.Errorf("%s: the answer has more or less than one value", sql)
	}
	return string(got[0].Rows[0][0]), nil
}

// A Pool gives out databases of one shape and takes them back. Creating the tables of a database takes far
// longer than emptying them, so a database that a test gives back is emptied and serves the next; each test has
// its own for as long as it runs. A test that changes the tables themselves takes a database from New.
//
// The zero value with Prepare set is ready for use, and may be used from several goroutines.
type Pool struct {
	// Prepare makes of an empty database what the tests want to find: its tables and first rows, in the
	// schema public and without sequences.
	Prepare func(url string) error
	// Keep, if it is set, is called for each database, and keeps connections that the next test uses.
	Keep func(url string) Kept

	mu   sync.Mutex
	free []*shape
}

// Kept has connections that stay between two tests.
type Kept interface {
	// PIDs names the server's processes of those that nobody uses.
	PIDs() []uint32
	// Close ends them.
	Close()
}

// New gives the URL of a database as Prepare leaves it. When the test ends, nothing may be connected to it
// any more; if something is, the database is dropped and not used again.
func (p *Pool) New(t testing.TB) string {
	t.Helper()
	s, err := p.take()
	if err != nil {
		t.Fatalf("a database for this test: %v", err)
	}
	t.Cleanup(func() {
		err := s.restore()
		if err == nil {
			p.put(s)
			return
		}
		t.Logf("the database of this test can't serve another: %v", err)
		if err := s.discard(); err != nil {
			t.Errorf("dropping the database of this test: %v", err)
		}
	})
	return s.url
}

func (p *Pool) take() (*shape, error) {
	p.mu.Lock()
	if n := len(p.free); n > 0 {
		s := p.free[n-1]
		p.free = p.free[:n-1]
		p.mu.Unlock()
		return s, nil
	}
	p.mu.Unlock()
	address, drop, err := create()
	if err != nil {
		return nil, err
	}
	s := &shape{url: address, drop: drop}
	if p.Keep != nil {
		s.kept = p.Keep(address)
	}
	if err = p.Prepare(address); err == nil {
		err = s.remember()
	}
	if err != nil {
		return nil, errors.Join(err, s.discard())
	}
	return s, nil
}

func (p *Pool) put(s *shape) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, s)
}

// A shape is a database that can be made as it was.
type shape struct {
	url         string
	drop        func() error
	conn        *pgx.Conn
	fingerprint string
	reset       string // the statements that bring the rows back
	kept        Kept   // nil: no connections stay
}

// fingerprint changes with the tables of a database, not with their rows.
const fingerprint = `SELECT coalesce(md5(string_agg(concat_ws(' ', oid, relname, relnatts, relchecks,
relhastriggers), ',' ORDER BY oid)), '')
	FROM pg_class WHERE relnamespace = 'public'::regnamespace`

// empty empties the tables. Those that are large or have statistics are truncated, which takes their statistics along,
// so that the planner knows as little of them as of new ones. Truncating costs more than deleting a few rows, and has
// all connections plan their statements for the table again. The planner takes a table without statistics for one of
// ten pages, whether it has none or eight with deleted rows.
const empty = `DO $$ DECLARE tables text; one regclass; BEGIN
	SELECT string_agg(oid::regclass::text, ', ') INTO tables FROM pg_class
	WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'
		AND (reltuples >= 0 OR pg_relation_size(oid) > 8 * 8192);
	IF tables IS NOT NULL THEN EXECUTE 'TRUNCATE ' || tables; END IF;
	FOR one IN SELECT oid FROM pg_class
	WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND pg_relation_size(oid) > 0 LOOP
		EXECUTE 'DELETE FROM ' || one;
	END LOOP;
END $$`

// remember keeps the rows that are there in tables beside their own.
func (s *shape) remember() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if s.conn, err = pgx.Connect(ctx, s.url); err != nil {
		return err
	}
	if err := s.conn.QueryRow(ctx, fingerprint).Scan(&s.fingerprint); err != nil {
		return err
	}
	rows, err := s.conn.Query(ctx, `SELECT relname::text, relkind = 'S' FROM pg_class WHERE relnamespace = `+
		`'public'::regnamespace AND relkind IN ('r', 'S') ORDER BY 1`)
	if err != nil {
		return err
	}
	var tables []string
	var name string
	var sequence bool
	_, err = pgx.ForEachRow(rows, []any{&name, &sequence}, func() error {
		if sequence {
			return fmt.Errorf("%s is a sequence, which a pool can't set back", name)
		}
		tables = append(tables, pgx.Identifier{name}.Sanitize())
		return nil
	})
	if err != nil {
		return err
	}
	if _, err := s.conn.Exec(ctx, "CREATE SCHEMA kept"); err != nil {
		return err
	}
	reset := []string{"BEGIN", empty}
	for _, table := range tables {
		kept, err := s.conn.Exec(ctx, "CREATE TABLE kept."+table+" AS TABLE public."+table)
		if err != nil {
			return err
		}
		if kept.RowsAffected() > 0 {
			reset = append(reset, "INSERT INTO public."+table+" TABLE kept."+table)
		} else if _, err := s.conn.Exec(ctx, "DROP TABLE kept."+table); err != nil {
			return err
		}
	}
	s.reset = strings.Join(append(reset, "COMMIT"), ";\n")
	return nil
}

// looks is how often a connection may be there, a millisecond apart, before it counts as one that stays. A machine that
// stands still does not look.
const looks = 1000

// restore makes the database as it was. A connection that its client has closed is there for a moment still;
// one that stays belongs to somebody who could write into the database of the next test.
func (s *shape) restore() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for look := 0; ; look++ {
		var others int
		stay := []uint32{}
		if s.kept != nil {
			stay = s.kept.PIDs()
		}
		err := s.conn.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid() AND pid <> ALL($1::bigint[])
				AND backend_type = 'client backend'`, stay).Scan(&others)
		if err != nil {
			return fmt.Errorf("waiting for connections to close: %w", err)
		}
		if others == 0 {
			break
		}
		if look == looks {
			return errors.New("somebody is connected to it")
		}
		time.Sleep(time.Millisecond)
	}
	var now string
	if err := s.conn.QueryRow(ctx, fingerprint).Scan(&now); err != nil {
		return err
	}
	if now != s.fingerprint {
		return errors.New("the tables have changed")
	}
	_, err := s.conn.PgConn().Exec(ctx, s.reset).ReadAll()
	return err
}

// discard gives up a database that can't be used again.
func (s *shape) discard() error {
	if s.kept != nil {
		s.kept.Close()
	}
	if s.conn != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		s.conn.Close(ctx) // the database is dropped whether or not it can say goodbye
	}
	return s.drop()
}

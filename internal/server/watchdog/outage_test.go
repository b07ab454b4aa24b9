package watchdog

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// An outage is a time in which a store takes no writes.
type outage struct {
	at         store.Options
	begin, end func()
}

// sessions has the sessions of a store that write.
type sessions struct {
	mu   sync.Mutex
	list []store.Conn
	full atomic.Bool
}

func (w *sessions) wrap(s store.Conn) store.Conn {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.list = append(w.list, s)
	return spaceless{s, &w.full}
}

// spaceless is a session of a PostgreSQL server whose disk is full.
type spaceless struct {
	store.Conn
	full *atomic.Bool
}

func (s spaceless) Exec(query string, args []any) (int64, error) {
	if s.full.Load() && (strings.HasPrefix(query, "INSERT") || strings.Contains(query, "UPDATE")) {
		return 0, &pgconn.PgError{Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: "53100",
			Message: "could not extend file: No space left on device"}
	}
	return s.Conn.Exec(query, args)
}

// outages are the ways in which each store stops taking writes.
var outages = map[string]func(*testing.T) outage{
	"SQLite is read-only": func(t *testing.T) outage {
		return pragma(t, "PRAGMA query_only=1", "PRAGMA query_only=0")
	},
	"SQLite is full": func(t *testing.T) outage {
		return pragma(t, "PRAGMA max_page_count=1", "PRAGMA max_page_count=1000000")
	},
	"PostgreSQL is read-only": func(t *testing.T) outage {
		at := store.Options{URL: storetest.Postgres(t)}
		exec := psql(t, at.URL)
		set := func(how string) func() {
			return func() {
				exec("DO $$ BEGIN EXECUTE format('ALTER DATABASE %I " + how + "', current_database()); END $$")
				exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE " +
					"datname=current_database() AND application_name LIKE 'perdure/%'")
			}
		}
		end := set("RESET default_transaction_read_only")
		t.Cleanup(end) // the database goes to another test
		return outage{at, set("SET default_transaction_read_only=on"), end}
	},
	"PostgreSQL is full": func(t *testing.T) outage {
		var w sessions
		at := store.Options{URL: storetest.Postgres(t)}
		at.Hooks.Wrap = w.wrap
		return outage{at, func() { w.full.Store(true) }, func() { w.full.Store(false) }}
	},
	"a table of PostgreSQL is locked": func(t *testing.T) outage {
		at := store.Options{URL: storetest.Postgres(t)}
		exec := psql(t, at.URL)
		return outage{at, func() { exec("BEGIN; LOCK TABLE runs IN EXCLUSIVE MODE") }, func() { exec("ROLLBACK") }}
	},
}

// pragma gives an outage that begins and ends with statements on the connection that writes a SQLite file.
func pragma(t *testing.T, begin, end string) outage {
	var w sessions
	at := store.Options{Path: filepath.Join(t.TempDir(), "perdure.db")}
	at.Hooks.Wrap = w.wrap
	exec := func(query string) func() {
		return func() {
			t.Helper()
			w.mu.Lock()
			defer w.mu.Unlock()
			if err := w.list[0].Query(query, nil, func(func(...any) error) error { return nil }); err != nil {
				t.Fatalf("%s: %v", query, err)
			}
		}
	}
	return outage{at, exec(begin), exec(end)}
}

// psql gives a session of somebody else.
func psql(t *testing.T, url string) (exec func(string)) {
	t.Helper()
	conn, err := pgconn.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return func(query string) {
		t.Helper()
		if err := conn.Exec(context.Background(), query).Close(); err != nil {
			t.Fatalf("%s: %v", query, err)
		}
	}
}

// A rule that fell due while the store took no writes acts as soon as it takes them again: no row is
// blamed for what befell all of them. Only leases wait after a gap, as after any other one.
func TestNoRowIsSetAsideBecauseTheStoreTakesNoWrites(t *testing.T) {
	for name, make := range outages {
		for _, gap := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, gap %v", name, gap), func(t *testing.T) {
				t.Parallel()
				outlast(t, make(t), gap)
			})
		}
	}
}

func outlast(t *testing.T, x outage, gap bool) {
	const each = 10
	var tries atomic.Int64
	x.at.Hooks.BeforeWrite = func() { tries.Add(1) }
	s := storetest.Open(t, x.at)
	policy := perdure.DefaultPolicy()
	policy.WatchdogInterval, policy.Lease = 20*time.Millisecond, 2*time.Second
	policy.GapAfter = time.Hour
	if gap {
		policy.GapAfter, policy.Lease = 100*time.Millisecond, 20*time.Minute
	}
	e, err := engine.New(s, engine.Options{Policy: &policy})
	if err != nil {
		t.Fatal(err)
	}
	var log lockedBuffer
	w := New(e, slog.New(slog.NewTextHandler(&log, nil)))
	var aside atomic.Int64
	w.OnSetAside = func(string) { aside.Add(1) }
	ctx, stop := context.WithCancel(t.Context())
	do := func(op kernel.Op) {
		t.Helper()
		if err := e.Do(ctx, op); err != nil {
			t.Fatal(err)
		}
	}
	do(w.Pass())
	var due perdure.Instant
	soon := perdure.Duration(1500 * time.Millisecond)
	for range each {
		queued := &life.Submit{Tenant: "t", Submission: perdure.Submission{Kind: "late", Timeout: soon}}
		do(queued)
		due = max(due, queued.Run.DeadlineAt)
		for _, kind := range []string{"leased", "waits"} {
			do(&life.Submit{Tenant: "t", Submission: perdure.Submission{Kind: kind, Class: perdure.Agent}})
			poll := &dispatch.Claim{Tenant: "t", Worker: "dies", Kinds: []string{kind}, Slots: 1, Start: true}
			do(poll)
			r := poll.Grants[0].Run
			do(&life.Heartbeat{Tenant: "t", Worker: "dies",
				Beats: []life.BeatOf{{Lease: life.Lease{RunID: r.ID, Epoch: r.Epoch}}}})
			if !gap {
				due = max(due, r.LeaseUntil)
			}
			if kind == "waits" {
				do(&life.Commit{Tenant: "t", Worker: "dies", Commit: perdure.Commit{ID: "c", RunID: r.ID,
					Epoch:   r.Epoch,
					Waits:   []perdure.WaitSpec{{ID: "s", Type: perdure.WaitSignal, Name: "s", Timeout: soon}},
					Outcome: &perdure.Outcome{Type: perdure.OutcomeSuspend}}})
			}
		}
	}
	x.begin()
	var running sync.WaitGroup
	running.Go(func() { w.Run(ctx) })
	defer running.Wait()
	defer stop()
	eventually.True(t, "all clocks ring", func() bool { return s.Now() > due+1e6 })
	tried := tries.Load()
	eventually.True(t, "sweeps fail meanwhile", func() bool { return tries.Load() > tried+2 })

	x.end()
	back := time.Now()
	count := func(kind, state string) (n int) {
		t.Helper()
		err := s.View(ctx, func(v *store.View) error {
			return v.Rows("SELECT count(*) FROM runs WHERE kind='"+kind+"' AND state='"+state+"'", nil,
				func(scan func(...any) error) error { return scan(&n) })
		})
		if err != nil {
			return -1 // a connection of the outage
		}
		return n
	}
	eventually.True(t, "deadlines and waits that fell due", func() bool {
		return count("late", "timeout") == each && count("waits", "queued") == each
	})
	if !gap {
		eventually.True(t, "leases of workers that are gone", func() bool { return count("leased", "queued") == each })
	} else if n := count("leased", "running"); n != each {
		t.Errorf("%d runs are leased after a gap, want all %d for a lease", n, each)
	}
	t.Logf("after %s", time.Since(back).Round(time.Millisecond))
	if n := aside.Load(); n != 0 {
		t.Errorf("%d rows were set aside, want none", n)
	}
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, "level=ERROR") {
			t.Errorf("the watchdog logged an error about healthy rows: %s", line)
		}
	}
	stop()
	running.Wait()
	storetest.Check(t, s)
}

// A lockedBuffer is a log that several goroutines write.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

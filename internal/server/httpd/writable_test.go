package httpd

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// writers gives access to the sessions of a store that write.
type writers struct {
	mu   sync.Mutex
	list []store.Conn
	full atomic.Bool
}

func (w *writers) wrap(s store.Conn) store.Conn {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.list = append(w.list, s)
	return s
}

// exec executes a statement on the connection that writes a SQLite file.
func (w *writers) exec(t *testing.T, query string) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	err := w.list[0].Query(query, nil, func(scan func(...any) error) error { return nil })
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

// spaceless is a session of PostgreSQL with a full disk: statements that need space fail.
type spaceless struct {
	store.Conn
	full *atomic.Bool
}

func (s spaceless) Exec(query string, args []any) (int64, error) {
	size := len(fmt.Sprint(args...))
	if s.full.Load() && strings.HasPrefix(query, "INSERT") && size > 8<<10 {
		return 0, &pgconn.PgError{Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: "53100",
			Message: "could not extend file: No space left on device"}
	}
	return s.Conn.Exec(query, args)
}

// An unwritable is a way in which a store takes no writes: how it begins and how it ends.
type unwritable struct {
	at         store.Options
	begin, end func()
}

// unwritables are the ways of each store, by what /readyz says of them.
func unwritables(t *testing.T) map[string]map[string]func(*testing.T) unwritable {
	t.Helper()
	sqlite := func(begin, end string) func(*testing.T) unwritable {
		return func(t *testing.T) unwritable {
			var w writers
			at := store.Options{Path: filepath.Join(t.TempDir(), "perdure.db")}
			at.Hooks.Wrap = w.wrap
			return unwritable{at, func() { w.exec(t, begin) }, func() { w.exec(t, end) }}
		}
	}
	return map[string]map[string]func(*testing.T) unwritable{
		"the store takes no writes: it is read-only": {
			"SQLite": sqlite("PRAGMA query_only=1", "PRAGMA query_only=0"),
			"PostgreSQL": func(t *testing.T) unwritable {
				at := store.Options{URL: storetest.Postgres(t)}
				exec := behind(t, &at)
				set := func(how string) func() {
					return func() {
						exec("DO $$ BEGIN EXECUTE format('ALTER DATABASE %I " + how + "', current_database()); END $$")
						exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE " +
							"datname=current_database() AND application_name LIKE 'perdure/%'")
					}
				}
				end := set("RESET default_transaction_read_only")
				t.Cleanup(end) // the database goes to another test
				return unwritable{at, set("SET default_transaction_read_only=on"), end}
			},
		},
		"the store takes no writes: its disk is full": {
			"SQLite": sqlite("PRAGMA max_page_count=1", "PRAGMA max_page_count=1000000"),
			"PostgreSQL": func(t *testing.T) unwritable {
				var w writers
				at := store.Options{URL: storetest.Postgres(t)}
				at.Hooks.Wrap = func(s store.Conn) store.Conn { return spaceless{s, &w.full} }
				return unwritable{at, func() { w.full.Store(true) }, func() { w.full.Store(false) }}
			},
		},
	}
}

// A store that takes no writes is reported in the same words everywhere. It recovers by itself.
func TestStoreThatTakesNoWritesIsNotReady(t *testing.T) {
	for words, stores := range unwritables(t) {
		for name, make := range stores {
			t.Run(name+": "+words, func(t *testing.T) {
				t.Parallel()
				x := make(t)
				w := newWorld(t, setup{store: &x.at, broken: true})
				job := func(input string) string { // equal inputs are stored once
					return `{"kind":"job","input":"` + strings.Repeat(input, 60_000) + `"}`
				}
				ready := func() *answer { return w.send(ask{method: "GET", path: "/readyz"}) }
				held := w.running(job("a"))
				if a := ready(); a.status != 200 || a.json()["status"] != "ready" {
					t.Fatalf("before: readyz = %d %s, want 200 ready", a.status, a.body)
				}

				x.begin()
				began := time.Now()
				a := w.do("POST", "/api/v1/runs", job("b"))
				if took := time.Since(began); took > 5*time.Second {
					t.Errorf("the submit was refused after %s, want at once", took)
				}
				if full := strings.HasSuffix(words, "full"); full {
					a.refuses(507, "storage_full")
				} else if p := a.refuses(503, "unavailable"); !strings.Contains(p["detail"].(string), "read-only") {
					t.Errorf("detail of the refusal = %q, want it to say read-only", p["detail"])
				}
				if a.header.Get("Retry-After") == "" {
					t.Error("the refusal has no Retry-After")
				}
				// SQLite keeps room for the ends of runs, so that a new run alone does not say that there is none.
				end := `"outcome":{"type":"complete","result":"` + strings.Repeat("r", 60_000) + `"}`
				if a := w.commit(held, end); !strings.Contains(string(a.body), words) {
					t.Errorf("the end of a run = %d %.200s, want it refused: %s", a.status, a.body, words)
				}
				for range 2 {
					if a := ready(); a.status != 503 || a.json()["status"] != "not ready" ||
						a.json()["detail"] != words {
						t.Errorf("readyz = %d %s, want 503, not ready, %q", a.status, a.body, words)
					}
				}
				if got := w.scrape()["perdure_store_writable"]; got != 0 {
					t.Errorf("perdure_store_writable = %v, want 0", got)
				}
				w.get("/api/v1/runs").is(200) // a read needs no write

				x.end()
				eventually.True(t, "it is ready again", func() bool {
					a := ready()
					return a.status == 200 && a.json()["status"] == "ready"
				})
				if got := w.scrape()["perdure_store_writable"]; got != 1 {
					t.Errorf("afterwards: perdure_store_writable = %v, want 1", got)
				}
				w.start(job("b"))
				if got := w.commits(held, end); got["ok"] != true {
					t.Errorf("afterwards: the end of a run = %v, want it taken", got)
				}
			})
		}
	}
}

// A ready check of an idle store tests it by a write.
func TestIdleStoreIsTestedByAWrite(t *testing.T) {
	const words = "the store takes no writes: it is read-only"
	for name, make := range unwritables(t)[words] {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := make(t)
			w := newWorld(t, setup{store: &x.at, broken: true})
			x.begin()
			eventually.True(t, "it is not ready", func() bool {
				a := w.send(ask{method: "GET", path: "/readyz"})
				return a.status == 503 && a.json()["detail"] == words
			})
			if got := w.scrape()["perdure_store_writable"]; got != 0 {
				t.Errorf("perdure_store_writable = %v, want 0", got)
			}
			x.end()
			eventually.True(t, "it is ready again", func() bool {
				return w.send(ask{method: "GET", path: "/readyz"}).status == 200
			})
		})
	}
}

package httpd

import (
	"bufio"
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/access"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/server/store/sqlite"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// behind gives something that executes statements in a store's database, past the store.
func behind(t *testing.T, at *store.Options) func(query string) {
	t.Helper()
	var exec func(string) error
	if at.URL != "" {
		conn, err := pgconn.Connect(t.Context(), at.URL)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close(context.Background()) })
		exec = func(query string) error {
			_, err := conn.Exec(context.Background(), query).ReadAll()
			return err
		}
	} else {
		db, err := sqlite.OpenPlain(at.Path, "busy_timeout(20000)")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { db.Close() })
		exec = func(query string) error {
			_, err := db.Exec(query, nil)
			return err
		}
	}
	return func(query string) {
		t.Helper()
		if err := exec(query); err != nil {
			t.Fatal(err)
		}
	}
}

func TestMissingTablesAreNotReady(t *testing.T) {
	at := storetest.OnDisk(t)
	w := newWorld(t, setup{store: &at, broken: true})
	ready := func() string { return w.send(ask{method: "GET", path: "/readyz"}).json()["status"].(string) }
	exec := behind(t, &at)
	eventually.True(t, "it is ready", func() bool { return ready() == "ready" })
	exec("ALTER TABLE keys RENAME TO gone")
	eventually.True(t, "it is not ready", func() bool { return ready() == "not ready" })
	if a := w.send(ask{method: "GET", path: "/readyz"}); a.status != 503 || strings.Contains(string(a.body), "keys") {
		t.Errorf("%d %s", a.status, a.body)
	}
	exec("ALTER TABLE gone RENAME TO keys")
	eventually.True(t, "it is ready again", func() bool { return ready() == "ready" })
}

func TestLockedFileIsNotReady(t *testing.T) {
	// whatever the others run on: only a file can be locked
	at := store.Options{Path: filepath.Join(t.TempDir(), "perdure.db")}
	at.Hooks.LockPatience = 100 * time.Millisecond
	w := newWorld(t, setup{store: &at, broken: true})
	ready := func() string { return w.send(ask{method: "GET", path: "/readyz"}).json()["status"].(string) }
	exec := behind(t, &at)
	exec("BEGIN IMMEDIATE")
	w.do("POST", "/api/v1/runs", `{"kind":"job"}`).refuses(503, "unavailable")
	if a := w.send(ask{method: "GET", path: "/readyz"}); a.status != 503 ||
		!strings.Contains(string(a.body), "locked") {
		t.Errorf("%d %s", a.status, a.body)
	}
	if w.scrape()["perdure_store_writable"] != 0 {
		t.Error("it is said to be writable")
	}
	w.get("/api/v1/runs").is(200) // which needs no lock
	exec("COMMIT")
	w.start(`{"kind":"job"}`)
	if ready() != "ready" || w.scrape()["perdure_store_writable"] != 1 {
		t.Error("it is not ready again")
	}
}

func TestConcurrentReadyChecksShareOneProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tries int
		var takes time.Duration
		var fails error
		p := &probe{try: func() error {
			tries++
			time.Sleep(takes)
			return fails
		}}
		ask := func(want error, within time.Duration) {
			t.Helper()
			began := time.Now()
			if err := p.check(); err != want || time.Since(began) > within {
				t.Errorf("%v after %s", err, time.Since(began))
			}
		}
		for range 100 {
			ask(nil, 0)
		}
		if tries != 1 {
			t.Errorf("%d tries", tries)
		}
		time.Sleep(probeTTL)
		takes = 20*time.Second + 500*time.Millisecond
		for range 4 { // it is slow, and believed for a while
			ask(nil, probeWait)
		}
		for range 16 {
			ask(errNoReply, probeWait)
		}
		ask(nil, probeWait)
		if tries != 2 {
			t.Errorf("%d tries", tries)
		}
		time.Sleep(probeTTL)
		takes, fails = 0, errors.New("broken")
		ask(fails, 0)
		fails = nil
		time.Sleep(probeTTL)
		ask(nil, 0)
	})
}

func TestMetricsAreServedWhileStoreIsUnavailable(t *testing.T) {
	var now atomic.Int64
	now.Store(1e15)
	at := storetest.OnDisk(t)
	at.Hooks.Clock = func() perdure.Instant { return perdure.Instant(now.Load()) }
	w := newWorld(t, setup{store: &at, broken: true})
	platform := func(op *access.CreateKey) { op.Platform = true }
	revoked, brief, unseen := w.newKey("default", platform), w.newKey("default", func(op *access.CreateKey) {
		op.Platform, op.TTL = true, perdure.Duration(time.Hour)
	}), w.newKey("default", platform)
	for _, key := range []string{w.admin, revoked, brief} {
		if a := w.as(key).get("/metrics"); a.status != 200 {
			t.Fatalf("a.status = %d, want %d", a.status, 200)
		}
	}
	w.get("/metrics").refuses(403, "forbidden")
	if err := w.e.Do(context.Background(),
		&access.RevokeKey{Tenant: "default", ID: strings.Split(revoked, "_")[1]}); err != nil {
		t.Fatal(err)
	}
	exec := behind(t, &at)
	exec("ALTER TABLE keys RENAME TO gone")
	exec("ALTER TABLE runs RENAME TO lost")
	now.Add(2 * keysLookedUp)
	samples := func() (out []string) {
		a := w.as(w.admin).get("/metrics")
		if a.status != 200 {
			t.Fatalf("%d %s", a.status, a.body)
		}
		for lines := bufio.NewScanner(strings.NewReader(string(a.body))); lines.Scan(); {
			out = append(out, lines.Text())
		}
		return out
	}
	eventually.True(t, "the store is not counted", func() bool {
		all := strings.Join(samples(), "\n")
		return strings.Contains(all, "\nperdure_scrape_ok 0\n") &&
			strings.Contains(all, "\nperdure_runs_created_total 0\n") && !strings.Contains(all, "perdure_queue_depth")
	})
	w.get("/metrics").refuses(403, "forbidden")
	for name, key := range map[string]string{"revoked": revoked, "never seen": unseen} {
		if a := w.as(key).get("/metrics"); a.status != 503 {
			t.Errorf("%s: %d", name, a.status)
		}
	}
	w.as(w.admin).get("/api/v1/runs").refuses(503, "unavailable")
	if a := w.as(brief).get("/metrics"); a.status != 200 {
		t.Errorf("a.status = %d, want %d", a.status, 200)
	}
	now.Add(time.Hour.Microseconds())
	if a := w.as(brief).get("/metrics"); a.status == 200 {
		t.Error("it has expired")
	}
	now.Add(23 * time.Hour.Microseconds())
	w.as(w.admin).get("/metrics").refuses(503, "unavailable")
	exec("ALTER TABLE gone RENAME TO keys")
	exec("ALTER TABLE lost RENAME TO runs")
	if a := w.as(w.admin).get("/metrics"); a.status != 200 {
		t.Errorf("a.status = %d, want %d", a.status, 200)
	}
	w.as(revoked).get("/metrics").refuses(401, "unauthorized")
}

// keysLookedUp is more than the time that a key is believed, in microseconds.
const keysLookedUp = int64(2 * time.Second / time.Microsecond)

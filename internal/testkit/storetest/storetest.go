// Package storetest opens stores for tests: SQLite or PostgreSQL, each fresh. Tests that hold for every store
// run on the one that the environment names, so that the same tests can be run once on each.
package storetest

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/server/store/pg"
	"github.com/perdure/perdure/internal/testkit/pgtest"
)

// Env names the store that tests run on: sqlite, which is the default, or postgres.
const Env = "PERDURE_TEST_STORE"

// OnPostgres tells whether tests run on PostgreSQL.
func OnPostgres() bool {
	switch v := os.Getenv(Env); v {
	case "", "sqlite":
		return false
	case "postgres":
		return true
	default:
		panic(Env + "=" + v + ": there are sqlite and postgres")
	}
}

var pool = pgtest.Pool{Prepare: func(url string) error {
	s, err := store.Open(store.Options{URL: url})
	if err != nil {
		return err
	}
	return s.Close()
}, Keep: func(url string) pgtest.Kept { return pg.KeepSpares(url) }}

// Postgres gives the address of a fresh PostgreSQL database that has its tables already.
func Postgres(t testing.TB) string {
	t.Helper()
	return pool.New(t)
}

// Options say where a fresh store is: in memory, or a PostgreSQL database.
func Options(t testing.TB) store.Options {
	t.Helper()
	if OnPostgres() {
		return store.Options{URL: Postgres(t)}
	}
	return store.Options{}
}

// OnDisk is Options with a file instead of memory.
func OnDisk(t testing.TB) store.Options {
	t.Helper()
	if OnPostgres() {
		return store.Options{URL: Postgres(t)}
	}
	return store.Options{Path: filepath.Join(t.TempDir(), "perdure.db")}
}

// Address is what a server's store option says: nothing, which is SQLite, or the address of a fresh PostgreSQL
// database.
func Address(t testing.TB) string {
	t.Helper()
	return Options(t).URL
}

// OnBoth runs a test on SQLite and on PostgreSQL. The options it is given name a fresh database that several stores
// can open, as nodes do.
func OnBoth(t *testing.T, test func(t *testing.T, at store.Options)) {
	t.Helper()
	t.Run("SQLite", func(t *testing.T) { test(t, store.Options{Memory: Memory(t)}) })
	t.Run("PostgreSQL", func(t *testing.T) { test(t, store.Options{URL: Postgres(t)}) })
}

// Memory gives a fresh SQLite database in memory.
func Memory(t testing.TB) *store.Memory {
	t.Helper()
	m, err := store.NewMemory()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// Open opens a store that is closed when the test ends.
func Open(t testing.TB, opt store.Options) *store.Store {
	t.Helper()
	s, err := store.Open(opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// Check has a store checked against the invariants.
func Check(t testing.TB, s *store.Store) {
	t.Helper()
	err := s.Audit(context.Background(), func(v *store.View) error {
		found, err := v.Check(nil)
		for _, x := range found {
			t.Errorf("invariant %s: %s: %s", x.ID, x.Statement, x.Row)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

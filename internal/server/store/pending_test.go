package store

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/perdure/perdure/internal/server/store/pg"
	"github.com/perdure/perdure/internal/server/store/sqlite"
	"github.com/perdure/perdure/internal/testkit/pgtest"
)

// olderStores makes a store of release 0.1.0 with one worker on both stores, and gives their options.
func olderStores(t *testing.T) map[string]Options {
	t.Helper()
	files, err := migrations()
	if err != nil {
		t.Fatal(err)
	}
	fill := func(sess Conn, d *dialect, err error) {
		t.Helper()
		for i := 0; err == nil && i < firstMarked-1; i++ {
			err = applyFile(sess, d.schema.Replace(files[i].text), &files[i])
		}
		if err == nil {
			_, err = sess.Exec("INSERT INTO queue_pauses (tenant,name,paused_at,until_at,paused_by,platform,reason) "+
				"VALUES ('acme','q',1,0,'','0','')", nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := sess.Close(); err != nil {
			t.Fatal(err)
		}
	}
	url, path := pgtest.New(t), filepath.Join(t.TempDir(), "perdure.db")
	p, err := pg.Open(pg.Options{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	fill(p.Writer(pg.WriterOptions{Timeout: writeTimeout}), postgresDialect, nil)
	sess, err := sqlite.OpenPlain(path, "journal_mode(WAL)")
	fill(sess, sqliteDialect, err)
	return map[string]Options{"PostgreSQL": {URL: url}, "SQLite": {Path: path}}
}

// A look at an older store says which migrations a start would apply, and changes nothing. After the
// start there is nothing left, also while the server works.
func TestPendingMigrationsAreSaid(t *testing.T) {
	t.Parallel()
	for name, opt := range olderStores(t) {
		t.Run(name, func(t *testing.T) {
			read := func() string {
				b, err := os.ReadFile(opt.Path)
				if opt.Path != "" && err != nil {
					t.Fatal(err)
				}
				return string(b)
			}
			before := read()
			files, err := migrations()
			if err != nil {
				t.Fatal(err)
			}
			for range 2 { // the first look changes nothing
				u, err := Pending(opt)
				if err != nil {
					t.Fatal(err)
				}
				if u.Schema != firstMarked-1 || u.Program != len(files) || u.Oldest != firstMarked-1 || u.Level != "" ||
					u.Refused != "" || len(u.Migrations) != len(files)-firstMarked+1 {
					t.Fatalf("a look at a store of 0.1.0 = %+v, want schema %d and %d migrations", u, firstMarked-1,
						len(files)-firstMarked+1)
				}
				first := u.Migrations[0]
				if n, ok := first.Rows["workers"]; first.Name != "0030_worker_library" || first.Kind != expand ||
					first.Release != "0.2.0" || first.Changes != "adds 1 column" || !ok || n != 0 {
					t.Errorf("the first migration = %+v, want 0030_worker_library, which changes workers", first)
				}
			}
			if read() != before {
				t.Error("a look has changed the file")
			}
			s := open(t, opt)
			u, err := Pending(opt)
			if err != nil || len(u.Migrations) != 0 || u.Schema != len(files) || u.Level == "" {
				t.Errorf("a look while a server works = %+v, %v, want no migration and a level", u, err)
			}
			if err := s.Do(t.Context(), opFunc(func(tx *Tx) error {
				tx.Meta.Set(metaSchema, "99")
				tx.Meta.Set(metaOldest, "98")
				return nil
			})); err != nil {
				t.Fatal(err)
			}
			if u, err = Pending(opt); err != nil || u.Refused == "" {
				t.Errorf("a look at a store that needs a newer program = %+v, %v, want a refusal", u, err)
			}
		})
	}
}

// The rows that a migration changes are counted in the tables that are there.
func TestRowsThatAMigrationChanges(t *testing.T) {
	t.Parallel()
	for name, opt := range olderStores(t) {
		sess, d := Conn(nil), sqliteDialect
		if opt.URL == "" {
			s, err := sqlite.OpenLooking(opt.Path)
			if err != nil {
				t.Fatal(err)
			}
			sess = s
		} else {
			p, err := pg.Open(pg.Options{URL: opt.URL})
			if err != nil {
				t.Fatal(err)
			}
			sess, d = p.Auditor(), postgresDialect
		}
		defer sess.Close()
		m := migration{text: "-- expand 0.2.0: x\nALTER TABLE queue_pauses ADD COLUMN a BIGINT;\n" +
			"CREATE TABLE fresh (b BIGINT);\nCREATE INDEX c ON fresh (b);\n" +
			"CREATE INDEX {concurrently} e ON runs (id);\n"}
		got, err := m.rows(sess, d)
		if err != nil || len(got) != 2 || got["queue_pauses"] != 1 || got["runs"] != 0 {
			t.Errorf("%s: rows = %v, %v, want one of queue_pauses and none of runs", name, got, err)
		}
	}
}

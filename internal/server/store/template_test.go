package store

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/perdure/perdure/internal/server/store/sqlite"
)

// schemaOf gives every table, index and trigger of a database, with its SQL.
func schemaOf(t *testing.T, s Conn) (out []string) {
	t.Helper()
	err := s.Query("SELECT type,name,tbl_name,coalesce(sql,'') FROM sqlite_master ORDER BY rowid", nil,
		func(scan func(...any) error) error {
			var typ, name, table, text string
			err := scan(&typ, &name, &table, &text)
			out = append(out, fmt.Sprintf("%s %s on %s: %s", typ, name, table, text))
			return err
		})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// A store in memory has the schema that the migrations make, without a migration of its own.
func TestMemoryStoreHasTheMigratedSchema(t *testing.T) {
	migrated, err := sqlite.OpenMemory()
	if err != nil {
		t.Fatal(err)
	}
	defer migrated.Close()
	if err := migrate(migrated, sqliteDialect, false); err != nil {
		t.Fatal(err)
	}
	m, err := NewMemory()
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := begin(m.sess); err != nil {
		t.Fatal(err)
	}
	got, want := schemaOf(t, m.sess), schemaOf(t, migrated)
	if !slices.Equal(got, want) || len(got) == 0 {
		t.Errorf("schema of a store in memory =\n%q\nwant what the migrations make\n%q", got, want)
	}
	have, err := schemaVersion(m.sess, sqliteDialect)
	files, _ := schema.ReadDir("schema")
	if err != nil || have != len(files) {
		t.Errorf("version of the schema = %d (error %v), want %d", have, err, len(files))
	}
}

// Stores in memory are copies: a row of one is in no other, and not in one that is opened later.
func TestMemoryStoresShareNoRows(t *testing.T) {
	a, b := open(t, Options{}), open(t, Options{})
	if err := a.Batch(a.Now(), insert("a"))[0]; err != nil {
		t.Fatal(err)
	}
	for i, x := range []struct {
		s    *Store
		want int
	}{{a, 1}, {b, 0}, {open(t, Options{}), 0}} {
		if n := count(t, x.s, "SELECT count(*) FROM runs"); n != x.want {
			t.Errorf("store %d has %d runs, want %d", i+1, n, x.want)
		}
	}
}

// The next store in memory has the database of one that was closed, as a new one is.
func TestMemoryOfAClosedStoreIsLikeNew(t *testing.T) {
	fresh, err := NewMemory()
	if err != nil {
		t.Fatal(err)
	}
	defer fresh.Close()
	if err := begin(fresh.sess); err != nil {
		t.Fatal(err)
	}
	want, err := readReset(fresh.sess)
	if err != nil || len(want.statements) == 0 {
		t.Fatalf("the reset of a new database = %v, %v", want, err)
	}
	spares.mu.Lock()
	spares.list = nil
	spares.mu.Unlock()
	for name, change := range map[string]func(s *Store) error{
		"runs": func(s *Store) error { return s.Batch(s.Now(), insert("a"))[0] },
		"a table": func(s *Store) error {
			_, err := s.lanes[0].write.Exec("CREATE TABLE more (v TEXT)", nil)
			return err
		},
		"a transaction": func(s *Store) error { return s.lanes[0].write.Begin() },
		"many pages": func(s *Store) error {
			_, err := s.lanes[0].write.Exec("INSERT INTO meta VALUES ('many', zeroblob(20000000))", nil)
			return err
		},
	} {
		s, err := Open(Options{})
		if err != nil {
			t.Fatal(err)
		}
		old := s.lanes[0].write
		if err := change(s); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := s.Close(); err != nil {
			t.Errorf("%s: close: %v", name, err)
		}
		if _, err := old.Exec("DELETE FROM runs", nil); err == nil {
			t.Errorf("%s: a session of the closed store can write", name)
		}
		m, err := ownMemory()
		if err != nil {
			t.Fatal(err)
		}
		if err := begin(m.sess); err != nil {
			t.Fatal(err)
		}
		if got, err := readReset(m.sess); err != nil || !slices.Equal(got.statements, want.statements) {
			t.Errorf("%s: the next store has %v (error %v)\nwant %v", name, got, err, want)
		}
		if err := (reused{m.sess}).Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A store in a new file has the schema that the migrations make, and keeps a write-ahead log.
func TestNewFileHasTheMigratedSchema(t *testing.T) {
	migrated, err := sqlite.OpenMemory()
	if err != nil {
		t.Fatal(err)
	}
	defer migrated.Close()
	if err := migrate(migrated, sqliteDialect, false); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "perdure.db")
	if err := open(t, Options{Path: path}).Close(); err != nil {
		t.Fatal(err)
	}
	file, err := sqlite.OpenPlain(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if got, want := schemaOf(t, file), schemaOf(t, migrated); !slices.Equal(got, want) || len(got) == 0 {
		t.Errorf("schema of a new file =\n%q\nwant what the migrations make\n%q", got, want)
	}
	var journal string
	err = file.Query("PRAGMA journal_mode", nil, func(scan func(...any) error) error { return scan(&journal) })
	if err != nil || journal != "wal" {
		t.Errorf("journal mode of a new file = %s (error %v), want wal", journal, err)
	}
}

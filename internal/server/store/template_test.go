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

package store

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/store/sqlite"
	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/internal/testkit/pgtest"
)

// resealed gives a changed backup with a valid seal.
func resealed(t *testing.T, from, change string) string {
	t.Helper()
	const seal, sealed = "\nperdure backup sha256 %x\n", len("\nperdure backup sha256 \n") + 2*sha256.Size
	text, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "changed")
	if err := os.WriteFile(path, text[:len(text)-sealed], 0o600); err != nil {
		t.Fatal(err)
	}
	sess, err := sqlite.OpenPlain(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sess.Exec(change, nil); err != nil {
		t.Fatal(err)
	}
	if err := sess.Close(); err != nil {
		t.Fatal(err)
	}
	if text, err = os.ReadFile(path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, fmt.Appendf(text, seal, sha256.Sum256(text)), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestBackupWithInvalidContentsIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "backup")
	if _, err := open(t, Options{}).Backup(t.Context(), path, nil); err != nil {
		t.Fatal(err)
	}
	for change, want := range map[string]string{
		"UPDATE meta SET value='-1' WHERE name='schema'":                              `its schema is "-1"`,
		"UPDATE meta SET value='x' WHERE name='schema'":                               `its schema is "x"`,
		"UPDATE meta SET value='0' WHERE name='schema'":                               `its schema is "0"`,
		"DELETE FROM meta WHERE name='schema'":                                        `its schema is ""`,
		"UPDATE meta SET value='3' WHERE name='schema'":                               "from schema 3",
		"UPDATE meta SET value='99' WHERE name='schema'":                              "newer program",
		"UPDATE meta SET value='x' WHERE name='backup'":                               "says of itself",
		`UPDATE meta SET value='{"generation":-7}' WHERE name='backup'`:               "generation",
		`UPDATE meta SET value='{"generation":9007199254740993}' WHERE name='backup'`: "generation",
		"DELETE FROM meta WHERE name='backup'":                                        "no backup",
		"CREATE TABLE more (a TEXT)":                                                  "other tables",
		`CREATE TABLE "runs (id) VALUES ('a'); DROP TABLE meta; --" (a TEXT)`:         "other tables",
		"ALTER TABLE runs ADD COLUMN more TEXT":                                       "other tables",
	} {
		into := map[string]Options{"SQLite": {}}
		if strings.Contains(change, "TABLE") {
			into["PostgreSQL"] = Options{URL: pgtest.New(t)}
		}
		for kind, opt := range into {
			s := open(t, opt)
			_, _, err := s.Restore(context.Background(), resealed(t, path, change),
				func(int64, perdure.Instant) Adoption { return Adoption{} }, nil)
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("restore into %s after %s: %v, want an error with %q", kind, change, err, want)
			}
		}
	}
}

// Open refuses a store with an invalid schema version, and changes nothing.
func TestStoreWithInvalidSchemaVersionIsRefused(t *testing.T) {
	files, err := schema.ReadDir("schema")
	if err != nil {
		t.Fatal(err)
	}
	onOld(t, len(files), func(t *testing.T, old Conn, _ *dialect, at Options) {
		for value, want := range map[string]string{"-1": `its schema is "-1"`, "x": `its schema is "x"`,
			"0": `its schema is "0"`, "": `its schema is ""`, "3": "from schema 3"} {
			if _, err := old.Exec("UPDATE meta SET value=? WHERE name='schema'", []any{value}); err != nil {
				t.Fatal(err)
			}
			s, err := Open(at)
			if err == nil {
				s.Close()
			}
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("Open with schema version %q: %v, want an error with %q", value, err, want)
			}
		}
		if _, err := old.Exec("DELETE FROM meta WHERE name='schema'", nil); err != nil {
			t.Fatal(err)
		}
		if s, err := Open(at); err == nil || !strings.Contains(err.Error(), `its schema is ""`) {
			t.Errorf("Open without a schema version = %v, %v, want an error", s, err)
		}
	})
}

// If two restores run on one database at the same time, the second one gets errNotEmpty.
func TestSecondConcurrentRestoreIsRefused(t *testing.T) {
	from, path := open(t, Options{}), filepath.Join(t.TempDir(), "backup")
	if err := from.Batch(from.Now(), insert("a"))[0]; err != nil {
		t.Fatal(err)
	}
	if _, err := from.Backup(t.Context(), path, nil); err != nil {
		t.Fatal(err)
	}
	url := pool.New(t)
	as := func(int64, perdure.Instant) Adoption {
		return Adoption{Run: func(r perdure.Run) (perdure.Run, []perdure.Line, error) { return r, nil, nil }}
	}
	first, second := open(t, Options{URL: url}), open(t, Options{URL: url})
	begun, goOn := make(chan bool), make(chan bool)
	one, other := make(chan error, 1), make(chan error, 1)
	go func() {
		said := false
		_, _, err := first.Restore(context.Background(), path, as, func(c Copied) {
			if c.Rows > 0 && !said {
				said = true
				close(begun)
				<-goOn
			}
		})
		one <- err
	}()
	<-begun
	go func() {
		_, _, err := second.Restore(context.Background(), path, as, nil)
		other <- err
	}()
	eventually.True(t, "the second waits for the first",
		func() bool { return count(t, first, "SELECT count(*) FROM pg_locks WHERE NOT granted") > 0 })
	close(goOn)
	if err := <-one; err != nil {
		t.Errorf("first restore: %v", err)
	}
	if err := <-other; !errors.Is(err, errNotEmpty) || strings.Contains(err.Error(), "duplicate") {
		t.Errorf("second restore = %v, want %v", err, errNotEmpty)
	}
}

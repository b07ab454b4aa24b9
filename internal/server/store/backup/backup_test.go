package backup

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/server/store/sqlite"
)

// tables is a schema with a table of each kind, and meta.
var tables = []string{
	"CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT)",
	"CREATE TABLE words (n INTEGER PRIMARY KEY, word TEXT)",
	"CREATE TABLE chunks (n INTEGER PRIMARY KEY, data BLOB)",
}

func execAll(t *testing.T, s Session, list ...string) {
	t.Helper()
	for _, text := range list {
		if _, err := s.Exec(text, nil); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
}

// inserts gives one statement per row.
func inserts(text string, rows [][]any) iter.Seq2[string, []any] { return oneByOne(text, rows) }

// create makes a backup with an Info.
func create(t *testing.T, b Info) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "backup")
	text, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	err = Create(t.Context(), path, func(into *sqlite.Conn) error {
		execAll(t, into, tables...)
		_, err := into.Exec("INSERT INTO meta VALUES (?,?)", []any{InfoName, string(text)})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func TestBackupDescribesItself(t *testing.T) {
	want := Info{At: 7, Generation: 2, From: "sqlite", Runs: 3, Rows: 4}
	path := create(t, want)
	if b, err := Read(path); err != nil || b != want {
		t.Errorf("Read: %+v, %v, want %+v", b, err, want)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the backup has the mode %v, %v, want 0600", info.Mode(), err)
	}
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	c, b, err := OpenCopy(t.Context(), path, folder)
	if err != nil || b != want {
		t.Fatalf("OpenCopy: %+v, %v, want %+v", b, err, want)
	}
	if is, err := Is(c); err != nil || !is {
		t.Errorf("Is of the copy = %t, %v, want true", is, err)
	}
	execAll(t, c, "DROP TABLE words")
	if err := c.Close(); err != nil {
		t.Errorf("close the copy: %v", err)
	}
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, before) {
		t.Errorf("the backup changed with its copy, or can't be read: %v", err)
	}
	if left, err := os.ReadDir(folder); err != nil || len(left) > 0 {
		t.Errorf("files after the copy was closed = %v (%v), want none", left, err)
	}
}

func TestFailedBackupLeavesNoFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "backup")
	failed := errors.New("failed")
	if err := Create(t.Context(), path, func(*sqlite.Conn) error { return failed }); !errors.Is(err, failed) {
		t.Errorf("Create: %v, want %v", err, failed)
	}
	ctx, cancel := context.WithCancel(t.Context())
	err := Create(ctx, path, func(*sqlite.Conn) error {
		cancel()
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Create with a cancelled context = %v, want %v", err, context.Canceled)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file after it failed: %v, want that there is none", err)
	}
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Create(t.Context(), path, func(*sqlite.Conn) error { return nil }); !errors.Is(err, os.ErrExist) {
		t.Errorf("Create over an existing file = %v, want %v", err, os.ErrExist)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "mine" {
		t.Errorf("existing file = %q (%v), want unchanged", text, err)
	}
}

func TestEveryByteOfABackupIsSealed(t *testing.T) {
	text, err := os.ReadFile(create(t, Info{From: "sqlite"}))
	if err != nil {
		t.Fatal(err)
	}
	if err := unseal(t.Context(), io.Discard, bytes.NewReader(text)); err != nil {
		t.Fatal(err)
	}
	for i := range len(text) {
		if i%1009 != 0 && i < len(text)-int(sealSize) {
			continue
		}
		text[i] ^= 1
		if err := unseal(t.Context(), io.Discard, bytes.NewReader(text)); err != errChanged && err != errNoSeal {
			t.Errorf("unseal with byte %d of %d changed = %v, want refused", i, len(text), err)
		}
		text[i] ^= 1
	}
	for _, n := range []int{0, 1, int(sealSize) - 1, len(text) / 2, len(text) - 1} {
		if err := unseal(t.Context(), io.Discard, bytes.NewReader(text[:n])); err != errNoSeal {
			t.Errorf("the first %d bytes of %d: %v, want %v", n, len(text), err, errNoSeal)
		}
	}
}

func TestInvalidBackupIsRefused(t *testing.T) {
	for name, fill := range map[string]func(s *sqlite.Conn) error{
		"an empty database": func(*sqlite.Conn) error { return nil },
		"a store":           func(s *sqlite.Conn) error { execAll(t, s, tables...); return nil },
		"one that says nonsense": func(s *sqlite.Conn) error {
			execAll(t, s, tables[0], "INSERT INTO meta VALUES ('backup','x')")
			return nil
		},
		"one of a generation that can't be": func(s *sqlite.Conn) error {
			execAll(t, s, tables[0], fmt.Sprintf(`INSERT INTO meta VALUES ('backup','{"generation":%d}')`,
				MaxGeneration+1))
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			path, folder := filepath.Join(t.TempDir(), "backup"), t.TempDir()
			if err := Create(t.Context(), path, fill); err != nil {
				t.Fatal(err)
			}
			if b, err := Read(path); err == nil {
				t.Errorf("Read = %+v, want an error", b)
			}
			if c, b, err := OpenCopy(t.Context(), path, folder); err == nil || c != nil {
				t.Errorf("OpenCopy = %v, %+v, %v, want an error", c, b, err)
			}
			if left, err := os.ReadDir(folder); err != nil || len(left) > 0 {
				t.Errorf("files after a refused copy = %v (%v), want none", left, err)
			}
		})
	}
}

func TestCopiedRowsAreEqual(t *testing.T) {
	open := func() *sqlite.Conn {
		s, err := sqlite.OpenMemory()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		execAll(t, s, tables...)
		return s
	}
	from, into := open(), open()
	const words = 2*MaxRows + 1
	for i := range words {
		var word any = fmt.Sprint("word", i)
		if i%7 == 0 {
			word = nil
		}
		if _, err := from.Exec("INSERT INTO words VALUES (?,?)", []any{int64(i), word}); err != nil {
			t.Fatal(err)
		}
	}
	execAll(t, from, "INSERT INTO chunks VALUES (1,x'00ff'), (2,x'')")
	list, err := Tables(from)
	if err != nil || len(list) != 2 || list[0].Name != "chunks" || list[1].Name != "words" {
		t.Fatalf("the tables are %v, %v, want chunks and words", list, err)
	}
	var told []Progress
	c := Copier{Into: into, Inserts: inserts, Told: func(p Progress) { told = append(told, p) }}
	for i, want := range []int64{2, words} {
		if n, err := c.Table(t.Context(), &list[i], from); err != nil || n != want {
			t.Errorf("%s: %d rows, %v, want %d", list[i].Name, n, err, want)
		}
	}
	want := []Progress{{"chunks", 2}, {"words", 2 + MaxRows}, {"words", 2 + 2*MaxRows}, {"words", 2 + words}}
	if !reflect.DeepEqual(told, want) {
		t.Errorf("told %v, want %v", told, want)
	}
	for _, table := range list {
		content := func(s Session) (out []string) {
			err := table.read(s, func(row []any) error {
				out = append(out, fmt.Sprintf("%#v", row))
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			return out
		}
		if got, want := content(into), content(from); !reflect.DeepEqual(got, want) {
			t.Errorf("%s is copied as\n%s\nwant\n%s", table.Name, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Table(ctx, &list[1], from); !errors.Is(err, context.Canceled) {
		t.Errorf("copy with a cancelled context = %v, want %v", err, context.Canceled)
	}
}

package store

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/store/sqlite"
	"github.com/perdure/perdure/internal/testkit/eventually"
)

// A logBuffer is a log that a test reads.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *logBuffer) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

func (s *logBuffer) count(word string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Count(s.text.String(), word)
}

func (s *logBuffer) logger() *slog.Logger { return slog.New(slog.NewTextHandler(s, nil)) }

func TestForeignLockIsLoggedOnceAndFailsFast(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.db")
	var log logBuffer
	s := open(t, Options{Path: path, Logger: log.logger(), Hooks: Hooks{LockPatience: 200 * time.Millisecond}})
	other, err := sqlite.OpenPlain(path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := other.Begin(); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		err := s.Batch(s.Now(), insert("a"), insert("b"))[0]
		if perdure.CodeOf(err) != perdure.CodeUnavailable ||
			!strings.Contains(err.Error(), "nothing was written: another program holds the database locked") {
			t.Errorf("batch %d under a foreign lock = %v, want unavailable because of the lock", i, err)
		}
	}
	if err := s.Away(); err == nil || s.Err() != nil {
		t.Errorf("under a foreign lock Away = %v, Err = %v, want an error and nil", err, s.Err())
	}
	if n := count(t, s, "SELECT count(*) FROM runs"); n != 0 { // reads still work
		t.Errorf("%d runs are stored under a foreign lock, want 0", n)
	}
	if err := other.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := s.Batch(s.Now(), insert("a"))[0]; err != nil || s.Away() != nil {
		t.Errorf("after the lock is free: batch = %v, Away = %v, want nil", err, s.Away())
	}
	if a, b, c := log.count("holds the database locked"), log.count("no longer locked"),
		log.count("a batch was not written"); a != 1 || b != 1 || c != 0 {
		t.Errorf("log lines: %d of the lock, %d of its end, %d of failed batches, want 1, 1, 0", a, b, c)
	}
}

func TestMovedDatabaseStopsWrites(t *testing.T) {
	for name, take := range map[string]func(path string) error{
		"removed": os.Remove,
		"moved":   func(path string) error { return os.Rename(path, path+".old") },
		"replaced": func(path string) error {
			os.WriteFile(path+".new", nil,
				0o600)
			return os.Rename(path+".new", path)
		},
		"without its log": func(path string) error { return os.Remove(path + "-wal") },
		"with its folder": func(path string) error { return os.Rename(filepath.Dir(path), filepath.Dir(path)+"-old") },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "data", "p.db")
			s := open(t, Options{Path: path})
			if err := s.Batch(s.Now(), insert("a"))[0]; err != nil {
				t.Fatal(err)
			}
			if err := take(path); err != nil {
				t.Fatal(err)
			}
			eventually.True(t, "the store is known to be lost", func() bool { return s.Err() != nil })
			if err := s.Err(); !strings.Contains(err.Error(), "while it was in use") {
				t.Errorf("Err = %v, want that the file was moved while it was in use", err)
			}
			if err := s.Batch(s.Now(), insert("b"))[0]; perdure.CodeOf(err) != perdure.CodeUnavailable {
				t.Errorf("batch after the file is gone = %v, want unavailable", err)
			}
		})
	}
}

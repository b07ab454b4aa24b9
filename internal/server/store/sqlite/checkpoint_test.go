package sqlite

import (
	"context"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/testkit/eventually"
)

// begun is how often a write-ahead log was restarted.
func begun(t *testing.T, path string) uint32 {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	head := make([]byte, 16)
	if _, err := io.ReadFull(f, head); err != nil {
		t.Fatal(err)
	}
	return binary.BigEndian.Uint32(head[12:])
}

func TestWALRestartsUnderConstantWrites(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.db")
	f := openTest(t, path, Options{})
	ctx, stop := context.WithCancel(t.Context())
	written := make(chan bool)
	var writer sync.WaitGroup
	defer writer.Wait()
	defer stop()
	writer.Go(func() {
		for ctx.Err() == nil {
			if err := f.write(100_000); err != nil {
				t.Error(err)
			}
			select {
			case written <- true:
			default:
			}
		}
	})
	for i := range 8 {
		<-written
		before := begun(t, path+"-wal")
		if err := copyLog(f.copier, &f.writing, 1); err != nil {
			t.Fatal(err)
		}
		<-written // one that began before
		<-written
		if begun(t, path+"-wal") == before {
			t.Fatalf("the log was not restarted in round %d", i)
		}
	}
}

// growLog writes while a reader holds the log, until it is far longer than walBytes, and then ends
// the read.
func growLog(t *testing.T, f *testFile) {
	t.Helper()
	s, err := f.Reader(0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Begin(); err != nil {
		t.Fatal(err)
	}
	defer s.Rollback()
	// From here on the read holds the log.
	if err := s.Query("SELECT count(*) FROM notes", nil, func(func(...any) error) error { return nil }); err != nil {
		t.Fatal(err)
	}
	for f.logBytes() < 4*f.walBytes() {
		if err := f.write(1000); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWALIsTruncatedAfterSlowReader(t *testing.T) {
	t.Run("while nobody writes", func(t *testing.T) {
		f := openTest(t, filepath.Join(t.TempDir(), "p.db"), Options{WALPages: 20, Every: time.Millisecond})
		growLog(t, f)
		done := make(chan struct{})
		var checkpoints sync.WaitGroup
		checkpoints.Go(func() {
			if err := f.Checkpoints(done, &f.writing, func() int64 { return 0 }); err != nil {
				t.Error(err)
			}
		})
		eventually.True(t, "the log is short again", func() bool { return f.logBytes() <= f.walBytes() })
		close(done)
		checkpoints.Wait()
	})
	t.Run("by a commit", func(t *testing.T) {
		f := openTest(t, filepath.Join(t.TempDir(), "p.db"), Options{WALPages: 20})
		growLog(t, f)
		if err := copyLog(f.copier, &f.writing, 1); err != nil {
			t.Fatal(err)
		}
		if err := f.write(1000); err != nil {
			t.Fatal(err)
		}
		if n := f.logBytes(); n > f.walBytes() {
			t.Errorf("the log has %d bytes after the commit that began it anew, want at most %d", n, f.walBytes())
		}
	})
}

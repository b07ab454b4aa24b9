package store

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/eventually"
)

// begun is how many times a write-ahead log was begun anew.
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

func TestTheLogIsBegunAnewAlthoughSomebodyAlwaysWrites(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.db")
	s := open(t, Options{Path: path})
	ctx, stop := context.WithCancel(t.Context())
	written := make(chan bool)
	var writer sync.WaitGroup
	defer writer.Wait()
	defer stop()
	writer.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			ops := make([]Op, 100)
			for i := range ops {
				ops[i] = insert(fmt.Sprint("run", n, "-", i))
			}
			for _, err := range s.Batch(s.Now(), ops...) {
				if err != nil {
					t.Error(err)
				}
			}
			select {
			case written <- true:
			default:
			}
		}
	})
	sess, err := newSQLSession(s.db, "BEGIN")
	if err != nil {
		t.Fatal(err)
	}
	defer sess.Close()
	for i := range 8 {
		<-written
		before := begun(t, path+"-wal")
		if err := copyLog(sess, s.lanes[LaneWork].writing, 1); err != nil {
			t.Fatal(err)
		}
		<-written // one that began before
		<-written
		if begun(t, path+"-wal") == before {
			t.Fatalf("the log was not begun anew in round %d", i)
		}
	}
}

// growLog writes while somebody reads, until the log is far longer than it may stay, and then lets the reader go.
func growLog(t *testing.T, s *Store) {
	t.Helper()
	n := 0
	err := s.Audit(t.Context(), func(v *View) error {
		if err := v.Rows("SELECT count(*) FROM runs", nil, none); err != nil { // from here on it holds the log
			return err
		}
		for logBytes(t, s) < 4*s.walBytes() {
			n++
			if err := s.Batch(s.Now(), insert(fmt.Sprint("held", n)))[0]; err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func logBytes(t *testing.T, s *Store) int64 {
	t.Helper()
	info, err := os.Stat(s.opt.Path + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

func TestLogIsCutWhenASlowReaderIsGone(t *testing.T) {
	t.Run("while nobody writes", func(t *testing.T) {
		s := open(t, Options{Path: filepath.Join(t.TempDir(), "p.db"), Hooks: Hooks{WALPages: 20}})
		growLog(t, s)
		eventually.True(t, "the log is short again", func() bool { return logBytes(t, s) <= s.walBytes() })
	})
	t.Run("by a commit", func(t *testing.T) {
		// With a clock of its own the store looks at its log once a minute: not within this test.
		clock := func() perdure.Instant { return 1 }
		s := open(t, Options{Path: filepath.Join(t.TempDir(), "p.db"), Hooks: Hooks{WALPages: 20, Clock: clock}})
		growLog(t, s)
		sess, err := newSQLSession(s.db, "BEGIN")
		if err != nil {
			t.Fatal(err)
		}
		defer sess.Close()
		if err := copyLog(sess, s.lanes[LaneWork].writing, 1); err != nil {
			t.Fatal(err)
		}
		if err := s.Batch(s.Now(), insert("one more"))[0]; err != nil {
			t.Fatal(err)
		}
		if n := logBytes(t, s); n > s.walBytes() {
			t.Errorf("the log has %d bytes after the commit that began it anew, want at most %d", n, s.walBytes())
		}
	})
}

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

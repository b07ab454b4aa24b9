package store

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/perdure/perdure/internal/testkit/eventually"
)

// A log that has grown during a slow read is truncated by the store's checkpoints, without a write.
// Package sqlite tests the rest of them.
func TestWALIsTruncatedAfterSlowReader(t *testing.T) {
	const pages, longest = 20, 2 * 20 * (24 + 4096)
	path := filepath.Join(t.TempDir(), "p.db")
	s := open(t, Options{Path: path, Hooks: Hooks{WALPages: pages}})
	logBytes := func() int64 {
		t.Helper()
		info, err := os.Stat(path + "-wal")
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	n := 0
	err := s.Audit(t.Context(), func(v *View) error {
		if err := v.Rows("SELECT count(*) FROM runs", nil, none); err != nil { // from here on the read holds the log
			return err
		}
		for logBytes() < 4*longest {
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
	eventually.True(t, "the log is short again", func() bool { return logBytes() <= longest })
}

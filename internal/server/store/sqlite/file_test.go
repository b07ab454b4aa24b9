package sqlite

import (
	"bytes"
	"encoding/binary"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/testkit/eventually"
)

// A testFile is a file with one table, and the parts of a store that it needs.
type testFile struct {
	*File
	path    string
	writer  *Conn
	writing sync.Mutex
	log     bytes.Buffer
	t       *testing.T
}

// openTest opens a file that has a table.
func openTest(t *testing.T, path string, opt Options) *testFile {
	t.Helper()
	f := &testFile{path: path, t: t}
	opt.Logger = slog.New(slog.NewTextHandler(&f.log, nil))
	var err error
	if f.File, err = Open(path, opt); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.close)
	if f.writer, err = f.Writer(); err != nil {
		t.Fatal(err)
	}
	if _, err := f.writer.Exec("CREATE TABLE IF NOT EXISTS notes (n INTEGER PRIMARY KEY, text TEXT)", nil); err != nil {
		t.Fatal(err)
	}
	if err := f.Settle(); err != nil {
		t.Fatal(err)
	}
	return f
}

// close closes the file, once.
func (f *testFile) close() {
	if f.File == nil {
		return
	}
	if f.writer != nil {
		f.writer.Close()
	}
	if err := f.Close(true); err != nil {
		f.t.Error(err)
	}
	f.File = nil
}

// write commits a row of so many bytes.
func (f *testFile) write(size int) error {
	f.writing.Lock()
	defer f.writing.Unlock()
	if err := f.writer.Begin(); err != nil {
		return err
	}
	if _, err := f.writer.Exec("INSERT INTO notes (text) VALUES (?)", []any{strings.Repeat("x", size)}); err != nil {
		return err
	}
	return f.writer.Commit()
}

func (f *testFile) rows() (n int) {
	f.t.Helper()
	err := f.writer.Query("SELECT count(*) FROM notes", nil, func(scan func(...any) error) error { return scan(&n) })
	if err != nil {
		f.t.Fatal(err)
	}
	return n
}

func (f *testFile) logBytes() int64 {
	f.t.Helper()
	info, err := os.Stat(f.path + "-wal")
	if err != nil {
		f.t.Fatal(err)
	}
	return info.Size()
}

// The settings are read back, so that a database without WAL mode, or with too few syncs, is refused.
func TestUnsafeSettingsAreReadBack(t *testing.T) {
	s, err := OpenPlain(filepath.Join(t.TempDir(), "p.db"), "journal_mode(WAL)", "synchronous(NORMAL)")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	err = s.checkDurable("p.db")
	if err == nil || !strings.Contains(err.Error(), "survives a power loss") {
		t.Errorf("open with synchronous=NORMAL = %v, want refused", err)
	}
}

func TestFileIsExclusiveAndPrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data", "p.db")
	f := openTest(t, path, Options{})
	_, err := Open(path, Options{})
	if err == nil || !strings.Contains(err.Error(), "another server has this store open") {
		t.Errorf("second Open = %v, want refused", err)
	}
	if err := f.write(10); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(files) < 3 {
		t.Fatalf("%d files in the folder (%v), want at least 3", len(files), err)
	}
	for _, x := range files {
		info, err := x.Info()
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has the mode %v, %v, want 0600", x.Name(), info.Mode(), err)
		}
	}
	f.close()
	if n := openTest(t, path, Options{}).rows(); n != 1 {
		t.Errorf("%d rows after it was closed and opened again, want 1", n)
	}
}

func TestReaderQueryEndsAtDeadline(t *testing.T) {
	f := openTest(t, filepath.Join(t.TempDir(), "p.db"), Options{})
	s, err := f.Reader(50 * time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const forEver = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n) SELECT count(*) FROM n"
	if err := s.Query(forEver, nil, func(func(...any) error) error { return nil }); !IsLate(err) {
		t.Errorf("a query that counts for ever: %v, want one that is late", err)
	}
	eventually.True(t, "the session reads after a query that was ended", func() bool {
		return s.Query("SELECT 1", nil, func(func(...any) error) error { return nil }) == nil
	})
}

// The reserve is allocated by the first check of the disk, and freed when the disk refuses a write.
func TestReserveIsAllocatedAndSpent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.db")
	f := openTest(t, path, Options{Reserve: 1 << 20})
	held := func() int64 {
		info, err := os.Stat(path + ".reserve")
		if err != nil {
			return 0
		}
		return info.Size()
	}
	f.reserve.check()
	if n := held(); n != 1<<20 || f.Full() {
		t.Errorf("%d bytes are kept back, full: %v, want %d and not full", n, f.Full(), 1<<20)
	}
	before := f.ReserveSpent()
	if !f.SpendReserve(before) || held() != 0 || !f.Full() {
		t.Errorf("after SpendReserve: %d bytes are reserved, full: %t, want 0 and full", held(), f.Full())
	}
	if f.SpendReserve(f.ReserveSpent()) {
		t.Error("SpendReserve = true a second time, want false")
	}
	if !f.SpendReserve(before) {
		t.Error("SpendReserve = false for a write that began before the reserve was freed, want true")
	}
	f.reserve.check() // the disk has space after all
	if n := held(); n != 1<<20 || f.Full() {
		t.Errorf("after the next check: %d bytes are reserved, full: %t, want %d and not full", n, f.Full(), 1<<20)
	}
	var none *File
	if none.Full() || none.SpendReserve(none.ReserveSpent()) || none.BlockedFor() != 0 {
		t.Error("a nil File reports a full disk or a lock")
	}
}

// The journal with which a file was made a database with a write-ahead log may come back after a power loss.
// It says that the file was empty.
func TestJournalOfNewFileThatComesBackCutsNothing(t *testing.T) {
	journal := make([]byte, 512)
	copy(journal, "\xd9\xd5\x05\xf9\x20\xa1\x63\xd7") // then: no pages, a nonce, 0 pages before
	binary.BigEndian.PutUint32(journal[20:], 512)
	binary.BigEndian.PutUint32(journal[24:], 4096)
	for name, checkpointed := range map[string]bool{"all in the log": false, "all in the file": true} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "p.db")
			f := openTest(t, path, Options{})
			if err := f.write(10); err != nil {
				t.Fatal(err)
			}
			left := t.TempDir() + "/p.db"
			for _, end := range []string{"", "-wal"} {
				if checkpointed && end == "" {
					if err := settle(f.copier); err != nil {
						t.Fatal(err)
					}
				}
				b, err := os.ReadFile(path + end)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(left+end, b, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(left+"-journal", journal, 0o600); err != nil {
				t.Fatal(err)
			}
			if n := openTest(t, left, Options{}).rows(); n != 1 {
				t.Errorf("%d rows after the journal came back, want 1", n)
			}
		})
	}
}

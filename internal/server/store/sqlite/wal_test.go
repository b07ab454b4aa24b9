package sqlite

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// SQLite takes a damaged frame for the end of the log. The commits behind it are lost, but an error
// is logged and a copy of the log is kept.
func TestDamagedWALIsKeptAndLogged(t *testing.T) {
	const rows = 40
	from := filepath.Join(t.TempDir(), "p.db")
	f := openTest(t, from, Options{})
	for range rows {
		if err := f.write(1000); err != nil {
			t.Fatal(err)
		}
	}
	db, wal := contents(t, from), contents(t, from+"-wal") // as a killed server leaves them
	f.close()
	b, err := readLog(bytes.NewReader(wal))
	if err != nil || b != (brokenLog{}) {
		t.Fatalf("readLog of an intact log = %+v, %v, want no damage", b, err)
	}
	const page = 4096 + frameHeader
	middle := (len(wal) - walHeader) / page * 9 / 10 // the table comes first
	flip := func(at int) []byte {
		out := bytes.Clone(wal)
		out[at] ^= 4
		return out
	}
	for _, c := range []struct {
		name string
		log  []byte
		kept bool
		rows int // at least
	}{
		{"sound", wal, false, rows},
		{"a bit of a page", flip(walHeader + middle*page + frameHeader + 1000), true, 1},
		{"a bit of a checksum", flip(walHeader + middle*page + 17), true, 1},
		{"a bit of a salt", flip(walHeader + middle*page + 9), true, 1},
		{"a bit of the header", flip(17), true, 0},
		{"the last page", flip(len(wal) - 1), false, rows - 1},
		{"cut in the middle of the last commit", wal[:len(wal)-100], false, rows - 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "p.db")
			for name, b := range map[string][]byte{path: db, path + "-wal": c.log} {
				if err := os.WriteFile(name, b, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			f := openTest(t, path, Options{})
			if n := f.rows(); n < c.rows || c.kept && n == rows {
				t.Errorf("%d rows are left, want at least %d", n, c.rows)
			}
			copies, err := filepath.Glob(path + "-wal.damaged-*")
			if err != nil || (len(copies) == 1) != c.kept ||
				(strings.Count(f.log.String(), "THE WRITE-AHEAD LOG IS DAMAGED") == 1) != c.kept {
				t.Fatalf("copies of the log = %v (%v), want one: %t; log: %s", copies, err, c.kept, f.log.String())
			}
			if c.kept && !bytes.Equal(contents(t, copies[0]), c.log) {
				t.Error("the copy differs from the damaged log")
			}
		})
	}
}

// A restarted log has frames of its earlier use behind its end, which are no damage.
func TestFramesOfEarlierWALAreNoDamage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.db")
	f := openTest(t, path, Options{WALPages: 1 << 30})
	for range 20 {
		if err := f.write(1000); err != nil {
			t.Fatal(err)
		}
	}
	before := len(contents(t, path+"-wal"))
	if _, err := checkpoint(f.writer, "PASSIVE"); err != nil {
		t.Fatal(err)
	}
	if err := f.write(1000); err != nil {
		t.Fatal(err)
	}
	wal := contents(t, path+"-wal")
	b, err := readLog(bytes.NewReader(wal))
	if err != nil || b.commits != 0 || b.frame == 0 || len(wal) != before {
		t.Errorf("readLog of a restarted log = %+v, %v, want no commits behind the end; %d bytes before, %d after", b,
			err, before, len(wal))
	}
}

func contents(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

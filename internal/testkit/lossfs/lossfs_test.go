package lossfs

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// world is a mounted file system with its files.
type world struct {
	*testing.T
	*FS
}

func mounted(t *testing.T, opt Options) world {
	t.Helper()
	fs, err := Mount(t.TempDir(), opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := fs.Unmount(); err != nil {
			t.Error(err)
		}
	})
	return world{t, fs}
}

func (w world) ok(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w world) path(name string) string { return filepath.Join(w.Dir, name) }

func (w world) open(name string) *os.File {
	w.Helper()
	f, err := os.OpenFile(w.path(name), os.O_CREATE|os.O_RDWR, 0o600)
	w.ok(err)
	w.Cleanup(func() { f.Close() })
	return f
}

func (w world) write(f *os.File, off int64, p []byte) {
	w.Helper()
	_, err := f.WriteAt(p, off)
	w.ok(err)
}

func (w world) syncDir() {
	w.Helper()
	d, err := os.Open(w.Dir)
	w.ok(err)
	w.ok(d.Sync())
	w.ok(d.Close())
}

// kept writes a file and makes it and its name durable.
func (w world) kept(name string, p []byte) *os.File {
	w.Helper()
	f := w.open(name)
	w.write(f, 0, p)
	w.ok(f.Sync())
	w.syncDir()
	return f
}

// read gives the content, nil if there is no such file.
func (w world) read(name string) []byte {
	w.Helper()
	b, err := os.ReadFile(w.path(name))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	w.ok(err)
	return b
}

func fill(c byte, n int) []byte { return bytes.Repeat([]byte{c}, n) }

const seeds = 60

func TestWhatWasSyncedIsKept(t *testing.T) {
	w := mounted(t, Options{})
	for seed := range uint64(seeds) {
		f := w.open("a")
		w.write(f, 0, fill('x', 9000))
		w.write(f, 4000, fill(byte('a'+seed%26), 5000+int(seed)))
		w.ok(f.Sync())
		w.syncDir()
		want := w.read("a")
		w.ok(w.PowerLoss(seed))
		if got := w.read("a"); !bytes.Equal(got, want) {
			t.Fatalf("seed %d: %d bytes were synced, %d came back, or others", seed, len(want), len(got))
		}
	}
}

func TestWhatWasNotSyncedMayBeForgotten(t *testing.T) {
	w := mounted(t, Options{})
	before, after := fill('-', 3*blockSize), fill('+', 3*blockSize)
	var all, none, some int
	for seed := range uint64(seeds) {
		f := w.kept("a", before)
		w.write(f, 0, after)
		if !bytes.Equal(w.read("a"), after) {
			t.Fatal("a program does not see what it has written")
		}
		w.ok(w.PowerLoss(seed))
		switch got := w.read("a"); {
		case bytes.Equal(got, before):
			none++
		case bytes.Equal(got, after):
			all++
		case len(got) == len(before):
			some++
			for at := 0; at < len(got); at += 512 {
				if s := got[at : at+512]; !bytes.Equal(s, before[:512]) && !bytes.Equal(s, after[:512]) {
					t.Fatalf("seed %d: the sector at %d is torn in itself", seed, at)
				}
			}
		default:
			t.Fatalf("seed %d: %d bytes", seed, len(got))
		}
	}
	t.Logf("of %d writes %d survived, %d did not, %d were torn", seeds, all, none, some)
	if all == 0 || none == 0 || some == 0 {
		t.Errorf("chance is not at work: %d, %d, %d", all, none, some)
	}
}

func TestANewSizeIsForgottenToo(t *testing.T) {
	w := mounted(t, Options{})
	sizes := map[int]int{}
	for seed := range uint64(seeds) {
		f := w.kept("a", fill('-', 10000))
		w.ok(f.Truncate(10000))
		w.ok(f.Sync())
		w.ok(f.Truncate(100))
		w.ok(w.PowerLoss(seed))
		sizes[len(w.read("a"))]++
	}
	if sizes[100] == 0 || sizes[10000] == 0 || len(sizes) != 2 {
		t.Errorf("%v", sizes)
	}
}

func TestANameIsDurableWhenItsDirectoryIsSynced(t *testing.T) {
	for _, lenient := range []bool{false, true} {
		w := mounted(t, Options{SyncNames: lenient})
		lost := 0
		for seed := range uint64(seeds) {
			f := w.open("a")
			w.write(f, 0, []byte("content"))
			w.ok(f.Sync())
			w.ok(w.PowerLoss(seed))
			if got := w.read("a"); got == nil {
				lost++
			} else if string(got) != "content" {
				t.Fatalf("seed %d: %q", seed, got)
			}
			os.Remove(w.path("a"))
			w.syncDir()
		}
		if lenient != (lost == 0) {
			t.Errorf("%d of %d names were lost, SyncNames is %v", lost, seeds, lenient)
		}
	}
}

func TestARenameIsWholeOrNotAtAll(t *testing.T) {
	w := mounted(t, Options{})
	seen := map[string]int{}
	for seed := range uint64(seeds) {
		w.kept("a", []byte("old"))
		w.kept("b", []byte("new"))
		w.ok(os.Rename(w.path("b"), w.path("a")))
		w.ok(w.PowerLoss(seed))
		seen[string(w.read("a"))+" "+string(w.read("b"))]++
		os.Remove(w.path("a"))
		os.Remove(w.path("b"))
		w.syncDir()
	}
	if len(seen) != 2 || seen["old new"] == 0 || seen["new "] == 0 {
		t.Errorf("%v", seen)
	}
	w.kept("a", []byte("old"))
	w.kept("b", []byte("new"))
	w.ok(os.Rename(w.path("b"), w.path("a")))
	w.syncDir()
	for seed := range uint64(seeds) {
		w.ok(w.PowerLoss(seed))
		if string(w.read("a")) != "new" || w.read("b") != nil {
			t.Fatalf("seed %d: a rename whose directory was synced is undone", seed)
		}
	}
}

func TestARemovedFileMayComeBack(t *testing.T) {
	w := mounted(t, Options{})
	back := 0
	for seed := range uint64(seeds) {
		w.kept("a", []byte("content"))
		w.ok(os.Remove(w.path("a")))
		w.ok(w.PowerLoss(seed))
		if w.read("a") != nil {
			back++
		}
	}
	if back == 0 || back == seeds {
		t.Errorf("%d of %d", back, seeds)
	}
}

func TestAFolderThatWasNotSyncedTakesItsFilesAlong(t *testing.T) {
	w := mounted(t, Options{})
	lost := 0
	for seed := range uint64(seeds) {
		w.ok(os.Mkdir(w.path("sub"), 0o700))
		f := w.open("sub/a")
		w.write(f, 0, []byte("content"))
		w.ok(f.Sync())
		sub, err := os.Open(w.path("sub"))
		w.ok(err)
		w.ok(sub.Sync())
		w.ok(sub.Close())
		w.ok(w.PowerLoss(seed))
		if w.read("sub/a") == nil {
			lost++
		}
		w.ok(os.RemoveAll(w.path("sub")))
		w.syncDir()
	}
	if lost == 0 || lost == seeds {
		t.Errorf("%d of %d", lost, seeds)
	}
}

func TestAFileThatIsOpenAtAPowerLossCanOnlyBeRead(t *testing.T) {
	w := mounted(t, Options{})
	f := w.kept("a", []byte("content"))
	w.ok(w.PowerLoss(1))
	for what, err := range map[string]error{
		"write":    func() error { _, err := f.WriteAt([]byte("x"), 0); return err }(),
		"sync":     f.Sync(),
		"truncate": f.Truncate(0),
	} {
		if !errors.Is(err, syscall.EIO) {
			t.Errorf("%s: %v", what, err)
		}
	}
	b := make([]byte, 7)
	if _, err := f.ReadAt(b, 0); err != nil || string(b) != "content" {
		t.Errorf("%q, %v", b, err)
	}
	if got := w.read("a"); string(got) != "content" {
		t.Errorf("what came back is %q", got)
	}
}

func TestAFailedSyncIsNotMadeUpForByTheNext(t *testing.T) {
	w := mounted(t, Options{})
	lost := 0
	for seed := range uint64(seeds) {
		f := w.kept("a", []byte("old"))
		w.write(f, 0, []byte("new"))
		w.ok(w.FailFsync(1, ""))
		if err := f.Sync(); !errors.Is(err, syscall.EIO) {
			t.Fatalf("a failing sync: %v", err)
		}
		w.ok(f.Sync())
		if string(w.read("a")) != "new" {
			t.Fatal("the cache has lost it as well")
		}
		w.ok(w.PowerLoss(seed))
		if string(w.read("a")) == "old" {
			lost++
		}
	}
	if lost == 0 || lost == seeds {
		t.Errorf("%d of %d", lost, seeds)
	}
}

func TestAFailedSyncIsToldToWhoeverHasTheFileOpen(t *testing.T) {
	w := mounted(t, Options{})
	f, g := w.open("a"), w.open("a")
	w.write(f, 0, []byte("x"))
	w.ok(w.FailFsync(1, ""))
	for _, x := range []*os.File{f, g} {
		if err := x.Sync(); !errors.Is(err, syscall.EIO) {
			t.Errorf("at first: %v", err)
		}
		w.ok(x.Sync())
	}
	w.ok(w.open("a").Sync())
}

func TestWhichSyncFailsCanBeChosen(t *testing.T) {
	w := mounted(t, Options{})
	f, other := w.open("a"), w.open("b")
	w.ok(w.FailFsync(3, "a"))
	for i := range 6 {
		w.write(f, 0, []byte("x"))
		w.ok(other.Sync())
		if err := f.Sync(); (err != nil) != (i == 2) {
			t.Errorf("sync %d: %v", i+1, err)
		}
	}
}

func TestAFullDiskAllocatesNothing(t *testing.T) {
	w := mounted(t, Options{})
	f := w.open("a")
	w.write(f, 0, fill('x', 4*blockSize))
	w.ok(w.Full(5 * blockSize))
	w.write(f, 4*blockSize, fill('x', blockSize))
	_, err := f.WriteAt(fill('y', blockSize), 5*blockSize)
	if !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a write: %v", err)
	}
	w.write(f, 100, fill('y', 1000)) // its block is there
	g := w.open("b")
	if err := unix.Fallocate(int(g.Fd()), 0, 0, blockSize); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("fallocate: %v", err)
	}
	w.ok(g.Truncate(1 << 20)) // a hole takes no room
	var st unix.Statfs_t
	w.ok(unix.Statfs(w.Dir, &st))
	if st.Bavail != 0 || st.Blocks != 5 {
		t.Errorf("%d of %d blocks are free", st.Bavail, st.Blocks)
	}
	w.ok(f.Truncate(3 * blockSize))
	w.ok(unix.Fallocate(int(g.Fd()), 0, 0, 2*blockSize))
	if used, err := w.Used(); err != nil || used != 5*blockSize {
		t.Errorf("%d bytes, %v", used, err)
	}
	w.ok(w.Full(0))
	w.write(f, 0, fill('z', 100*blockSize))
}

func TestMappingsAreSharedAndLocksExclude(t *testing.T) {
	w := mounted(t, Options{})
	f, g := w.open("a"), w.open("a")
	w.write(f, 0, fill(0, 2*blockSize))
	var maps [2][]byte
	for i, x := range []*os.File{f, g} {
		m, err := unix.Mmap(int(x.Fd()), 0, 2*blockSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		w.ok(err)
		defer unix.Munmap(m)
		maps[i] = m
	}
	maps[0][5000] = 7
	if maps[1][5000] != 7 {
		t.Error("a write to one mapping is not seen in the other")
	}
	w.ok(unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB))
	if err := unix.Flock(int(g.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, syscall.EWOULDBLOCK) {
		t.Errorf("a second lock: %v", err)
	}
}

func TestWhereItCannotBeMountedItSaysSo(t *testing.T) {
	fs, err := Mount(filepath.Join(t.TempDir(), "missing"), Options{})
	if err == nil {
		fs.Unmount()
		t.Fatal("mounted at a folder that does not exist")
	}
	t.Log(err)
}

// A program that makes files while the power fails makes them in the old file system, in the new one or
// not at all. It never makes them in the folder on which both are mounted.
func TestNothingIsWrittenBesideTheFileSystem(t *testing.T) {
	dir := t.TempDir()
	fs, err := Mount(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	stop, stopped := make(chan struct{}), make(chan int)
	go func() {
		for n := 0; ; n++ {
			select {
			case <-stop:
				stopped <- n
				return
			default:
			}
			if f, err := os.OpenFile(filepath.Join(dir, "file"), os.O_CREATE|os.O_RDWR, 0o600); err == nil {
				f.Close()
			}
		}
	}()
	for seed := range uint64(40) {
		if err := fs.PowerLoss(seed); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	n := <-stopped
	if err := fs.Unmount(); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("after %d tries to make a file the folder has %v (%v), want nothing", n, left, err)
	}
}

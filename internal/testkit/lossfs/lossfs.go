// Package lossfs is a file system that forgets what was not synced, for tests of what is durable and when.
//
// It shows a folder, in memory and mounted with FUSE, that behaves as a disk with a write cache does: what a
// program writes can be read at once, and is on the medium when fsync says so, not before. The content of a
// file is made durable by a sync of the file, its name by a sync of the directory. At a power loss chance
// decides, by a seed, what becomes of the rest; see fate. It can also fail a sync and be full.
//
// It is not a mirror of another folder, knows no links and no owners, and orders nothing that POSIX does not
// order. Tests call it, and nothing else does.
//
// The file system is served by a process of its own, which is this program once more. A Go program that
// touches a mapped page of a file system that it serves itself can stop for ever: the thread waits for the
// page, the garbage collector for the thread, and the server for the garbage collector.
package lossfs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

// Options of a file system. The zero value is the strictest.
type Options struct {
	SyncNames bool // a sync of a file makes its own name durable too, as on ext4
}

// FS is a mounted file system.
type FS struct {
	Dir string // where it is

	mu  sync.Mutex
	cmd *exec.Cmd
	in  io.WriteCloser
	ask *json.Encoder
	got *json.Decoder
}

// Mount shows an empty file system at a folder that exists. That takes /dev/fuse and the right to mount.
func Mount(dir string, opt Options) (*FS, error) {
	fs, err := start(dir, opt)
	if err != nil {
		return nil, fmt.Errorf("mount a file system that forgets at %s (it takes root and /dev/fuse: modprobe "+
			"fuse): %w", dir, err)
	}
	return fs, nil
}

func start(dir string, opt Options) (*FS, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	f := &FS{Dir: dir, cmd: exec.Command(self)}
	f.cmd.Env = append(os.Environ(), serveAt+"="+dir)
	f.cmd.Stderr = os.Stderr
	if f.in, err = f.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := f.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := f.cmd.Start(); err != nil {
		return nil, err
	}
	f.ask, f.got = json.NewEncoder(f.in), json.NewDecoder(out)
	if _, err := f.call(request{Do: "mount", SyncNames: opt.SyncNames}); err != nil {
		f.in.Close()
		f.cmd.Wait()
		return nil, err
	}
	return f, nil
}

// call has the serving process do something.
func (f *FS) call(r request) (answer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var a answer
	err := f.ask.Encode(r)
	if err == nil {
		err = f.got.Decode(&a)
	}
	if err == nil && a.Error != "" {
		err = errors.New(a.Error)
	}
	if err != nil {
		return a, fmt.Errorf("%s: %w", r.Do, err)
	}
	return a, nil
}

// PowerLoss forgets what was not synced, or some of it. Afterwards the folder shows what survived. Whoever has
// a file open from before can still read it, and gets EIO for everything else.
func (f *FS) PowerLoss(seed uint64) error {
	_, err := f.call(request{Do: "power loss", Seed: seed})
	return err
}

// FailFsync has the nth sync from now fail with EIO; 1 is the next. With a name only syncs of files and
// directories of that name count. Which of the changes that it was to make durable are so is then a matter of
// chance, and the syncs after it don't know of them any more; but whoever else has the file open gets the
// error too, once.
func (f *FS) FailFsync(n int, name string) error {
	_, err := f.call(request{Do: "fail fsync", N: int64(n), Name: name})
	return err
}

// Full limits how many bytes may be allocated, in blocks of 4096; what needs more gets ENOSPC. 0 lifts the limit.
func (f *FS) Full(bytes int64) error {
	_, err := f.call(request{Do: "full", N: bytes})
	return err
}

// Used tells how many bytes are allocated.
func (f *FS) Used() (bytes int64, err error) {
	a, err := f.call(request{Do: "used"})
	return a.N, err
}

// Unmount ends the file system; what it held is gone.
func (f *FS) Unmount() error {
	_, err := f.call(request{Do: "unmount"})
	return errors.Join(err, f.in.Close(), f.cmd.Wait())
}

package lossfs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// serveAt names, in its environment, the folder at which a process serves a file system.
const serveAt = "PERDURE_LOSSFS"

// A process that was started to serve does that and nothing else; what it is a copy of never gets to run.
func init() {
	if dir := os.Getenv(serveAt); dir != "" {
		signal.Ignore(os.Interrupt) // the test that started it ends it
		if err := serve(dir, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

type request struct {
	Do        string
	SyncNames bool
	Seed      uint64
	N         int64
	Name      string
}

type answer struct {
	Error string
	N     int64
}

// serve does what it is asked until nobody is there to ask.
func serve(dir string, in io.Reader, out io.Writer) error {
	var d *disk
	defer func() {
		if d != nil {
			unmount(dir)
		}
	}()
	requests, answers := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var r request
		if err := requests.Decode(&r); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		var a answer
		var err error
		switch r.Do {
		case "mount":
			fresh := newDisk(r.SyncNames)
			if err = cover(dir); err == nil {
				err = mount(dir, fresh)
			}
			if err == nil {
				d = fresh
			}
		case "power loss":
			d.mu.Lock()
			after := d.powerLoss(r.Seed)
			d.mu.Unlock()
			// Open files keep the old mount; it ends with the last of them.
			if err = syscall.Unmount(dir, syscall.MNT_DETACH); err == nil {
				err = mount(dir, after)
			}
			d = after
		case "unmount":
			err = unmount(dir)
			d = nil
		default:
			a.N, err = d.set(r)
		}
		if err != nil {
			a.Error = err.Error()
		}
		if err := answers.Encode(a); err != nil {
			return err
		}
	}
}

func (d *disk) set(r request) (int64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch r.Do {
	case "fail fsync":
		d.failIn, d.failName = int(r.N), r.Name
	case "full":
		d.limit = r.N
	case "used":
		return d.used, nil
	default:
		return 0, fmt.Errorf("there is no %q", r.Do)
	}
	return 0, nil
}

// cover makes the folder read-only. During a power loss, after the old file system has gone and before the
// new one is there, a program sees the folder itself. Files that it made there would vanish under the new
// file system, with everything that was acknowledged.
func cover(dir string) error {
	if err := syscall.Mount(dir, dir, "", syscall.MS_BIND, ""); err != nil {
		return err
	}
	return syscall.Mount("", dir, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, "")
}

// unmount uncovers the folder.
func unmount(dir string) error {
	return errors.Join(syscall.Unmount(dir, syscall.MNT_DETACH), syscall.Unmount(dir, syscall.MNT_DETACH))
}

func mount(dir string, d *disk) error {
	srv, err := fuse.NewServer(&files{fuse.NewDefaultRawFileSystem(), d}, dir, &fuse.MountOptions{
		DirectMountStrict: true, FsName: "lossfs", Name: "lossfs",
		// Shared mappings need the kernel's cache of pages, and nobody else changes what is in it.
		ExplicitDataCacheControl: true,
		DisableReadDirPlus:       true,
		DisableXAttrs:            true,
		Logger:                   log.New(io.Discard, "", 0), // it tells of every mount that ends
		PanicHandler: func(p any) fuse.Status {
			fmt.Fprintf(os.Stderr, "lossfs: %v\n%s", p, debug.Stack())
			return fuse.EIO
		},
	})
	if err != nil {
		return err
	}
	go srv.Serve()
	return srv.WaitMount()
}

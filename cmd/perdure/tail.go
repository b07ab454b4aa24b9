package main

import (
	"errors"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/perdure/perdure/internal/jobdir"
)

// Times between two looks at the files of a job.
const (
	tailOften  = 4 * time.Millisecond
	tailSeldom = 100 * time.Millisecond
)

// A tail shows the output of a command from its files, as it is written.
type tail struct {
	dir     jobdir.Dir
	printer *outputPrinter
	files   map[string]*os.File
	at      jobdir.Offsets
	// base is where the files begin. The command may have truncated them, see package runner.
	base jobdir.Offsets
}

// shown returns what was shown.
func (t *tail) shown() shown { return shown{Offsets: t.at} }

// copy writes the output that was added since the last call.
func (t *tail) copy() error {
	if t.files == nil {
		files := make(map[string]*os.File)
		for _, stream := range []string{jobdir.Stdout, jobdir.Stderr} {
			f, err := t.dir.OpenWritten(stream)
			if err != nil {
				for _, f := range files {
					f.Close()
				}
				return nil // not there yet
			}
			files[stream] = f
		}
		t.files = files
	}
	b := make([]byte, 64<<10)
	for _, stream := range []string{jobdir.Stdout, jobdir.Stderr} {
		to, f, at := t.printer.stdout, t.files[stream], t.at.Of(stream)
		if stream == jobdir.Stderr {
			to = t.printer.stderr
		}
		for {
			begin := t.base.Of(stream)
			if info, err := f.Stat(); err == nil && *begin+info.Size() < *at { // the runner says so
				*begin = *at
			}
			n, err := f.ReadAt(b, *at-*begin)
			if n == 0 {
				if !errors.Is(err, io.EOF) {
					return err
				}
				break
			}
			if skip := hole(f, *at-*begin, b[:n]); skip > 0 {
				t.printer.note("%d bytes of %s are missing: they are no longer on the disk", skip, stream)
				*at += skip
				continue
			}
			if _, err := to.Write(b[:n]); err != nil {
				return err
			}
			*at += int64(n)
		}
	}
	return nil
}

// hole returns the size of the hole at an offset: bytes that the runner has given back to the disk.
func hole(f *os.File, at int64, b []byte) int64 {
	if b[0] != 0 {
		return 0
	}
	data, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
	if err != nil || data <= at {
		return 0
	}
	return data - at
}

func (t *tail) close() {
	for _, f := range t.files {
		f.Close()
	}
}

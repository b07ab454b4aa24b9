package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/perdure/perdure/internal/process/jobdir"
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
	// last has the last bytes of each stream that were shown.
	last map[string][]byte
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
		t.files, t.last = files, make(map[string][]byte)
	}
	b := make([]byte, 64<<10)
	for _, stream := range []string{jobdir.Stdout, jobdir.Stderr} {
		to, f, at := t.printer.stdout, t.files[stream], t.at.Of(stream)
		if stream == jobdir.Stderr {
			to = t.printer.stderr
		}
		for {
			begin := t.base.Of(stream)
			if t.truncated(stream) { // the runner says so
				*begin, t.last[stream] = *at, nil
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
				t.last[stream] = nil
				continue
			}
			if _, err := to.Write(b[:n]); err != nil {
				return err
			}
			*at += int64(n)
			t.last[stream] = jobdir.LastBytes(bytes.NewReader(b[:n]), int64(n))
		}
	}
	return nil
}

// truncated tells whether a file has become shorter than what was shown of it, or has other bytes there.
// Bytes that the runner has given back to the disk tell nothing.
func (t *tail) truncated(stream string) bool {
	f, at, last := t.files[stream], *t.at.Of(stream)-*t.base.Of(stream), t.last[stream]
	info, err := f.Stat()
	if err != nil || info.Size() < at {
		return err == nil
	}
	now := jobdir.LastBytes(f, at)
	return !bytes.HasSuffix(now, last) && (len(now) == 0 || hole(f, at-int64(len(now)), now) == 0)
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

package sqlite

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"time"
)

// The write-ahead log of SQLite: a header, then frames, each a page with a header of its own. Numbers are big-endian; checksums are
// made of words in the order that the magic number tells, and each includes all that is before it. https://sqlite.org/fileformat2.html#walformat
const (
	walMagic     = 0x377f0682 // the last bit tells the order of the checksums' words
	walHeader    = 32
	frameHeader  = 24
	walNumber    = 3007000
	maxPageBytes = 65536
)

// A brokenLog says what of a write-ahead log SQLite would not see.
type brokenLog struct {
	frame   int64 // the first that can't be what was written, from 1; 0 is the header
	commits int   // whole commits behind it
	frames  int64 // of them
}

// keepBrokenLog looks at the log that a process before this one has left. SQLite reads it up to the first frame that is not as it was
// written, and takes that for the end: right after a power loss, which can spoil the last commit and no other. When more than one commit is
// behind it, the log is damaged, and what was acknowledged is about to be lost: a copy stays for who can mend it, and it is said.
func keepBrokenLog(db string, log *slog.Logger) error {
	path := db + "-wal"
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := readLog(bufio.NewReaderSize(f, 1<<20))
	if err != nil {
		return fmt.Errorf("look at the write-ahead log: %w", err)
	}
	if b.commits < 2 {
		return nil
	}
	name := path + ".damaged-" + time.Now().UTC().Format("20060102T150405.000Z")
	if err := copyFile(name, f); err != nil {
		return fmt.Errorf("the write-ahead log is damaged at frame %d, and %d commits behind it can't be read; a copy of it can't be made: %w", b.frame, b.commits, err)
	}
	log.Error("THE WRITE-AHEAD LOG IS DAMAGED: commits that were acknowledged are lost. A copy of it is kept", "frame", b.frame, "lost_commits", b.commits, "lost_frames", b.frames, "copy", name)
	return nil
}

func copyFile(name string, from io.ReadSeeker) (err error) {
	if _, err := from.Seek(0, io.SeekStart); err != nil {
		return err
	}
	to, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if _, err = io.Copy(to, from); err == nil {
		err = to.Sync()
	}
	if err = errors.Join(err, to.Close()); err != nil {
		os.Remove(name)
	}
	return err
}

// readLog walks through a log. What an earlier round has left behind its end has other salts, and is not counted.
func readLog(r io.Reader) (b brokenLog, err error) {
	head := make([]byte, walHeader)
	if _, err := io.ReadFull(r, head); err != nil {
		return b, notEnd(err)
	}
	word := func(p []byte, at int) uint32 { return binary.BigEndian.Uint32(p[at:]) }
	var order binary.ByteOrder = binary.LittleEndian
	if word(head, 0)&1 == 1 {
		order = binary.BigEndian
	}
	size := int(word(head, 8))
	salts := [2]uint32{word(head, 16), word(head, 20)}
	sum := checksum(order, [2]uint32{}, head[:24])
	broken := word(head, 0)&^1 != walMagic || word(head, 4) != walNumber || sum != [2]uint32{word(head, 24), word(head, 28)}
	if size < 512 || size > maxPageBytes || size&(size-1) != 0 {
		return b, nil // nobody knows where frames begin
	}
	frame := make([]byte, frameHeader+size)
	for n := int64(1); ; n++ {
		if _, err := io.ReadFull(r, frame); err != nil {
			return b, notEnd(err)
		}
		its := [2]uint32{word(frame, 8), word(frame, 12)}
		if broken {
			if b.frame == 0 && n == 1 {
				salts = its // the header may be wrong about them
			}
			if its == salts {
				b.frames++
				if word(frame, 4) != 0 {
					b.commits++
				}
			}
			continue
		}
		next := checksum(order, checksum(order, sum, frame[:8]), frame[frameHeader:])
		if its != salts || next != [2]uint32{word(frame, 16), word(frame, 20)} {
			broken, b.frame = true, n
			continue
		}
		sum = next
	}
}

func notEnd(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

func checksum(order binary.ByteOrder, s [2]uint32, p []byte) [2]uint32 {
	for ; len(p) >= 8; p = p[8:] {
		s[0] += order.Uint32(p) + s[1]
		s[1] += order.Uint32(p[4:]) + s[0]
	}
	return s
}

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

// SQLite's write-ahead log: a header, then frames, each a page with a header of its own. Numbers
// are big-endian. A checksum includes everything before it; the magic number gives the byte order
// of its words. https://sqlite.org/fileformat2.html#walformat
const (
	walMagic     = 0x377f0682 // the last bit gives the byte order of the checksums
	walHeader    = 32
	frameHeader  = 24
	walNumber    = 3007000
	maxPageBytes = 65536
)

// A brokenLog describes the part of a write-ahead log that SQLite would ignore.
type brokenLog struct {
	frame   int64 // the first damaged frame, from 1; 0 is the header
	commits int   // complete commits after it
	frames  int64 // frames of these commits
}

// keepBrokenLog checks the log of an earlier process. SQLite reads a log up to the first frame with
// a wrong checksum and takes that for the end. That is right after a power loss, which can damage
// the last commit only. If more than one commit follows, the log is damaged and acknowledged
// commits are about to be lost. Then a copy of the log is kept for repair, and an error is logged.
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
		return fmt.Errorf("the write-ahead log is damaged at frame %d, and %d commits behind it can't be read; a "+
			"copy of it can't be made: %w", b.frame, b.commits, err)
	}
	log.Error("THE WRITE-AHEAD LOG IS DAMAGED: commits that were acknowledged are lost. A copy of it is kept", "frame",
		b.frame, "lost_commits", b.commits, "lost_frames", b.frames, "copy", name)
	return nil
}

// copyFile writes a copy to a new file, and syncs it.
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

// readLog reads a log and finds its first damaged frame. Frames of an earlier use of the file have
// other salts and do not count.
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
	broken := word(head, 0)&^1 != walMagic || word(head, 4) != walNumber ||
		sum != [2]uint32{word(head, 24), word(head, 28)}
	if size < 512 || size > maxPageBytes || size&(size-1) != 0 {
		return b, nil // the page size is wrong: frames can't be found
	}
	frame := make([]byte, frameHeader+size)
	for n := int64(1); ; n++ {
		if _, err := io.ReadFull(r, frame); err != nil {
			return b, notEnd(err)
		}
		its := [2]uint32{word(frame, 8), word(frame, 12)}
		if broken {
			if b.frame == 0 && n == 1 {
				salts = its // the header may be damaged
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

// notEnd ignores the end of the log.
func notEnd(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

// checksum continues a checksum of the log; see the format's description.
func checksum(order binary.ByteOrder, s [2]uint32, p []byte) [2]uint32 {
	for ; len(p) >= 8; p = p[8:] {
		s[0] += order.Uint32(p) + s[1]
		s[1] += order.Uint32(p[4:]) + s[0]
	}
	return s
}

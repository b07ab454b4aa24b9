package client

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// maxFrame bounds a line of an event stream, and the data of a frame. A value has at most a megabyte, and the largest
// stand in a log by reference.
const maxFrame = 2 << 20

// errFrame says that a stream is none of ours: a line or a frame has no end.
var errFrame = errors.New("a frame of the event stream is too large")

// A frame is one event of a stream, as it came.
type frame struct {
	event string // empty: none was named
	data  []byte // valid until the next frame is read
}

// A frameReader takes an event stream apart, as the HTML standard has it (server-sent events): lines end with LF, CR or
// both, a byte order mark may come first, a colon begins a comment, an empty line ends a frame. A frame without a data
// field is none, and neither is one that breaks off. Ids and pauses are not looked at: our events say their number themselves, and
// how to come back is the caller's affair.
type frameReader struct {
	r     *bufio.Reader
	line  []byte
	data  []byte
	begun bool
	cr    bool // the last line ended with CR: an LF that follows belongs to it
}

func newFrameReader(r io.Reader) *frameReader { return &frameReader{r: bufio.NewReaderSize(r, 16<<10)} }

// next reads to the end of a frame. io.EOF means that the stream ended, between frames or within one.
func (f *frameReader) next() (frame, error) {
	var out frame
	some := false // a data field was there, even an empty one
	f.data = f.data[:0]
	for {
		line, err := f.readLine()
		if err != nil {
			return frame{}, err
		}
		if len(line) == 0 {
			if some {
				out.data = f.data
				return out, nil
			}
			out = frame{}
			continue
		}
		name, value, _ := bytes.Cut(line, []byte{':'})
		value = bytes.TrimPrefix(value, []byte{' '})
		switch string(name) {
		case "event":
			out.event = string(value)
		case "data":
			if len(f.data)+len(value) >= maxFrame {
				return frame{}, errFrame
			}
			if some {
				f.data = append(f.data, '\n')
			}
			f.data, some = append(f.data, value...), true
		}
	}
}

// readLine gives a line without its end. An LF after a CR is taken with the next line, because it may never come.
func (f *frameReader) readLine() ([]byte, error) {
	f.line = f.line[:0]
	for {
		if f.r.Buffered() == 0 {
			if _, err := f.r.Peek(1); err != nil {
				return nil, err
			}
		}
		b, _ := f.r.Peek(f.r.Buffered())
		if f.cr {
			f.cr = false
			if b[0] == '\n' {
				f.r.Discard(1)
				continue
			}
		}
		end := bytes.IndexAny(b, "\r\n")
		if end < 0 {
			end = len(b)
		}
		if len(f.line)+end > maxFrame {
			return nil, errFrame
		}
		f.line = append(f.line, b[:end]...)
		if end == len(b) {
			f.r.Discard(end)
			continue
		}
		f.cr = b[end] == '\r'
		f.r.Discard(end + 1)
		if !f.begun {
			f.begun = true
			f.line = bytes.TrimPrefix(f.line, []byte("\xef\xbb\xbf"))
		}
		return f.line, nil
	}
}

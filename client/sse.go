package client

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// maxFrame limits a line of an event stream, and the data of a frame. It is more than the server
// sends: a value has at most a megabyte, and large ones are in the log by reference.
const maxFrame = 2 << 20

// errFrame is returned for a line or a frame over the limit.
var errFrame = errors.New("a frame of the event stream is too large")

// A frame is one frame of an event stream.
type frame struct {
	event string // empty if the frame has no event field
	data  []byte // valid until the next frame is read
}

// A frameReader parses an event stream (server-sent events) as the HTML standard defines it. Lines
// end with LF, CR or CRLF, and the stream may begin with a byte order mark. A line that begins with
// a colon is a comment, and an empty line ends a frame. A frame without a data field is dropped,
// and so is a last frame without its end. The fields id and retry are ignored: the data of an event
// has its number, and Stream has its own backoff.
type frameReader struct {
	r     *bufio.Reader
	line  []byte
	data  []byte
	begun bool
	cr    bool // the last line ended with CR; a following LF belongs to it
}

func newFrameReader(r io.Reader) *frameReader { return &frameReader{r: bufio.NewReaderSize(r, 16<<10)} }

// next reads the next frame. io.EOF means that the stream ended, between frames or within one.
func (f *frameReader) next() (frame, error) {
	var out frame
	some := false // the frame has a data field, maybe an empty one
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

// readLine returns a line without its end. After a CR it does not wait for an LF, which may never
// come; the next call skips it.
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

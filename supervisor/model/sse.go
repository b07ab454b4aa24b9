package model

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// errTooLarge is returned for a line, a frame, a body or an answer over its limit.
var errTooLarge = errors.New("the answer is too large")

// A frameReader parses server-sent events as the HTML standard defines them. Lines end with LF, CR
// or CRLF, and the stream may begin with a byte order mark. A line that begins with a colon is a
// comment. An empty line ends a frame. A last frame without its end is returned all the same,
// because some endpoints close the stream after the last byte of data.
type frameReader struct {
	r     *bufio.Reader
	limit int // of a line, and of the data of a frame
	line  []byte
	data  []byte
	begun bool
	cr    bool // the last line ended with CR; a following LF belongs to it
	// known and unknown count lines. A body with unknown lines alone is no event stream.
	known, unknown int
}

func newFrameReader(r *bufio.Reader, limit int) *frameReader { return &frameReader{r: r, limit: limit} }

// next returns the next frame with data. The data is valid until the following call. io.EOF means
// that the stream has ended.
func (f *frameReader) next() (event string, data []byte, err error) {
	some := false
	f.data = f.data[:0]
	for {
		line, err := f.readLine()
		if err != nil && !(errors.Is(err, io.EOF) && len(line) > 0) {
			if errors.Is(err, io.EOF) && some {
				return event, f.data, nil
			}
			return "", nil, err
		}
		if len(line) == 0 {
			if some {
				return event, f.data, nil
			}
			event = ""
			continue
		}
		name, value, colon := bytes.Cut(line, []byte{':'})
		value = bytes.TrimPrefix(value, []byte{' '})
		switch {
		case len(name) == 0 && colon, string(name) == "id", string(name) == "retry":
			f.known++
		case string(name) == "event":
			f.known++
			event = string(value)
		case string(name) == "data":
			f.known++
			if len(f.data)+len(value) >= f.limit {
				return "", nil, errTooLarge
			}
			if some {
				f.data = append(f.data, '\n')
			}
			f.data, some = append(f.data, value...), true
		default:
			f.unknown++
		}
	}
}

// readLine returns a line without its end. After a CR it does not wait for an LF, which may never
// come; the next call skips it. A last line without an end is returned with io.EOF.
func (f *frameReader) readLine() ([]byte, error) {
	f.line = f.line[:0]
	for {
		if f.r.Buffered() == 0 {
			if _, err := f.r.Peek(1); err != nil {
				return f.trimmed(), err
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
		if len(f.line)+end > f.limit {
			return nil, errTooLarge
		}
		f.line = append(f.line, b[:end]...)
		if end == len(b) {
			f.r.Discard(end)
			continue
		}
		f.cr = b[end] == '\r'
		f.r.Discard(end + 1)
		return f.trimmed(), nil
	}
}

// trimmed returns the line, the first one without a byte order mark.
func (f *frameReader) trimmed() []byte {
	if !f.begun {
		f.begun = true
		return bytes.TrimPrefix(f.line, []byte("\xef\xbb\xbf"))
	}
	return f.line
}

// A boundedReader fails with errTooLarge after a number of bytes, where an io.LimitReader would end
// as if the answer was complete.
type boundedReader struct {
	r    io.Reader
	left int64
}

func (b *boundedReader) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errTooLarge
	}
	n, err := b.r.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

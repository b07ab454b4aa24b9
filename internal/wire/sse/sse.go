// Package sse reads server-sent events: the streams of the API, and those of models. It stands on the
// standard library alone, so that the SDK shares it.
package sse

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// A Reader parses an event stream as the HTML standard defines it. Lines end with LF, CR or CRLF, and
// the stream may begin with a byte order mark. A line that begins with a colon is a comment, and an
// empty line ends a frame. A frame without a data field is dropped. The fields id and retry are
// ignored.
type Reader struct {
	// Unended makes Next return a last frame without its end, which the standard drops: some endpoints
	// close the stream after the last byte of data.
	Unended bool
	// Known and Unknown count lines. A body with unknown lines alone is no event stream.
	Known, Unknown int

	r        *bufio.Reader
	limit    int
	tooLarge error
	line     []byte
	data     []byte
	begun    bool
	cr       bool // the last line ended with CR; a following LF belongs to it
}

// NewReader returns a reader of frames. A line, or the data of a frame, of more than limit bytes gives
// the error tooLarge.
func NewReader(r *bufio.Reader, limit int, tooLarge error) *Reader {
	return &Reader{r: r, limit: limit, tooLarge: tooLarge}
}

// Next returns the next frame with data. The event is empty if the frame has no such field, and the data
// is valid until the following call. io.EOF means that the stream ended, between frames or within one.
func (f *Reader) Next() (event string, data []byte, err error) {
	some := false // the frame has a data field, maybe an empty one
	f.data = f.data[:0]
	for {
		line, err := f.readLine()
		if err != nil {
			last := f.Unended && errors.Is(err, io.EOF)
			if last && len(line) == 0 && some {
				return event, f.data, nil
			}
			if !last || len(line) == 0 {
				return "", nil, err
			}
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
		f.Known++
		switch {
		case len(name) == 0 && colon, string(name) == "id", string(name) == "retry":
		case string(name) == "event":
			event = string(value)
		case string(name) == "data":
			if len(f.data)+len(value) >= f.limit {
				return "", nil, f.tooLarge
			}
			if some {
				f.data = append(f.data, '\n')
			}
			f.data, some = append(f.data, value...), true
		default:
			f.Known--
			f.Unknown++
		}
	}
}

// readLine returns a line without its end. After a CR it does not wait for an LF, which may never
// come; the next call skips it. A last line without an end is returned with io.EOF.
func (f *Reader) readLine() ([]byte, error) {
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
			return nil, f.tooLarge
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
func (f *Reader) trimmed() []byte {
	if !f.begun {
		f.begun = true
		return bytes.TrimPrefix(f.line, []byte("\xef\xbb\xbf"))
	}
	return f.line
}

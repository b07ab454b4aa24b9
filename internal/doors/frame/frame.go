package frame

import (
	"strconv"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// A Frame is one server-sent event.
type Frame struct {
	// Event is the name of the event. Data is its content, JSON in one line.
	Event string
	Data  []byte
	// Bare frames have no id.
	Bare bool
}

// A Translation turns the lines of one run's log into frames. It sees every line from the first on, and
// its frames depend on nothing else. more is false after the last frame.
type Translation func(e *api.Event) (frames []Frame, more bool, err error)

// A Cursor is a place in the frames of a run: a line of its log, and a frame of that line, from 1 on.
// A line without a frame means all frames of the line. The zero Cursor is the beginning.
type Cursor struct {
	Line  int64
	Frame int
}

// String writes a cursor as line.frame.
func (c Cursor) String() string {
	return strconv.FormatInt(c.Line, 10) + "." + strconv.Itoa(c.Frame)
}

// ParseCursor reads a cursor as String writes it, or a line alone. An empty text and -1 are the
// beginning.
func ParseCursor(text string) (Cursor, error) {
	if text == "" || text == "-1" {
		return Cursor{}, nil
	}
	line, frame, two := strings.Cut(text, ".")
	n, err := strconv.ParseInt(line, 10, 64)
	m := int64(0)
	if err == nil && two {
		m, err = strconv.ParseInt(frame, 10, 32)
	}
	if err != nil || n < 0 || m < 0 || n > maxCursor {
		return Cursor{}, perdure.Invalid("Last-Event-ID", "takes the id of the last event that was received")
	}
	return Cursor{n, int(m)}, nil
}

// maxCursor is the largest whole number that JavaScript holds.
const maxCursor = 1 << 53

// Has tells whether a frame lies at the cursor or before it, so that the reader has it already.
func (c Cursor) Has(line int64, frame int) bool {
	return line < c.Line || line == c.Line && (c.Frame == 0 || frame <= c.Frame)
}

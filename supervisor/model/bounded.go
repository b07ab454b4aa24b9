package model

import (
	"bufio"
	"errors"
	"io"

	"github.com/perdure/perdure/internal/wire/sse"
)

// errTooLarge is returned for a line, a frame, a body or an answer over its limit.
var errTooLarge = errors.New("the answer is too large")

// newFrames returns a reader of an answer's frames. The last one may come without its end.
func newFrames(r *bufio.Reader, limit int) *sse.Reader {
	frames := sse.NewReader(r, limit, errTooLarge)
	frames.Unended = true
	return frames
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

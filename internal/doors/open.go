package doors

import (
	"bytes"
	"context"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/doors/answer"
	"github.com/perdure/perdure/internal/doors/body"
	"github.com/perdure/perdure/internal/doors/frame"
)

// Decode reads the body into a value, and returns its bytes as they came. An empty body is an empty
// object. Fields that the value does not have are ignored; fields of another type are refused.
func (c *Call) Decode(into any) (raw []byte, err error) {
	raw, err = c.set.bodies.Read(c.w, c.Request, c.Key, func() error {
		_, err := c.API.Session(c.Context())
		if client.CodeOf(err) == api.CodeForbidden {
			return nil
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(bytes.TrimSpace(raw)) == 0 {
		raw = []byte("{}")
	}
	return raw, body.Decode(raw, into)
}

// accept is called when an answer begins, if it stays open. It can't be a refusal any more, so calls of the API
// that fail for the moment are made again.
func (c *Call) accept() {
	c.accepted = true
	c.useAPI(client.Options{})
}

// Waiting answers with JSON that make returns after a wait. Begin, which make calls once it can't be
// refused any more, flushes the headers; from then on the caller gets a line break every few seconds. If make
// returns an error before, it is a refusal, and later the answer is aborted. The context ends when the
// caller hangs up or the server shuts down.
func (c *Call) Waiting(make func(ctx context.Context, begin func() error) (body any, err error)) error {
	return c.WaitingAfter(0, make)
}

// WaitingAfter is Waiting for clients that repeat a call only as long as they have no headers: these are
// held back for a while, so that a server which goes away meanwhile costs such a client nothing.
func (c *Call) WaitingAfter(
	hold time.Duration, make func(ctx context.Context, begin func() error) (body any, err error),
) error {
	o, ctx := c.Open(c.Context(), "application/json", "\n", hold, c.accept)
	out, err := make(ctx, o.Begin)
	o.Close()
	if err != nil {
		return err
	}
	return o.JSON(out)
}

// A Stream writes server-sent events.
type Stream struct {
	answer.Stream
	call *Call
}

// Streaming answers with server-sent events. send writes them; a comment keeps the connection alive
// between them. The headers are flushed with the first use of the stream. If send returns an error
// before, it is a refusal, and later the answer is aborted. The context ends when the caller hangs up or
// the server shuts down.
func (c *Call) Streaming(send func(ctx context.Context, s *Stream) error) error {
	o, ctx := c.Open(c.Context(), api.MediaStream, ": hb\n", 0, c.accept)
	defer o.Close()
	return send(ctx, &Stream{Stream: answer.Stream{Open: o}, call: c})
}

// Follow streams the frames of a run after a cursor, until the translation says that there are no more
// or the log ends. The log is read from its first line, because frames depend on all lines before, and
// the frames that the caller has are dropped. head is the last line that is known: what is before it is
// written without a flush for each line.
func (s *Stream) Follow(
	ctx context.Context, id perdure.RunID, head int64, from frame.Cursor, t frame.Translation,
) error {
	for e, err := range s.call.Lines(ctx, id, 0) {
		if err != nil {
			return err
		}
		if err := s.Begin(); err != nil {
			return err
		}
		frames, more, err := t(e)
		if err != nil {
			return err
		}
		skip := 0
		for skip < len(frames) && from.Has(e.Seq, skip+1) {
			skip++
		}
		flush := e.Seq >= head || !more
		if len(frames) > skip || flush {
			if err := s.Send(e.Seq, skip+1, frames[skip:], flush); err != nil {
				return err
			}
		}
		if !more {
			return nil
		}
	}
	return nil
}

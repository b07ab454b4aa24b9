package doors

import (
	"context"
	"errors"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
)

// open is an answer that stays open: its headers are flushed, and something is written every few
// seconds until it ends.
type open struct {
	call *Call
	rc   *http.ResponseController

	mu    sync.Mutex // guards what is written
	beat  []byte
	timer *time.Timer
	err   error // of a write
	over  bool
	quit  context.CancelCauseFunc
	loose func() bool
	// hold is how long the headers are held back once the answer has begun.
	hold time.Duration
}

// beatEvery is the interval between signs of life. Clients take a connection that is silent for three
// of them for dead.
const beatEvery = 5 * time.Second

// Open returns a context for work whose answer stays open. It ends when the caller hangs up, when the
// server shuts down, and when the caller no longer reads. done releases it.
func (c *Call) open(media, beat string) (o *open, ctx context.Context) {
	o = &open{call: c, rc: http.NewResponseController(c.w), beat: []byte(beat)}
	ctx, o.quit = context.WithCancelCause(c.Context())
	o.loose = context.AfterFunc(c.set.closing, func() { o.quit(errClosing) })
	h := c.w.Header()
	h.Set("Content-Type", media)
	h.Set("X-Accel-Buffering", "no")
	return o, ctx
}

// begin flushes the headers and starts the signs of life, at once or when they were held back. A refusal can't be
// told from then on, so calls of the API that fail for the moment are made again.
func (o *open) begin() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.call.accepted = true
	o.call.useAPI(client.Options{})
	if o.hold == 0 {
		return o.flushHeaders()
	}
	o.timer = time.AfterFunc(o.hold, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		if !o.over && o.flushHeaders() != nil {
			o.quit(o.err)
		}
	})
	return nil
}

// flushHeaders writes the headers. The caller holds o.mu.
func (o *open) flushHeaders() error {
	o.call.begun = true
	o.call.deadline(0)
	o.call.w.WriteHeader(http.StatusOK)
	if o.err = o.rc.Flush(); o.err != nil {
		return o.err
	}
	o.timer = time.AfterFunc(beatEvery, o.tick)
	return nil
}

// tick writes a sign of life.
func (o *open) tick() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.over {
		return
	}
	if o.write(o.beat, true) != nil {
		o.quit(o.err)
		return
	}
	o.timer.Reset(beatEvery)
}

// write writes bytes. The caller holds o.mu.
func (o *open) write(b []byte, flush bool) error {
	if o.err != nil {
		return o.err
	}
	o.call.deadline(len(b))
	if _, o.err = o.call.w.Write(b); o.err == nil && flush {
		o.err = o.rc.Flush()
	}
	return o.err
}

// close ends the signs of life.
func (o *open) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.over = true
	o.call.gone = o.call.set.closing.Err() == nil &&
		(o.call.Context().Err() != nil || o.err != nil && !errors.Is(o.err, os.ErrDeadlineExceeded))
	if o.timer != nil {
		o.timer.Stop()
	}
	o.loose()
	o.quit(context.Canceled)
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
	o, ctx := c.open("application/json", "\n")
	o.hold = hold
	body, err := make(ctx, o.begin)
	o.close()
	if err != nil {
		return err
	}
	b, err := encode(body)
	if err != nil {
		return err
	}
	c.begun = true
	return o.write(append(b, '\n'), false) // nobody else writes any more; net/http flushes it at its end
}

// A Stream writes server-sent events.
type Stream struct {
	*open
	// Prefix is written before the place of a frame in its log. It is for streams of several runs.
	Prefix string

	began bool
	buf   []byte
}

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

// Streaming answers with server-sent events. send writes them; a comment keeps the connection alive
// between them. The headers are flushed with the first use of the stream. If send returns an error
// before, it is a refusal, and later the answer is aborted. The context ends when the caller hangs up or
// the server shuts down.
func (c *Call) Streaming(send func(ctx context.Context, s *Stream) error) error {
	o, ctx := c.open(api.MediaStream, ": hb\n")
	defer o.close()
	return send(ctx, &Stream{open: o})
}

// Send writes frames with the ids of their places in the log, which begin with first. flush is false if more will
// follow at once.
func (s *Stream) Send(line int64, first int, frames []Frame, flush bool) error {
	if err := s.Begin(); err != nil {
		return err
	}
	s.buf = s.buf[:0]
	for i, f := range frames {
		if !f.Bare {
			s.buf = append(append(s.buf, "id: "...), s.Prefix...)
			s.buf = append(append(s.buf, Cursor{line, first + i}.String()...), '\n')
		}
		if f.Event != "" {
			s.buf = append(append(append(s.buf, "event: "...), f.Event...), '\n')
		}
		s.buf = append(append(append(s.buf, "data: "...), f.Data...), "\n\n"...)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.write(s.buf, flush)
}

// Begin flushes the headers, if that has not happened yet.
func (s *Stream) Begin() error {
	if s.began {
		return nil
	}
	s.began = true
	return s.begin()
}

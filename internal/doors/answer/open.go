package answer

import (
	"context"
	"errors"
	"net/http"
	"os"
	"sync"
	"time"
)

// An Open is an answer that stays open: its headers are flushed, and something is written every few
// seconds until it ends.
type Open struct {
	a  *Answer
	rc *http.ResponseController
	// caller is the context of the request, and accept is called as the answer begins.
	caller context.Context
	accept func()

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
// server shuts down, and when the caller no longer reads. Close releases it. Beat is the sign of life. The
// headers are held back for a while once the answer has begun; accept is called then, at once.
func (a *Answer) Open(
	caller context.Context, media, beat string, hold time.Duration, accept func(),
) (o *Open, ctx context.Context) {
	o = &Open{a: a, rc: http.NewResponseController(a.w), caller: caller, accept: accept, beat: []byte(beat), hold: hold}
	ctx, o.quit = context.WithCancelCause(caller)
	o.loose = context.AfterFunc(a.closing, func() { o.quit(ErrClosing) })
	h := a.w.Header()
	h.Set("Content-Type", media)
	h.Set("X-Accel-Buffering", "no")
	return o, ctx
}

// Begin flushes the headers and starts the signs of life, at once or when they were held back. A refusal can't be
// told from then on.
func (o *Open) Begin() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.accept()
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
func (o *Open) flushHeaders() error {
	o.a.begun = true
	o.a.deadline(0)
	o.a.w.WriteHeader(http.StatusOK)
	if o.err = o.rc.Flush(); o.err != nil {
		return o.err
	}
	o.timer = time.AfterFunc(beatEvery, o.tick)
	return nil
}

// tick writes a sign of life.
func (o *Open) tick() {
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
func (o *Open) write(b []byte, flush bool) error {
	if o.err != nil {
		return o.err
	}
	o.a.deadline(len(b))
	if _, o.err = o.a.w.Write(b); o.err == nil && flush {
		o.err = o.rc.Flush()
	}
	return o.err
}

// Close ends the signs of life.
func (o *Open) Close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.over = true
	o.a.gone = o.a.closing.Err() == nil &&
		(o.caller.Err() != nil || o.err != nil && !errors.Is(o.err, os.ErrDeadlineExceeded))
	if o.timer != nil {
		o.timer.Stop()
	}
	o.loose()
	o.quit(context.Canceled)
}

// JSON ends the answer with a value, after Close.
func (o *Open) JSON(body any) error {
	b, err := encode(body)
	if err != nil {
		return err
	}
	o.a.begun = true
	return o.write(append(b, '\n'), false) // nobody else writes any more; net/http flushes it at its end
}

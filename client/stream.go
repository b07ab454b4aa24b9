package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/wire/sse"
)

// A StreamGapError says that events of a run's log are no longer stored, because they are older than the
// server keeps them.
type StreamGapError struct {
	RunID    perdure.RunID
	From, To int64 // the first and the last missing event
}

func (e *StreamGapError) Error() string {
	return fmt.Sprintf("the log of run %s has no lines %d to %d any more", e.RunID, e.From, e.To)
}

// Stream yields the events of a run's log as they are written, after the given number (zero: from
// the beginning), until the run has ended. Every event comes once and in order.
//
// When the connection breaks or is silent, or the server restarts or is full, Stream attaches again
// after the last event. It does so until the context ends. A refusal, for example not_found, and
// the end of the context are errors and the last value.
//
// Where streams stay silent although the server is there, behind a proxy that buffers them, Stream
// falls back to polling, as [Client.Events] does, and reports that the run is still working: see
// [StreamOptions]. It never cancels the run.
//
// For events that are no longer stored, Stream yields a [*StreamGapError] in their place. It does not end
// the iteration: a loop that continues gets the events after the gap.
func (c *Client) Stream(
	ctx context.Context, id perdure.RunID, after int64, opts ...StreamOptions,
) iter.Seq2[api.Event, error] {
	return func(yield func(api.Event, error) bool) {
		s := &stream{client: c, id: id, after: after, opt: streamOptions(opts), yield: yield}
		var nodes round
		for n := 0; ; n++ {
			began, at := time.Now(), s.after
			f := s.attach(ctx)
			switch {
			case f == nil:
				return
			case ctx.Err() != nil:
				yield(api.Event{}, ctx.Err())
				return
			case !f.again || s.opt.Once:
				yield(api.Event{}, f.err)
				return
			}
			if s.silences >= silencesBeforePolling {
				c.log.Debug("streams are silent; the run is polled", "run", id, "after", s.after)
				if !s.poll(ctx) {
					return
				}
				// It works again. If it is silent once more, that is enough.
				n, nodes, s.silences = 0, round{}, silencesBeforePolling-1
				continue
			}
			left := c.leave(s.turn, f)
			if s.after > at || time.Since(began) > s.opt.Silence {
				n, nodes = 0, round{} // the connection worked, so the backoff starts again
			}
			if left {
				f.after = 0 // it is about the server that was left
			}
			c.log.Debug("a stream is attached again", "run", id, "after", s.after, "error", f.err)
			if nodes.next(c, left) {
				n-- // the next address is tried at once
				continue
			}
			if !c.pause(ctx, time.Time{}, n, f.after) {
				<-ctx.Done() // the context ends before the next attempt
				yield(api.Event{}, ctx.Err())
				return
			}
		}
	}
}

// A stream is one iteration of Stream, over any number of connections.
type stream struct {
	client *Client
	id     perdure.RunID
	opt    StreamOptions
	after  int64 // the cursor: the last event that was yielded
	turn   int64 // that of the address of the last connection
	yield  func(api.Event, error) bool
	// silences counts the connections in a row that brought nothing.
	silences int
	// probes is set for a stream that only finds out whether streams work: it ends with the first frame.
	probes bool
}

// attach reads the log over one connection. It returns nil if the log has ended or the caller has
// stopped the iteration.
func (s *stream) attach(ctx context.Context) *failure {
	one, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r := &request{method: http.MethodGet, path: path(v1+"/runs/%s/stream", string(s.id))}
	req, err := s.client.request(one, r)
	if err != nil {
		return &failure{err: err}
	}
	s.turn = r.turn
	req.Header.Set("Accept", api.MediaStream)
	req.Header.Set("Last-Event-ID", strconv.FormatInt(s.after, 10))
	quiet := time.AfterFunc(s.opt.Silence, func() { cancel(errSilent) })
	began := time.Now()
	res, err := s.client.http.Do(req)
	quiet.Stop()
	if err != nil {
		s.countSilence(one, false)
		return &failure{err: broken(one, err), again: true, node: unanswered(one, err, began, 0)}
	}
	defer res.Body.Close()
	body := &idleTimeoutReader{r: res.Body, quiet: quiet, timeout: s.opt.Silence}
	switch kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); {
	case res.StatusCode == http.StatusNoContent:
		return nil
	case res.StatusCode != http.StatusOK:
		b, err := io.ReadAll(io.LimitReader(body, 64<<10))
		if err != nil {
			return &failure{err: broken(one, err), again: true}
		}
		f := s.client.explainTenant(readProblem(res, b))
		f.again = f.again || Transient(f.err)
		return f
	case kind != api.MediaStream:
		return &failure{err: fmt.Errorf("the answer is no event stream but %q", kind)}
	}
	// As much as net/http reads at once; a program may follow thousands of runs.
	frames := sse.NewReader(bufio.NewReaderSize(body, 4<<10), maxFrame, errFrame)
	for {
		event, data, err := frames.Next()
		switch {
		case errors.Is(err, errFrame):
			return &failure{err: err}
		case err != nil:
			// The server may have dropped a slow reader. If it is gone, the next attempt finds that out.
			return &failure{err: broken(one, err), again: true, node: s.countSilence(one, body.heard)}
		}
		if s.probes {
			return nil // it works
		}
		if more, err := s.take(event, data); err != nil || !more {
			if err == nil {
				return nil
			}
			return &failure{err: err}
		}
	}
}

// take yields the content of a frame. It returns false if the stream has ended or the caller has
// stopped.
func (s *stream) take(event string, data []byte) (more bool, err error) {
	switch event {
	case api.StreamEnd:
		return false, nil
	case api.StreamGap:
		var gap api.Gap
		if err := json.Unmarshal(data, &gap); err != nil {
			return false, fmt.Errorf("the stream is not what this client knows: %w", err)
		}
		return s.passOver(gap.To), nil
	}
	if event == "" || strings.HasPrefix(event, "stream:") {
		return true, nil // about the stream, not an event of the log
	}
	var e api.Event
	if err := json.Unmarshal(data, &e); err != nil {
		return false, fmt.Errorf("the stream is not what this client knows: %w", err)
	}
	if e.Seq <= s.after {
		return true, nil // yielded before
	}
	if !s.passOver(e.Seq - 1) {
		return false, nil
	}
	s.after = e.Seq
	return s.yield(e, nil), nil
}

// passOver moves the cursor over missing events and yields a StreamGapError for them.
func (s *stream) passOver(to int64) bool {
	if to <= s.after {
		return true
	}
	gap := &StreamGapError{RunID: s.id, From: s.after + 1, To: to}
	s.after = to
	return s.yield(api.Event{}, gap)
}

// maxFrame limits a line of an event stream, and the data of a frame. It is more than the server
// sends: a value has at most a megabyte, and large ones are in the log by reference.
const maxFrame = 2 << 20

// errFrame is returned for a line or a frame over the limit.
var errFrame = errors.New("a frame of the event stream is too large")

var errSilent = errors.New("nothing was heard for too long")

// broken returns why a connection ended: the cause of its cancellation, or else the error.
func broken(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// idleTimeoutReader is a body with a timeout for each read. Time between reads does not count, so a
// caller may take long with an event.
type idleTimeoutReader struct {
	r       io.Reader
	quiet   *time.Timer
	timeout time.Duration
	heard   bool // something was read
}

func (a *idleTimeoutReader) Read(b []byte) (int, error) {
	a.quiet.Reset(a.timeout)
	defer a.quiet.Stop()
	n, err := a.r.Read(b)
	a.heard = a.heard || n > 0
	return n, err
}

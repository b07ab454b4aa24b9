package client

import (
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
)

// streamSilence is how long a stream may say nothing. The server says something every five seconds, so that a
// connection which is silent for longer is dead, whatever the network believes.
const streamSilence = 20 * time.Second

// A GapError says that lines of a run's log are no longer there: they are older than the server keeps them.
type GapError struct {
	RunID    perdure.RunID
	From, To int64 // the first and the last line that is missing
}

func (e *GapError) Error() string {
	return fmt.Sprintf("the log of run %s has no lines %d to %d any more", e.RunID, e.From, e.To)
}

// Stream follows a run's log from after a line (zero: from the beginning) as it is written, until the run has ended
// and everything was told. Every line comes once and in order.
//
// It attaches again by itself, with its cursor, when the connection breaks or falls silent, when the server goes away,
// restarts, or has no room for a stream now, for as long as the context lives. A refusal, such as no such run, and the
// context's end are errors, and the last thing it gives.
//
// Lines that the server no longer keeps are told too, by a [*GapError] in their place. It does not end the iteration:
// whoever goes on gets the lines that follow.
func (c *Client) Stream(ctx context.Context, id perdure.RunID, after int64) iter.Seq2[api.Event, error] {
	return func(yield func(api.Event, error) bool) {
		s := &stream{client: c, id: id, after: after, yield: yield}
		for n := 0; ; n++ {
			began, at := time.Now(), s.after
			f := s.attach(ctx)
			switch {
			case f == nil:
				return
			case ctx.Err() != nil:
				yield(api.Event{}, ctx.Err())
				return
			case !f.again:
				yield(api.Event{}, f.err)
				return
			}
			if s.after > at || time.Since(began) > streamSilence {
				n = 0 // it was a good one
			}
			c.log.Debug("a stream is attached again", "run", id, "after", s.after, "error", f.err)
			if !c.pause(ctx, n, f.after) {
				<-ctx.Done() // it would be over before the next try
				yield(api.Event{}, ctx.Err())
				return
			}
		}
	}
}

// A stream is one iteration, over any number of connections.
type stream struct {
	client *Client
	id     perdure.RunID
	after  int64 // the cursor: the last line that was given
	yield  func(api.Event, error) bool
}

// attach reads the log over one connection. Without a failure nothing is left to do: the log has ended, or the caller
// has had enough.
func (s *stream) attach(ctx context.Context) *failure {
	one, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	req, err := s.client.request(one, &request{method: http.MethodGet, path: path(v1+"/runs/%s/stream", string(s.id))})
	if err != nil {
		return &failure{err: err}
	}
	req.Header.Set("Accept", api.MediaStream)
	req.Header.Set("Last-Event-ID", strconv.FormatInt(s.after, 10))
	quiet := time.AfterFunc(streamSilence, func() { cancel(errSilent) })
	res, err := s.client.http.Do(req)
	quiet.Stop()
	if err != nil {
		return &failure{err: broken(one, err), again: true}
	}
	defer res.Body.Close()
	body := &attentive{r: res.Body, quiet: quiet}
	switch kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); {
	case res.StatusCode == http.StatusNoContent:
		return nil
	case res.StatusCode != http.StatusOK:
		b, err := io.ReadAll(io.LimitReader(body, 64<<10))
		if err != nil {
			return &failure{err: broken(one, err), again: true}
		}
		f := refused(res, b)
		f.again = f.again || Transient(f.err)
		return f
	case kind != api.MediaStream:
		return &failure{err: fmt.Errorf("the answer is no event stream but %q", kind)}
	}
	frames := newFrameReader(body)
	for {
		fr, err := frames.next()
		switch {
		case errors.Is(err, errFrame):
			return &failure{err: err}
		case err != nil:
			return &failure{err: broken(one, err), again: true}
		}
		if more, err := s.take(fr); err != nil || !more {
			if err == nil {
				return nil
			}
			return &failure{err: err}
		}
	}
}

// take gives the caller what a frame holds, and tells whether there may be more.
func (s *stream) take(fr frame) (more bool, err error) {
	switch fr.event {
	case api.StreamEnd:
		return false, nil
	case api.StreamGap:
		var gap api.Gap
		if err := json.Unmarshal(fr.data, &gap); err != nil {
			return false, fmt.Errorf("the stream is not what this client knows: %w", err)
		}
		return s.passOver(gap.To), nil
	}
	if fr.event == "" || strings.HasPrefix(fr.event, "stream:") {
		return true, nil // about the stream, not of the log
	}
	var e api.Event
	if err := json.Unmarshal(fr.data, &e); err != nil {
		return false, fmt.Errorf("the stream is not what this client knows: %w", err)
	}
	if e.Seq <= s.after {
		return true, nil // given already
	}
	if !s.passOver(e.Seq - 1) {
		return false, nil
	}
	s.after = e.Seq
	return s.yield(e, nil), nil
}

// passOver moves the cursor over lines that do not come, and says so.
func (s *stream) passOver(to int64) bool {
	if to <= s.after {
		return true
	}
	gap := &GapError{RunID: s.id, From: s.after + 1, To: to}
	s.after = to
	return s.yield(api.Event{}, gap)
}

var errSilent = fmt.Errorf("nothing was heard for %s", streamSilence)

// broken says why a connection is no more: the reason that it was given up for, if it was.
func broken(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// attentive is a body whose reads may not take too long. The clock stands still between them: a caller may take his
// time with what he got.
type attentive struct {
	r     io.Reader
	quiet *time.Timer
}

func (a *attentive) Read(b []byte) (int, error) {
	a.quiet.Reset(streamSilence)
	defer a.quiet.Stop()
	return a.r.Read(b)
}

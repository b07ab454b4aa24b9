package client

// This file is the watchdog of Stream, for networks that swallow streams: a proxy accepts the connection
// and buffers what the server sends. Stream first attaches again. If that is silent too, it asks for the
// log page by page, which is an ordinary request and gets through. It stays attached meanwhile: the server
// goes on to count it as somebody who waits, and it notices when streams work again. Nothing here
// cancels a run.

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/perdure/perdure/api"
)

// streamSilence is the default of StreamOptions.Silence. The server sends something every five seconds,
// so a connection that is silent for longer is dead.
const streamSilence = 20 * time.Second

// silencesBeforePolling is how many connections in a row are silent before Stream polls.
const silencesBeforePolling = 2

// StreamOptions are options of [Client.Stream].
type StreamOptions struct {
	// Silence is how long a connection may be silent before Stream attaches again. After two silent
	// connections it polls, and each poll waits for so long. The default is 20 s, and the server sends
	// something every five.
	Silence time.Duration
	// StillWorking is called after each poll that brought nothing, with the run as it is then. It says
	// that the run is alive although nothing is heard of it. The iteration waits for it.
	StillWorking func(run *api.Run)
	// Once makes Stream attach once. A connection that ends before the log does is then an error, and
	// the last value.
	Once bool
}

// streamOptions merges options, with defaults.
func streamOptions(opts []StreamOptions) (out StreamOptions) {
	for _, o := range opts {
		out.Silence = cmp.Or(o.Silence, out.Silence)
		if o.StillWorking != nil {
			out.StillWorking = o.StillWorking
		}
		out.Once = out.Once || o.Once
	}
	out.Silence = cmp.Or(max(out.Silence, 0), streamSilence)
	return out
}

// countSilence tells whether a connection was given up because it was silent. It counts those in a row
// that brought nothing at all.
func (s *stream) countSilence(connection context.Context, heard bool) (silent bool) {
	silent = errors.Is(context.Cause(connection), errSilent)
	switch {
	case heard:
		s.silences = 0
	case silent:
		s.silences++
	}
	return silent
}

// errHeard ends polling: a stream has brought something.
var errHeard = errors.New("the stream works again")

// poll yields events page by page, until a stream brings something again. It returns false if the
// iteration is over.
func (s *stream) poll(ctx context.Context) (again bool) {
	polling, stop := context.WithCancelCause(ctx)
	probe := &stream{client: s.client, id: s.id, after: s.after, probes: true,
		opt: StreamOptions{Silence: 3 * s.opt.Silence}}
	probed := make(chan struct{})
	go func() {
		defer close(probed)
		if probe.stay(polling) {
			stop(errHeard)
		}
	}()
	defer func() { stop(nil); <-probed }()
	for e, err := range s.client.pages(polling, s.id, s.after, s.opt.Silence, func() { s.report(polling) }) {
		var gap *StreamGapError
		switch {
		case err == nil:
			s.after = e.Seq
		case errors.As(err, &gap):
			s.after = gap.To
		case ctx.Err() != nil:
			err = ctx.Err()
		case errors.Is(context.Cause(polling), errHeard):
			return true
		}
		if !s.yield(e, err) {
			return false
		}
	}
	return false
}

// stay keeps a stream attached, and returns true when it brings something or says that the log has ended.
func (s *stream) stay(ctx context.Context) bool {
	for {
		f := s.attach(ctx)
		if f == nil || !f.again {
			return f == nil
		}
		// The pause is short, because the server soon counts nobody as waiting.
		if !s.client.pause(ctx, time.Time{}, 0, f.after) {
			return false
		}
	}
}

// report tells the caller that the run is alive.
func (s *stream) report(ctx context.Context) {
	if s.opt.StillWorking == nil {
		return
	}
	if run, err := s.client.Get(ctx, s.id); err == nil && run.State.Live() {
		s.opt.StillWorking(run)
	}
}

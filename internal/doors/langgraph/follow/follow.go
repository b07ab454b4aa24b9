package follow

import (
	"context"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/doors"
	"github.com/perdure/perdure/internal/doors/frame"
	"github.com/perdure/perdure/internal/doors/langgraph/frames"
	"github.com/perdure/perdure/internal/doors/langgraph/runs"
	"github.com/perdure/perdure/internal/doors/langgraph/shape"
	"github.com/perdure/perdure/internal/doors/langgraph/threads"
)

// The stream of a thread tells of one run after another. A thread executes one run at a time, so its runs have
// an order: that in which they ended, and the live one is the last. The id of a frame is the run, a colon and the
// place in the run's log, and all that a node needs to go on. A run that never began is left out, because it
// may be cancelled at any time and in any order.

// Followers counts the streams of threads that are open. An idle one is no stream of the API: it asks for a new
// run every second. So their number is bounded here, on each node, for all and for each tenant.
type Followers struct {
	mu      sync.Mutex
	total   int
	tenants map[perdure.TenantID]int
}

const (
	maxFollowers          = 1000
	maxFollowersPerTenant = 100
	// idlePause is the time between two looks at a thread without a live run.
	idlePause = time.Second
)

func (f *Followers) enter(tenant perdure.TenantID) (leave func(), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.tenants[tenant] >= maxFollowersPerTenant:
		return nil, perdure.Errorf(perdure.CodeTooMany, "%d streams of threads are open, as many as a tenant may have "+
			"on a node; close one, or follow runs", maxFollowersPerTenant)
	case f.total >= maxFollowers:
		return nil, perdure.Errorf(perdure.CodeUnavailable, "too many streams of threads are open; try again later")
	}
	if f.tenants == nil {
		f.tenants = make(map[perdure.TenantID]int)
	}
	f.total++
	f.tenants[tenant]++
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.total--
		if f.tenants[tenant]--; f.tenants[tenant] == 0 {
			delete(f.tenants, tenant)
		}
	}, nil
}

// threadModes are the modes of a thread's stream: run_modes has the frames of each run in the modes that it was
// started with, state_update the values at its end, and lifecycle its beginning alone. Modes of runs are taken as
// they are.
func threadModes(words []string) (of func(*api.Run) map[string]bool, query string) {
	fixed := make(map[string]bool)
	own := len(words) == 0
	for _, w := range words {
		switch {
		case w == "run_modes":
			own = true
		case w == "state_update":
			fixed["values"] = true
		case slices.Contains(frames.Honoured, w):
			fixed[w] = true
		}
	}
	if len(words) > 0 {
		query = "?" + url.Values{"stream_mode": words}.Encode()
	}
	return func(r *api.Run) map[string]bool {
		modes := make(map[string]bool)
		if own {
			modes = frames.ModesOf(splitList(r.Metadata[frames.ModesKey]))
		}
		for w := range fixed {
			modes[w] = true
		}
		return modes
	}, query
}

func splitList(list string) []string {
	if list == "" {
		return nil
	}
	return strings.Split(list, ",")
}

// A threadStream is the stream of a thread: where it is, and how its frames are made.
type threadStream struct {
	call   *doors.Call
	thread *api.Thread
	id     string // of the thread, as the caller knows it
	modes  func(*api.Run) map[string]bool
	// ended is when the last run ended that was told to its end.
	ended perdure.Instant
	// run is where the stream goes on, after the cursor. It is nil between runs.
	run    *api.Run
	cursor frame.Cursor
}

// Stream answers with the frames of one run of a thread after another.
func (f *Followers) Stream(c *doors.Call) error {
	th, err := threads.Find(c, c.Param("thread"))
	if err != nil {
		return err
	}
	t := &threadStream{call: c, thread: th, id: c.Param("thread")}
	words := c.QueryList("stream_mode")
	if len(words) > 2*len(frames.Honoured) {
		return perdure.Invalid("stream_mode", "has too many words")
	}
	var query string
	t.modes, query = threadModes(words)
	if err := t.seek(c.Header.Get("Last-Event-ID")); err != nil {
		return err
	}
	caller, err := c.API.Session(c.Context())
	if err != nil {
		return err
	}
	leave, err := f.enter(caller.Tenant)
	if err != nil {
		return err
	}
	defer leave()
	c.AnswerHeader().Set("Location", "/threads/"+shape.Escape(t.id)+"/stream"+query)
	return c.Streaming(func(ctx context.Context, s *doors.Stream) error {
		if err := s.Begin(); err != nil {
			return err
		}
		return t.follow(ctx, s)
	})
}

// seek finds the place after the last frame that the caller has. Without one it is the live run's beginning, or
// else the next run. -1 is the first run of the thread.
func (f *threadStream) seek(last string) error {
	c := f.call
	if last == "-1" || last == "-" {
		return nil
	}
	if last == "" {
		runs, err := threads.Runs(c, f.thread.ThreadID, shape.MaxPage)
		for i := range runs {
			if at := runs[i].FinishedAt; at != nil {
				f.ended = max(f.ended, *at)
			}
		}
		return err
	}
	run, place, _ := strings.Cut(last, ":")
	cursor, err := frame.ParseCursor(place)
	if err != nil || place == "" {
		return perdure.Invalid("Last-Event-ID", "takes the id of the last event that was received, or -1")
	}
	r, err := c.API.Get(c.Context(), perdure.RunID(run))
	switch {
	case doors.Missing(err) || err == nil && r.ThreadID != f.thread.ThreadID:
		return perdure.Errorf(perdure.CodeNotFound, "the run of Last-Event-ID is not on the thread, or not any more: "+
			"read the state of the thread, and follow it without Last-Event-ID")
	case err != nil:
		return err
	}
	f.run, f.cursor = r, cursor
	return nil
}

// follow tells one run after another, until the thread is gone or the caller.
func (f *threadStream) follow(ctx context.Context, s *doors.Stream) error {
	for {
		if f.run != nil {
			if err := f.tell(ctx, s); err != nil {
				return err
			}
		}
		next, err := f.next(ctx)
		switch {
		case doors.Missing(err):
			return nil
		case err != nil && (ctx.Err() != nil || doors.ProblemOf(err).Status < 429):
			return err
		case next == nil || err != nil:
			if err := f.pause(ctx); err != nil {
				return err
			}
		}
		f.run, f.cursor = next, frame.Cursor{}
	}
}

// tell tells a run to its end.
func (f *threadStream) tell(ctx context.Context, s *doors.Stream) error {
	p := &runs.Part{Run: f.run, ID: string(f.run.RunID), Thread: f.id}
	t := p.Translator(f.call, f.modes(f.run))
	t.Through = true
	s.Prefix = p.ID + ":"
	if err := s.Follow(ctx, p.RunID, p.LastSeq, f.cursor, t.Line); err != nil {
		return err
	}
	r, err := f.call.API.Get(ctx, p.RunID)
	if err == nil && r.FinishedAt != nil {
		f.ended = max(f.ended, *r.FinishedAt)
	}
	if doors.Missing(err) {
		err = nil
	}
	return err
}

// next returns the run that ended first after the last one that was told, or else the live one. It is nil if
// there is none yet. The list has both at one instant, so that none is left out between.
func (f *threadStream) next(ctx context.Context) (next *api.Run, err error) {
	var live *api.Run
	list := client.Filter{ThreadID: f.thread.ThreadID, Limit: 10}
	for n := 0; n < shape.MaxOffset; {
		page, err := f.call.API.List(ctx, list)
		if err != nil {
			return nil, err
		}
		known := false
		for i := range page.Runs {
			r := &page.Runs[i]
			switch {
			case r.StartedAt == nil:
			case r.FinishedAt == nil:
				live = r
			case *r.FinishedAt <= f.ended:
				known = true
			case next == nil || *r.FinishedAt < *next.FinishedAt:
				next = r
			}
		}
		n += len(page.Runs)
		list.Cursor, list.Limit = page.NextCursor, shape.MaxPage
		if known || page.NextCursor == "" {
			break
		}
	}
	if next == nil {
		next = live
	}
	if next == nil {
		if _, err := f.call.API.Thread(ctx, f.thread.ThreadID); err != nil {
			return nil, err
		}
		return nil, nil
	}
	return f.call.API.Get(ctx, next.RunID)
}

func (f *threadStream) pause(ctx context.Context) error {
	t := time.NewTimer(idlePause)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

package httpd

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/coder/websocket"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/doorbell"
	"github.com/perdure/perdure/internal/engine"
	"github.com/perdure/perdure/internal/httpd/stream"
)

// A socket is an open WebSocket and the state that its client has been sent.
type socket struct {
	s      *Server
	conn   *websocket.Conn
	tenant perdure.TenantID
	filter engine.RunFilter
	// lines is set if the client wants the lines of changes.
	lines bool
	// revoked is closed when the key is no longer valid.
	revoked <-chan struct{}

	watched map[perdure.RunID]watched
	// surveyed is the time of the last survey.
	surveyed perdure.Instant
	// floor is the newest run that is no longer watched because there were too many.
	floor perdure.RunID

	rung <-chan struct{}
	stop func()
	// stale is set if the doorbell's topics differ from the runs that are watched.
	stale bool
}

// A watched is what the client of a socket knows of a run. A socket has up to maxWatched of these,
// so they are small and hold nothing of the row.
type watched struct {
	// seq is the last line that was sent.
	seq int64
	// ended is when the run ended, or zero.
	ended  perdure.Instant
	status status
	// matches is set if the run was sent as one that matches.
	matches bool
}

// A status is a run's status as an index of statuses.
type status uint8

// statuses has the names of statuses. An unknown one counts as the last, "".
var statuses = func() (out []string) {
	for _, s := range perdure.States {
		out = append(out, string(s))
	}
	return append(out, perdure.StatusDeferred, "")
}()

func statusOf(name string) status {
	if i := slices.Index(statuses, name); i >= 0 {
		return status(i)
	}
	return status(len(statuses) - 1)
}

// listen listens for the runs that are watched, and for new ones.
func (w *socket) listen() {
	w.unlisten()
	topics := make([]doorbell.Topic, 0, len(w.watched)+1)
	topics = append(topics, doorbell.Run(w.tenant, engine.AnyRun))
	for id := range w.watched {
		topics = append(topics, doorbell.Run(w.tenant, string(id)))
	}
	w.rung, w.stop = w.s.bell.Listen(topics...)
	w.stale = false
}

func (w *socket) unlisten() {
	if w.stop != nil {
		w.stop()
	}
}

// base returns a filter for the runs that match or may come to match: status and state change.
func (w *socket) base() engine.RunFilter {
	f := w.filter
	f.Status, f.State, f.Limit = "", "", maxWatched
	return f
}

func (w *socket) matches(r *perdure.Run) bool {
	return (w.filter.Status == "" || w.filter.Status == r.Status()) &&
		(w.filter.State == "" || w.filter.State == r.State)
}

// snapshot reads the runs that match and begins to watch them, and live ones that may come to
// match.
func (w *socket) snapshot(ctx context.Context) (*api.Snapshot, error) {
	out := &api.Snapshot{Type: api.SocketSnapshot, Runs: []api.Run{}}
	w.surveyed = w.s.engine.Now()
	matching, live := w.filter, w.base()
	matching.Limit++
	live.Live = true
	pages, err := w.s.engine.Runs.Pages(ctx, w.tenant, matching, live)
	if err != nil {
		return nil, err
	}
	list := pages[0].Runs
	if out.Truncated = pages[0].Next != ""; len(list) == matching.Limit {
		list = list[:w.filter.Limit]
	}
	for i := range list {
		out.Runs = append(out.Runs, *w.s.show(&engine.Detail{Run: list[i]}, w.surveyed))
		w.watch(&list[i], true)
	}
	list, w.floor = pages[1].Runs, pages[1].Next // there are too many to watch older ones
	for i := range list {
		if _, ok := w.watched[list[i].ID]; !ok {
			w.watch(&list[i], w.matches(&list[i]))
		}
	}
	w.prune()
	return out, nil
}

// watch records what the client knows of a run.
func (w *socket) watch(r *perdure.Run, matches bool) {
	x, ok := w.watched[r.ID]
	if !ok {
		w.stale = true
	}
	x.seq, x.status, x.matches = r.Seq, statusOf(r.Status()), matches
	if r.State.Terminal() {
		x.ended = r.FinishedAt
	}
	w.watched[r.ID] = x
}

// prune stops watching runs that ended a while ago. If too many are left it drops the oldest: first
// those that do not match, so that a backlog does not displace the runs that do.
func (w *socket) prune() {
	now := w.s.engine.Now()
	for id, x := range w.watched {
		if x.ended != 0 && now.Sub(x.ended) > lingering {
			delete(w.watched, id)
			w.stale = true
		}
	}
	if len(w.watched) <= maxWatched {
		return
	}
	ids := w.ids()
	slices.SortFunc(ids, func(a, b perdure.RunID) int {
		if m := w.watched[a].matches; m != w.watched[b].matches {
			if m {
				return 1
			}
			return -1
		}
		return cmp.Compare(a, b)
	})
	for _, id := range ids[:len(ids)-maxWatched] {
		delete(w.watched, id)
		w.floor = max(w.floor, id)
	}
	w.stale = true
}

func (w *socket) watches(id perdure.RunID) bool {
	_, ok := w.watched[id]
	return ok
}

func (w *socket) ids() []perdure.RunID {
	ids := make([]perdure.RunID, 0, len(w.watched))
	for id := range w.watched {
		ids = append(ids, id)
	}
	return ids
}

// serve sends the snapshot and then changes. It ends when the client is gone, the key is revoked or
// the server shuts down.
func (w *socket) serve(first *api.Snapshot) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer w.conn.CloseNow()
	gone := make(chan struct{})
	go func() { // the library answers pings and closes only while something reads
		defer close(gone)
		for {
			if _, _, err := w.conn.Read(ctx); err != nil {
				return
			}
		}
	}()
	if !w.write(ctx, first) {
		return
	}
	first = nil // free it: a socket lasts long
	go w.ping(ctx, cancel)
	go w.cutBlockedWrite(ctx, cancel)
	fallback := time.NewTicker(10 * w.s.opt.Poll)
	defer fallback.Stop()
	pause := time.NewTimer(socketPause)
	defer pause.Stop()
	always := make(chan struct{})
	close(always)
	for {
		// After the topics have changed the socket surveys at once, because rings for the new runs
		// may have been missed.
		var now <-chan struct{}
		if w.stale {
			w.listen()
			now = always
		}
		select {
		case <-now:
		case <-w.rung:
		case <-fallback.C: // a ring may have been lost
		case <-gone:
			return
		case <-w.revoked:
			w.conn.Close(websocket.StatusPolicyViolation, "the key is not valid any more")
			return
		case <-w.s.closing:
			w.conn.Close(websocket.StatusServiceRestart, "the server shuts down")
			return
		}
		began := time.Now()
		if !w.sendChanges(ctx) {
			return
		}
		// A survey that takes long is made less often: it uses a sixth of the time at most.
		pause.Reset(max(socketPause, 5*time.Since(began)))
		select {
		case <-pause.C:
		case <-w.revoked:
		case <-w.s.closing:
		}
	}
}

// cutBlockedWrite waits until the socket has to end, and cuts it if it has not ended shortly after:
// it is then blocked in a write.
func (w *socket) cutBlockedWrite(ctx context.Context, cut func()) {
	select {
	case <-w.revoked:
	case <-w.s.closing:
	case <-ctx.Done():
		return
	}
	t := time.NewTimer(stream.CheckEvery)
	defer t.Stop()
	select {
	case <-t.C:
		cut()
	case <-ctx.Done():
	}
}

// ping pings the client at an interval, and ends the socket if it does not answer.
func (w *socket) ping(ctx context.Context, end func()) {
	defer end()
	t := time.NewTicker(pingEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		answer, cancel := context.WithTimeout(ctx, w.s.opt.StreamWriteTimeout)
		err := w.conn.Ping(answer)
		cancel()
		if err != nil {
			return
		}
	}
}

// write sends a message. It returns false if that failed.
func (w *socket) write(ctx context.Context, v any) bool {
	b, err := stream.Encode(v)
	if err != nil {
		w.s.log.Error("a message can't be written", "error", err)
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, w.s.opt.StreamWriteTimeout)
	defer cancel()
	return w.conn.Write(ctx, websocket.MessageText, b) == nil
}

// sendChanges surveys the store and sends the differences. It returns false if the socket has
// ended. If the store can't be read, the next survey finds the changes.
func (w *socket) sendChanges(ctx context.Context) bool {
	select {
	case w.s.socketReads <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	now := w.s.engine.Now()
	seen, err := w.survey(ctx, now)
	var changes []*api.Change
	for i := range seen.Runs {
		if c := w.change(&seen.Runs[i], seen.Logs[seen.Runs[i].ID]); c != nil {
			changes = append(changes, c)
		}
	}
	<-w.s.socketReads
	if err != nil {
		return ctx.Err() == nil
	}
	w.surveyed = now
	for i := range seen.Runs {
		w.watch(&seen.Runs[i], w.matches(&seen.Runs[i]))
	}
	for _, c := range changes {
		if stream.Closed(w.revoked) || stream.Closed(w.s.closing) {
			return true // serve ends the socket
		}
		if !w.write(ctx, c) {
			return false
		}
	}
	w.prune()
	return true
}

// survey reads the runs that are new or have changed, with the lines that are to be sent.
func (w *socket) survey(ctx context.Context, now perdure.Instant) (*engine.Survey, error) {
	// over tells whether a run that is not watched ended so long ago that it need not be.
	over := func(r *perdure.Run) bool {
		return !w.watches(r.ID) && r.State.Terminal() && now.Sub(r.FinishedAt) > lingering
	}
	s := &engine.Survey{Tenant: w.tenant, Fresh: w.base(), Known: w.ids(), Knows: w.watches,
		Lines: changeLines, Bytes: changeBytes, AllBytes: surveyBytes}
	s.Fresh.After = max(w.floor, perdure.RunID(perdure.FirstID(w.surveyed.Add(-lingering))))
	s.Changed = func(h *engine.Head) bool {
		x := w.watched[h.ID]
		return x.seq != h.Seq || x.status != statusOf(perdure.StatusOf(h.State, h.DeferredAt))
	}
	s.Wants = func(r *perdure.Run) int64 {
		known := w.watched[r.ID]
		if !w.lines || r.Seq == known.seq || over(r) || !w.matches(r) && !known.matches {
			return -1
		}
		// A run that did not match before, or was not surveyed for long, gets its last lines only.
		return max(known.seq, r.Seq-changeLines)
	}
	err := w.s.engine.Survey(ctx, s)
	s.Runs = slices.DeleteFunc(s.Runs, func(r perdure.Run) bool { return over(&r) })
	return s, err
}

// change returns the change of a run, or nil if the run neither matches nor did.
func (w *socket) change(r *perdure.Run, log []perdure.Line) *api.Change {
	matches := w.matches(r)
	if !matches && !w.watched[r.ID].matches {
		return nil
	}
	c := &api.Change{Type: api.SocketChange, RunID: r.ID, Seq: r.Seq, Left: !matches,
		Run: w.s.show(&engine.Detail{Run: *r}, w.s.engine.Now())}
	for i := range log {
		c.Events = append(c.Events, stream.Event(&log[i]))
	}
	return c
}

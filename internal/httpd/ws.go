package httpd

import (
	"cmp"
	"context"
	"encoding/base64"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/coder/websocket"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/doorbell"
	"github.com/perdure/perdure/internal/engine"
	"github.com/perdure/perdure/internal/httpd/stream"
)

const (
	// maxWatched is how many runs one socket watches: the newest ones. Whoever has more looks at lists for the rest.
	maxWatched = 1000
	// socketPause is the least time between two looks of a socket. What happens meanwhile is told together.
	socketPause = 100 * time.Millisecond
	// lateness is how long after its end a run is watched, for the lines that may follow, and how far a look for
	// new runs goes back: one may have been committed after a newer one.
	lateness = 10 * time.Second
	// changeLines and changeBytes bound the lines that come with a change.
	changeLines = 100
	changeBytes = 64 << 10
	lookBytes   = 1 << 20 // and these the lines of one look at all runs together
	// socketsAtOnce is how many sockets look at the same time: they leave readers to others.
	socketsAtOnce = 2

	pingEvery   = 15 * time.Second
	maxIncoming = 4 << 10
)

// openSocket tells of many runs: a snapshot of those that match, then changes. It is told by the doorbell that there
// may be something, and reads the store; there is no other truth, and no cursor over all runs. While its reader
// is slow nothing more is read for it: the next look finds what has become of it all.
func openSocket(c *call) error {
	f, err := c.runFilter(200)
	if err != nil {
		return err
	}
	lines := true
	switch c.URL.Query().Get("events") {
	case "", "true":
	case "false":
		lines = false
	default:
		return perdure.Invalid("events", "takes true or false")
	}
	if err := c.checkUpgrade(); err != nil {
		return err
	}
	leave, err := c.seat(stream.Socket)
	if err != nil {
		return err
	}
	valid, forget := c.s.keyring.watch(c.key.ID)
	w := &socket{s: c.s, tenant: c.tenant(), filter: f, lines: lines, revoked: valid.Done(), watched: make(map[perdure.RunID]watched)}
	close := func() {
		w.deafen()
		forget()
		leave()
	}
	w.listen() // before it looks
	var first *api.Snapshot
	if err = c.valid(); err == nil {
		first, err = w.snapshot(c.Context())
	}
	if err != nil {
		close()
		return err
	}
	if w.conn, err = websocket.Accept(c.w, c.Request, &websocket.AcceptOptions{InsecureSkipVerify: true}); err != nil { // the origin was checked
		close()
		return nil // it has answered
	}
	w.conn.SetReadLimit(maxIncoming)
	if !c.s.detach(func() {
		defer close()
		w.serve(first)
	}) {
		close()
		w.conn.Close(websocket.StatusServiceRestart, "the server shuts down")
	}
	return nil
}

// checkUpgrade holds off requests that are no WebSocket, and pages of origins that nobody has named: a browser lets
// any page open a socket to any server.
func (c *call) checkUpgrade() error {
	if origin := c.Header.Get("Origin"); origin != "" && !sameOrigin(origin, c.Request) && !c.s.namedOrigin(origin) {
		return perdure.Errorf(api.CodeOrigin, "add the page's origin to the server's origins")
	}
	has := func(name, token string) bool {
		return slices.ContainsFunc(strings.Split(strings.Join(c.Header.Values(name), ","), ","), func(v string) bool { return strings.EqualFold(strings.TrimSpace(v), token) })
	}
	_, own := c.w.(http.Hijacker)
	nonce, err := base64.StdEncoding.DecodeString(strings.TrimSpace(c.Header.Get("Sec-WebSocket-Key")))
	shaken := err == nil && len(nonce) == 16 && len(c.Header.Values("Sec-WebSocket-Key")) == 1
	if !own || !c.ProtoAtLeast(1, 1) || !has("Connection", "Upgrade") || !has("Upgrade", "websocket") || c.Header.Get("Sec-WebSocket-Version") != "13" || !shaken {
		c.w.Header().Set("Upgrade", "websocket")
		c.w.Header().Set("Sec-WebSocket-Version", "13")
		return perdure.Errorf(api.CodeUpgrade, "open this path as a WebSocket, version 13")
	}
	return nil
}

// A socket is one that is open, and what it was told.
type socket struct {
	s       *Server
	conn    *websocket.Conn
	tenant  perdure.TenantID
	filter  engine.RunFilter
	lines   bool
	revoked <-chan struct{}

	watched map[perdure.RunID]watched
	looked  perdure.Instant // when
	floor   perdure.RunID   // runs up to this one were given up: there were too many

	rung  <-chan struct{}
	stop  func()
	stale bool // other runs are watched than are listened for
}

// What a socket knows of a run. There may be a thousand of these for each socket, so that they are small and hold
// nothing of the row.
type watched struct {
	seq     int64
	ended   perdure.Instant // when
	status  status
	matches bool // it was told of, as one that matches
}

// A status is a run's status as a number.
type status uint8

// statuses are the names of these. One that is not among them counts as the last.
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
	w.deafen()
	topics := make([]doorbell.Topic, 0, len(w.watched)+1)
	topics = append(topics, doorbell.Run(w.tenant, engine.AnyRun))
	for id := range w.watched {
		topics = append(topics, doorbell.Run(w.tenant, string(id)))
	}
	w.rung, w.stop = w.s.bell.Listen(topics...)
	w.stale = false
}

func (w *socket) deafen() {
	if w.stop != nil {
		w.stop()
	}
}

// base chooses the runs that match or may come to.
func (w *socket) base() engine.RunFilter {
	f := w.filter
	f.Status, f.State, f.Limit = "", "", maxWatched
	return f
}

func (w *socket) matches(r *perdure.Run) bool {
	return (w.filter.Status == "" || w.filter.Status == r.Status()) && (w.filter.State == "" || w.filter.State == r.State)
}

// snapshot reads what matches, and begins to watch.
func (w *socket) snapshot(ctx context.Context) (*api.Snapshot, error) {
	out := &api.Snapshot{Type: api.SocketSnapshot, Runs: []api.Run{}}
	w.looked = w.s.engine.Now()
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
		out.Runs = append(out.Runs, *w.s.show(&engine.Detail{Run: list[i]}, w.looked))
		w.watch(&list[i], true)
	}
	list, w.floor = pages[1].Runs, pages[1].Next // older ones are not watched: there are too many
	for i := range list {
		if _, ok := w.watched[list[i].ID]; !ok {
			w.watch(&list[i], w.matches(&list[i]))
		}
	}
	w.prune()
	return out, nil
}

// watch notes what a run is known to be.
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

// prune stops watching runs that ended a while ago, and the oldest if there are too many: first of those that only may
// come to match, so that a backlog does not hide what was asked for.
func (w *socket) prune() {
	now := w.s.engine.Now()
	for id, x := range w.watched {
		if x.ended != 0 && now.Sub(x.ended) > lateness {
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

// serve tells the snapshot and then changes, until the other side is gone or one of us has to end it.
func (w *socket) serve(first *api.Snapshot) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer w.conn.CloseNow()
	gone := make(chan struct{})
	go func() { // what the other side says is of no interest; that it answers pings is
		defer close(gone)
		for {
			if _, _, err := w.conn.Read(ctx); err != nil {
				return
			}
		}
	}()
	if !w.tell(ctx, first) {
		return
	}
	first = nil
	go w.ping(ctx, cancel)
	go w.end(ctx, cancel)
	look := time.NewTicker(10 * w.s.opt.Poll)
	defer look.Stop()
	breath := time.NewTimer(socketPause)
	defer breath.Stop()
	at := make(chan struct{})
	close(at)
	for {
		var once <-chan struct{}
		if w.stale {
			w.listen()
			once = at // after listening, so that nothing is missed; and again, if that finds more to listen for
		}
		select {
		case <-once:
		case <-w.rung:
		case <-look.C: // a ring may have been lost
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
		if !w.look(ctx) {
			return
		}
		// What takes long is not done often.
		breath.Reset(max(socketPause, 5*time.Since(began)))
		select {
		case <-breath.C:
		case <-w.revoked:
		case <-w.s.closing:
		}
	}
}

// end ends a socket that is stuck in a write when it has to end.
func (w *socket) end(ctx context.Context, cut func()) {
	select {
	case <-w.revoked:
	case <-w.s.closing:
	case <-ctx.Done():
		return
	}
	t := time.NewTimer(stream.Glance)
	defer t.Stop()
	select {
	case <-t.C:
		cut()
	case <-ctx.Done():
	}
}

// ping sees whether the other side answers, and ends everything if it does not.
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
		answer, cancel := context.WithTimeout(ctx, w.s.opt.Patience)
		err := w.conn.Ping(answer)
		cancel()
		if err != nil {
			return
		}
	}
}

func (w *socket) tell(ctx context.Context, v any) bool {
	b, err := stream.Encode(v)
	if err != nil {
		w.s.log.Error("a message can't be written", "error", err)
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, w.s.opt.Patience)
	defer cancel()
	return w.conn.Write(ctx, websocket.MessageText, b) == nil
}

// look tells what has changed. A store that can't be read now is read later.
func (w *socket) look(ctx context.Context) bool {
	select {
	case w.s.looking <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	now := w.s.engine.Now()
	seen, err := w.moved(ctx, now)
	var changes []*api.Change
	for i := range seen.Runs {
		if c := w.change(&seen.Runs[i], seen.Logs[seen.Runs[i].ID]); c != nil {
			changes = append(changes, c)
		}
	}
	<-w.s.looking
	if err != nil {
		return ctx.Err() == nil
	}
	w.looked = now
	for i := range seen.Runs {
		w.watch(&seen.Runs[i], w.matches(&seen.Runs[i]))
	}
	for _, c := range changes {
		if stream.Closed(w.revoked) || stream.Closed(w.s.closing) {
			return true // whoever goes on with this socket ends it
		}
		if !w.tell(ctx, c) {
			return false
		}
	}
	w.prune()
	return true
}

// moved finds the runs that are new, and those that have changed, with their lines as far as these
// are told.
func (w *socket) moved(ctx context.Context, now perdure.Instant) (*engine.Survey, error) {
	// long tells whether a run that is not watched ended so long ago that it need not be.
	long := func(r *perdure.Run) bool {
		return !w.watches(r.ID) && r.State.Terminal() && now.Sub(r.FinishedAt) > lateness
	}
	s := &engine.Survey{Tenant: w.tenant, Fresh: w.base(), Known: w.ids(), Knows: w.watches,
		Lines: changeLines, Bytes: changeBytes, AllBytes: lookBytes}
	s.Fresh.After = max(w.floor, perdure.RunID(perdure.FirstID(w.looked.Add(-lateness))))
	s.Changed = func(h *engine.Head) bool {
		x := w.watched[h.ID]
		return x.seq != h.Seq || x.status != statusOf(perdure.StatusOf(h.State, h.DeferredAt))
	}
	s.Wants = func(r *perdure.Run) int64 {
		told := w.watched[r.ID]
		if !w.lines || r.Seq == told.seq || long(r) || !w.matches(r) && !told.matches {
			return -1
		}
		// Of a run that did not match until now, and of one that was left alone for long, the last
		// lines.
		return max(told.seq, r.Seq-changeLines)
	}
	err := w.s.engine.Survey(ctx, s)
	s.Runs = slices.DeleteFunc(s.Runs, func(r perdure.Run) bool { return long(&r) })
	return s, err
}

// change is what is told of a run, or nil if it is no business of this socket's.
func (w *socket) change(r *perdure.Run, log []perdure.Line) *api.Change {
	matches := w.matches(r)
	if !matches && !w.watched[r.ID].matches {
		return nil
	}
	c := &api.Change{Type: api.SocketChange, RunID: r.ID, Seq: r.Seq, Left: !matches, Run: w.s.show(&engine.Detail{Run: *r}, w.s.engine.Now())}
	for i := range log {
		c.Events = append(c.Events, stream.Event(&log[i]))
	}
	return c
}

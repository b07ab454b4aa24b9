package feed

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/reads"
	"github.com/perdure/perdure/internal/server/httpd/stream"
)

// Runs compares runs with what the clients of a question know: a page of a list, or runs by their
// ids.
//
// It keeps a small entry for each run of the page. A look reads the heads of the page, and then the
// rows and lines of the runs that differ from their entries. A run that was on the page and is not
// any more has gone: it was deleted, it no longer matches, or newer runs have displaced it. Clients
// are told which. The last line of a run that has gone is remembered for a while, so that the lines
// that it gets meanwhile are sent if it comes back.

const (
	// MaxShown bounds the runs of a page that a client watches, MaxIDs those by id, and MaxTree those
	// of one tree, which are shown together.
	MaxShown = 200
	MaxIDs   = 200
	MaxTree  = 1000
	// MaxPlain bounds the runs that a socket with a filter in its address watches.
	MaxPlain = 1000

	// ChangeLines and ChangeBytes bound the lines of one change, and LookBytes those of a look.
	ChangeLines = 100
	ChangeBytes = 64 << 10
	LookBytes   = 1 << 20
	// rowBytes bounds the rows of a look, and PlainBytes those of a socket with a filter.
	rowBytes   = 1 << 20
	PlainBytes = 8 << 20
	// maxRemembered bounds the runs that have gone and whose last line is remembered.
	maxRemembered = 1000
	// seenStep is the least progress of a run's last sign of life that is sent without a line.
	seenStep = 5 * time.Second
	// lookTime bounds the search for the runs of a page where the store is very slow. Usually the
	// number of rows bounds it.
	lookTime = 2 * time.Second
)

// Runs is the Looker of runs.
type Runs struct {
	Engine *engine.Engine
	// Show returns a run as the API shows it.
	Show   func(r *perdure.Run, now perdure.Instant) *api.Run
	Tenant perdure.TenantID
	// Page selects the runs, unless IDs does.
	Page reads.RunFilter
	IDs  []perdure.RunID
	// First is the number of runs in a snapshot.
	First int
	// Lines asks for the lines of changed runs.
	Lines bool
	// Plain is set for a socket with a filter in its address: it gets a run that has gone as a change
	// with the field left.
	Plain bool

	known map[perdure.RunID]known
	gone  map[perdure.RunID]int64
	// order has the runs of gone, oldest first.
	order []perdure.RunID
}

// A known is what clients know of a run. There is one for each run of a page, so it is small.
type known struct {
	tenant perdure.TenantID
	seq    int64
	seen   perdure.Instant
	status status
	// told is set if the row was sent.
	told bool
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

// Look implements Looker.
func (l *Runs) Look(ctx context.Context, snapshot bool) (news, whole *Message, more bool, err error) {
	first := l.known == nil
	s, err := l.survey(ctx, snapshot || first, first)
	if err != nil {
		return nil, nil, false, err
	}
	now := l.Engine.Now()
	if first {
		l.known, l.gone = make(map[perdure.RunID]known, len(s.Selected)), make(map[perdure.RunID]int64)
		for i := range s.Selected {
			l.learn(&s.Selected[i], i < l.First)
		}
		return nil, l.snapshot(s, now), false, nil
	}
	if news, err = l.changes(s, now); err == nil && snapshot {
		whole = l.snapshot(s, now)
	}
	return news, whole, s.Cut, err
}

// survey reads what has changed on the page; with whole also the rows of a snapshot, and on the
// first look only these.
func (l *Runs) survey(ctx context.Context, whole, first bool) (*reads.Survey, error) {
	began := time.Now()
	s := &reads.Survey{Tenant: l.Tenant, Page: l.Page, IDs: l.IDs, RowBytes: rowBytes,
		Lines: ChangeLines, Bytes: ChangeBytes, AllBytes: LookBytes}
	if l.Plain {
		s.RowBytes = PlainBytes
	}
	s.Page.Over = func() bool { return ctx.Err() != nil || time.Since(began) > lookTime }
	s.Changed = func(r *perdure.Run) bool { return !first && l.changed(r) }
	s.Wants = func(r *perdure.Run) int64 {
		from := l.known[r.ID].seq
		if from == 0 {
			from = l.gone[r.ID]
		}
		if !l.Lines || first || r.Seq == from {
			return -1
		}
		// A run that is new here, or has many new lines, gets its last lines only.
		return max(from, r.Seq-ChangeLines)
	}
	if whole {
		s.Whole = l.First
	}
	s.Known = make([]kernel.Ref, 0, len(l.known))
	for id, x := range l.known {
		s.Known = append(s.Known, kernel.Ref{Tenant: x.tenant, Run: id})
	}
	return s, l.Engine.Survey(ctx, s)
}

// changed tells whether a run differs from what clients know.
func (l *Runs) changed(r *perdure.Run) bool {
	x, ok := l.known[r.ID]
	return !ok || x.seq != r.Seq || x.status != statusOf(perdure.StatusOf(r.State, r.DeferredAt)) ||
		!l.Plain && r.SeenAt.Sub(x.seen) >= seenStep
}

// learn records what clients know of a run.
func (l *Runs) learn(r *perdure.Run, told bool) {
	l.known[r.ID] = known{tenant: r.Tenant, seq: r.Seq, seen: r.SeenAt,
		status: statusOf(perdure.StatusOf(r.State, r.DeferredAt)), told: told || l.known[r.ID].told}
}

// forget records that a run has gone.
func (l *Runs) forget(id perdure.RunID, keep bool) {
	seq := l.known[id].seq
	delete(l.known, id)
	if !keep || !l.Lines {
		return
	}
	if _, ok := l.gone[id]; !ok {
		l.order = append(l.order, id)
	}
	l.gone[id] = seq
	for len(l.order) > maxRemembered {
		delete(l.gone, l.order[0])
		l.order = l.order[1:]
	}
}

// changes makes the message of what has changed, and learns it.
func (l *Runs) changes(s *reads.Survey, now perdure.Instant) (*Message, error) {
	m := &Message{kind: api.SocketChange}
	for i := range slices.Backward(s.Runs) { // oldest first
		r := &s.Runs[i]
		if !l.changed(r) {
			continue
		}
		c := api.Change{RunID: r.ID, Seq: r.Seq, Run: l.show(r, now)}
		for k := range s.Logs[r.ID] {
			c.Events = append(c.Events, stream.Event(&s.Logs[r.ID][k]))
		}
		if err := m.encode(api.SocketChange, &c); err != nil {
			return nil, err
		}
		l.learn(r, true)
		if _, ok := l.gone[r.ID]; ok {
			delete(l.gone, r.ID)
			l.order = slices.DeleteFunc(l.order, func(id perdure.RunID) bool { return id == r.ID })
		}
	}
	if err := l.departures(m, s, now); err != nil {
		return nil, err
	}
	if len(m.entries) == 0 {
		return nil, nil
	}
	return m, nil
}

// departures adds the runs that are no longer on the page.
func (l *Runs) departures(m *Message, s *reads.Survey, now perdure.Instant) error {
	selected := make(map[perdure.RunID]bool, len(s.Selected))
	for i := range s.Selected {
		selected[s.Selected[i].ID] = true
	}
	left := make(map[perdure.RunID]*perdure.Run, len(s.Left))
	for i := range s.Left {
		left[s.Left[i].ID] = &s.Left[i]
	}
	for _, ref := range s.Known {
		if selected[ref.Run] {
			continue
		}
		r, told := left[ref.Run], l.known[ref.Run].told
		if r != nil && l.unexamined(s, r) {
			if err := l.keep(m, r, now); err != nil {
				return err
			}
			continue
		}
		why := api.GoneDeleted
		switch {
		case r == nil && s.Cut:
			continue // it was not read
		case r != nil && l.Page.Matches(r):
			why = api.GoneUnwatched
		case r != nil:
			why = api.GoneMismatch
		}
		l.forget(ref.Run, r != nil)
		if !told {
			continue
		}
		if err := l.departure(m, ref.Run, r, why, now); err != nil {
			return err
		}
	}
	return nil
}

// unexamined tells whether a run is missing on the page only because the search for its rows ended
// early: its time was over, or too few of the runs match. Such runs stay watched, within bounds.
func (l *Runs) unexamined(s *reads.Survey, r *perdure.Run) bool {
	return l.IDs == nil && len(s.Selected) < l.Page.Limit && r.ID < s.Next && l.Page.Matches(r) &&
		len(l.known) <= 2*l.Page.Limit
}

// keep adds the change of a run that was not examined. Its lines were not read: the client sees by
// their numbers that some are missing.
func (l *Runs) keep(m *Message, r *perdure.Run, now perdure.Instant) error {
	if !l.changed(r) {
		return nil
	}
	l.learn(r, true)
	return m.encode(api.SocketChange, &api.Change{RunID: r.ID, Seq: r.Seq, Run: l.show(r, now)})
}

// departure adds a run that is no longer on the page.
func (l *Runs) departure(m *Message, id perdure.RunID, r *perdure.Run, why string, now perdure.Instant) error {
	if !l.Plain {
		return m.encode(api.SocketGone, &api.Gone{RunID: id, Why: why})
	}
	c := api.Change{RunID: id, Left: true, Why: why}
	if r != nil {
		c.Seq, c.Run = r.Seq, l.show(r, now)
	}
	return m.encode(api.SocketChange, &c)
}

// show returns a run as the API shows it. In a view over all tenants it names its tenant.
func (l *Runs) show(r *perdure.Run, now perdure.Instant) *api.Run {
	out := l.Show(r, now)
	if l.Tenant == kernel.AllTenants {
		out.Tenant = r.Tenant
	}
	return out
}

// snapshot makes the message of a page.
func (l *Runs) snapshot(s *reads.Survey, now perdure.Instant) *Message {
	out := api.Snapshot{Runs: make([]api.Run, 0, len(s.Runs)),
		Truncated: s.Cut || s.Next != "" || len(s.Selected) > l.First}
	for i := range s.Runs[:min(l.First, len(s.Runs))] {
		out.Runs = append(out.Runs, *l.show(&s.Runs[i], now))
	}
	if n := len(out.Runs); !l.Plain {
		out.NextCursor = s.Next
		if n > 0 && n < len(s.Selected) {
			out.NextCursor = out.Runs[n-1].RunID
		} else if s.Short {
			at := perdure.IDTime(string(s.Next))
			out.SearchedTo = &at
		}
	}
	m := &Message{kind: api.SocketSnapshot}
	if err := m.encode(api.SocketSnapshot, &out); err != nil {
		return nil
	}
	return m
}

// encode adds an entry. The field type of the object is left empty, and so left out.
func (m *Message) encode(kind string, object any) error {
	b, err := stream.Encode(object)
	if err != nil {
		return err
	}
	m.add(kind, b)
	return nil
}

// Missed makes a message with the lines after a cursor of each run, or nil if there are none. It is
// for one client, and bounded as the lines of a look are. If l watches a tree, runs of others are left
// out.
func Missed(ctx context.Context, l *Runs, after map[perdure.RunID]int64) (*Message, error) {
	l.Lines = true
	s := &reads.Survey{Tenant: l.Tenant, RowBytes: rowBytes, Lines: ChangeLines, Bytes: ChangeBytes,
		AllBytes: LookBytes, IDs: slices.Collect(maps.Keys(after)),
		Changed: func(r *perdure.Run) bool { return r.Seq > after[r.ID] },
		Wants:   func(r *perdure.Run) int64 { return max(after[r.ID], r.Seq-ChangeLines) }}
	if err := l.Engine.Survey(ctx, s); err != nil {
		return nil, err
	}
	s.Runs = slices.DeleteFunc(s.Runs, func(r perdure.Run) bool {
		return l.Page.RootID != "" && r.RootID != l.Page.RootID
	})
	l.known = make(map[perdure.RunID]known)
	return l.changes(s, l.Engine.Now())
}

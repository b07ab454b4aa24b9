package reads

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/store"
)

// A Detail is a run with its values in full.
type Detail struct {
	perdure.Run
	InputText  perdure.Value
	ResultText perdure.Value
	// WaitingFor says why it waits, if it was read while it was queued.
	WaitingFor *perdure.WaitingFor
}

// Get reads a run.
func (q Runs) Get(ctx context.Context, t perdure.TenantID, id perdure.RunID) (d Detail, err error) {
	err = q.e.Store().View(ctx, func(v *store.View) error {
		r, ok, err := v.Runs.Get(t, id)
		if err != nil {
			return err
		}
		if !ok {
			return kernel.NotFound("run")
		}
		d.Run = r
		if d.InputText, err = v.Values.Resolve(t, r.Input); err != nil {
			return err
		}
		if d.ResultText, err = v.Values.Resolve(t, r.Result); err != nil {
			return err
		}
		if d.Progress, err = v.Values.Resolve(t, r.Progress); err != nil {
			return err
		}
		d.Fallback = life.ExpandFallback(r.Fallback, r.Progress, d.Progress)
		waits := dispatch.WaitReader{Engine: q.e, DB: &v.Records}
		d.WaitingFor, err = waits.WaitingFor(&r)
		return err
	})
	return d, err
}

// Status reads a run without its values, and when it last changed.
func (q Runs) Status(
	ctx context.Context, t perdure.TenantID, id perdure.RunID,
) (r perdure.Run, changed perdure.Instant, err error) {
	err = q.e.Store().View(ctx, func(v *store.View) (err error) {
		var ok bool
		if r, ok, err = v.Runs.Get(t, id); err != nil {
			return err
		}
		if !ok {
			return kernel.NotFound("run")
		}
		changed, err = v.Runs.ChangedAt(&r)
		return err
	})
	return r, changed, err
}

// Ended gives an ended run, as Get does, if that needs no read of the store.
func (q Runs) Ended(t perdure.TenantID, id perdure.RunID) (d Detail, ok bool) {
	r, ok := q.e.Store().Ended(t, id)
	if !ok {
		return d, false
	}
	for _, v := range []perdure.Value{r.Input, r.Result, r.Progress} {
		if _, _, ref := v.Ref(); ref {
			return d, false
		}
	}
	return Detail{Run: r, InputText: r.Input, ResultText: r.Result}, true
}

// Live tells whether a run was live when this node last wrote it, without reading the store.
func (q Runs) Live(t perdure.TenantID, id perdure.RunID) bool { return q.e.Store().Live(t, id) }

// TenantOf gives the tenant of a run. It tries likely first, and gives it if there is no such run.
func (q Runs) TenantOf(
	ctx context.Context, id perdure.RunID, likely perdure.TenantID,
) (t perdure.TenantID, err error) {
	err = q.e.Store().View(ctx, func(v *store.View) error {
		t, err = v.Runs.TenantOf(id, likely)
		return err
	})
	return t, err
}

// A RunFilter selects runs; see the store's.
type RunFilter = store.RunFilter

// A RunPage is a page of runs; see the store's.
type RunPage struct {
	store.RunPage
	// WaitingFor says of each run why it waits, if it is queued.
	WaitingFor []*perdure.WaitingFor
}

// List reads a page of a tenant's runs, newest first, without its cursor.
func (q Runs) List(ctx context.Context, t perdure.TenantID, f RunFilter) ([]perdure.Run, error) {
	p, err := q.Page(ctx, t, f)
	return p.Runs, err
}

// Page reads a page of a tenant's runs, newest first.
func (q Runs) Page(ctx context.Context, t perdure.TenantID, f RunFilter) (p RunPage, err error) {
	if f.Limit < 1 || f.Limit > 1000 {
		return p, perdure.Invalid("limit", "%d does not lie between 1 and 1000", f.Limit)
	}
	err = q.e.Store().View(ctx, func(v *store.View) error {
		if p.RunPage, err = v.Runs.Page(t, f); err != nil {
			return err
		}
		waits := dispatch.WaitReader{Engine: q.e, DB: &v.Records}
		p.WaitingFor = make([]*perdure.WaitingFor, len(p.Runs))
		for i := range p.Runs {
			if p.WaitingFor[i], err = waits.WaitingFor(&p.Runs[i]); err != nil {
				return err
			}
		}
		return nil
	})
	return p, err
}

// A Head holds the last line number of a run's log and the run's state; see the store's.
type Head = store.Head

// A Look asks for a run's log after a cursor, and holds the answer.
type Look struct {
	Tenant perdure.TenantID
	RunID  perdure.RunID
	After  int64
	// Lines bounds the number of lines. Zero: no lines are read.
	Lines int
	// Bytes bounds the size of the lines: no more are read once it is reached.
	Bytes int
	// Whole asks for the run as well.
	Whole bool

	Found bool
	Head  Head
	// Run is set with Whole.
	Run perdure.Run
	Log []perdure.Line
}

// Ended tells whether the run has ended and the Look has reached the end of its log.
func (l *Look) Ended() bool { return l.Head.State.Terminal() && l.Upto() >= l.Head.Seq }

// Upto gives the number of the last line that was read, or the cursor. If no line after the cursor
// is kept, it is the end of the log.
func (l *Look) Upto() int64 {
	switch n := len(l.Log); {
	case n > 0:
		return l.Log[n-1].Seq
	case l.Lines > 0:
		return max(l.After, l.Head.Seq)
	}
	return l.After
}

// First gives the number of the first kept line after the cursor, or of the next one to come. If it
// is not the cursor's successor, the lines between are no longer kept.
func (l *Look) First() int64 {
	if len(l.Log) > 0 {
		return l.Log[0].Seq
	}
	return l.Upto() + 1
}

// Look reads logs from one snapshot. Lines that the server wrote get the run_id added to their
// data.
func (q Runs) Look(ctx context.Context, looks ...*Look) error {
	return q.e.Store().View(ctx, func(v *store.View) error {
		if err := heads(v, looks); err != nil {
			return err
		}
		for _, l := range looks {
			var err error
			if l.Found && l.Whole {
				if l.Run, l.Found, err = v.Runs.Get(l.Tenant, l.RunID); err != nil {
					return err
				}
			}
			if !l.Found || l.Head.Seq <= l.After || l.Lines == 0 {
				continue
			}
			if l.Log, err = v.Events.Within(l.Tenant, l.RunID, l.After, l.Lines, l.Bytes); err != nil {
				return err
			}
			for i := range l.Log {
				l.Log[i].Data = withRunID(l.Log[i].Type, l.Log[i].Data, l.RunID)
			}
		}
		return nil
	})
}

// heads reads the heads of the logs, with one statement for each tenant.
func heads(v *store.View, looks []*Look) error {
	ids := make(map[perdure.TenantID][]perdure.RunID)
	byRef := make(map[store.Ref]store.Head, len(looks))
	for _, l := range looks {
		ref := store.Ref{Tenant: l.Tenant, Run: l.RunID}
		if _, ok := byRef[ref]; !ok {
			byRef[ref] = store.Head{}
			ids[l.Tenant] = append(ids[l.Tenant], l.RunID)
		}
	}
	for t, list := range ids {
		found, err := v.Runs.Heads(t, list)
		if err != nil {
			return err
		}
		for _, h := range found {
			byRef[store.Ref{Tenant: t, Run: h.ID}] = h
		}
	}
	for _, l := range looks {
		l.Head, l.Log, l.Run = byRef[store.Ref{Tenant: l.Tenant, Run: l.RunID}], nil, perdure.Run{}
		l.Found = l.Head.ID != ""
	}
	return nil
}

// withRunID adds the run's id to the data of a line that the server wrote. It is not stored,
// because every line belongs to one run. A line about another run names that one.
func withRunID(typ perdure.LineType, data perdure.Value, id perdure.RunID) perdure.Value {
	if perdure.WorkerMayWrite(typ) || !strings.HasPrefix(string(data), "{") ||
		strings.HasPrefix(string(data), `{"run_id":`) {
		return data
	}
	rest := string(data[1:])
	if rest != "}" {
		rest = "," + rest
	}
	return perdure.Value(`{"run_id":"` + string(id) + `"` + rest)
}

// A ThreadPart says which messages of its thread a leased run reads. They have numbers after After.
type ThreadPart struct {
	After int64
	// Before is zero for the next messages after After, the oldest first. Otherwise the last messages
	// before that number are read, the newest first.
	Before int64
	Limit  int
}

// backwards bounds the messages of a page that is read from the end. The rows are read whole, and a
// reader mostly wants the last few.
const backwards = 100

// History reads a part of the thread of a leased run, up to the size of a grant. A run without a thread
// has none.
func (q Runs) History(
	ctx context.Context, t perdure.TenantID, id perdure.RunID, epoch int64, p ThreadPart,
) (ms []perdure.ThreadMessage, err error) {
	err = q.e.Store().View(ctx, func(v *store.View) error {
		r, ok, err := v.Runs.Get(t, id)
		switch {
		case err != nil:
			return err
		case !ok:
			return kernel.NotFound("run")
		}
		if err := life.Holds(&r, epoch); err != nil || r.ThreadID == "" {
			return err
		}
		if p.Before > 0 {
			ms, err = v.Threads.MessagesBefore(t, r.ThreadID, p.After, p.Before, min(p.Limit, backwards))
		} else {
			ms, err = v.Threads.Messages(t, r.ThreadID, p.After, p.Limit)
		}
		if err != nil {
			return err
		}
		ms, err = resolveMessages(v, ms, life.GrantMax)
		return err
	})
	return ms, err
}

// resolveMessages replaces references in messages by their values. It cuts the list once the values
// exceed so many bytes, but keeps the first message.
func resolveMessages(v *store.View, ms []perdure.ThreadMessage, bytes int) (_ []perdure.ThreadMessage, err error) {
	for i := range ms {
		m := &ms[i]
		if m.Content, err = v.Values.Resolve(m.Tenant, m.Content); err != nil {
			return nil, err
		}
		if m.Metadata, err = v.Values.Resolve(m.Tenant, m.Metadata); err != nil {
			return nil, err
		}
		if err := withResult(v, m); err != nil {
			return nil, err
		}
		if bytes -= len(m.Content) + len(m.Metadata); bytes < 0 && i > 0 {
			return ms[:i], nil
		}
	}
	return ms, nil
}

// withResult replaces the reference of a result in a message by its value. A value that can't be
// read stays a reference.
func withResult(v *store.View, m *perdure.ThreadMessage) error {
	if m.Role != perdure.RoleTool || !strings.Contains(string(m.Metadata), `"`+life.ResultRef+`":`) {
		return nil
	}
	var meta struct {
		Result json.RawMessage `json:"result_ref"`
	}
	var ref struct {
		Ref  string `json:"ref"`
		Size int    `json:"size"`
	}
	if json.Unmarshal([]byte(m.Metadata), &meta) != nil || json.Unmarshal(meta.Result, &ref) != nil {
		return nil
	}
	hash, ok := strings.CutPrefix(ref.Ref, "sha256:")
	if !ok {
		return nil
	}
	text, err := v.Values.Resolve(m.Tenant, perdure.RefValue(hash, ref.Size))
	var missing *perdure.Error
	if errors.As(err, &missing) {
		return nil
	}
	// The server wrote the content, so the reference is in it exactly as in the metadata.
	m.Content = perdure.Value(strings.Replace(string(m.Content), `"result":`+string(meta.Result),
		`"result":`+string(text), 1))
	return err
}

// threadMax bounds the bytes of a thread's messages in one read.
const threadMax = 4 << 20

// Get reads a thread and its messages after a cursor: at most limit, and fewer if they are large.
func (q Threads) Get(
	ctx context.Context, t perdure.TenantID, id perdure.ThreadID, after int64, limit int,
) (th perdure.Thread, ms []perdure.ThreadMessage, err error) {
	if limit < 1 || limit > 1000 {
		return th, nil, perdure.Invalid("limit", "%d does not lie between 1 and 1000", limit)
	}
	err = q.e.Store().View(ctx, func(v *store.View) error {
		var ok bool
		if th, ok, err = v.Threads.Get(t, id); err != nil {
			return err
		}
		if !ok {
			return kernel.NotFound("thread")
		}
		if ms, err = v.Threads.Messages(t, id, after, limit); err != nil {
			return err
		}
		if th.Metadata, err = v.Values.Resolve(t, th.Metadata); err != nil {
			return err
		}
		ms, err = resolveMessages(v, ms, threadMax)
		return err
	})
	return th, ms, err
}

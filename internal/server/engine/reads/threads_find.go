package reads

import (
	"encoding/json"
	"errors"
	"slices"
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// A search among threads reads them in the order of their last activity, some at a time, and keeps those
// that match. No index has what they are searched by. So a page ends after so many threads, or when its
// time is over, and its cursor is where the search goes on.

// Bounds of a page of a search among threads.
const (
	threadsAtOnce = 100
	threadsLooked = 5000
)

// A ThreadFilter selects threads. Empty fields select all.
type ThreadFilter struct {
	// WithoutChildren leaves out threads that were created for children.
	WithoutChildren bool
	// Metadata selects threads whose metadata has these strings, or numbers and booleans that are written so.
	Metadata map[string]string
	Status   perdure.ThreadStatus
	// Over tells that the time for a page is over; nil: there is no limit.
	Over func() bool
}

// selects tells whether the filter has to look at each thread.
func (f *ThreadFilter) selects() bool { return len(f.Metadata) > 0 || f.Status != "" }

// A threadSearch reads threads with their status, within one snapshot.
type threadSearch struct {
	v *store.View
	t perdure.TenantID
	// trees has the roots of trees that ask a person, once read.
	trees map[perdure.RunID]bool
}

// find reads a page of the threads that match.
func (x *threadSearch) find(p kernel.Page, f *ThreadFilter) (out []ListedThread, next string, err error) {
	bytes := store.PageBytes
	for after, looked := p.After, 0; ; {
		rows, err := x.v.Threads.Scan(x.t, after, threadsAtOnce)
		if err != nil || len(rows) == 0 {
			return out, "", err
		}
		end := store.ThreadCursor(&rows[len(rows)-1])
		full := len(rows) == threadsAtOnce
		looked += len(rows)
		if f.WithoutChildren {
			rows = slices.DeleteFunc(rows, func(th perdure.Thread) bool { return th.Parent != "" })
		}
		if rows, err = x.withMetadata(rows, f.Metadata, &bytes); err != nil {
			return nil, "", err
		}
		list, err := x.withStatus(rows)
		if err != nil {
			return nil, "", err
		}
		for i := range list {
			th := &list[i]
			if f.Status != "" && th.Status != f.Status {
				continue
			}
			if th.Title == "" {
				if err := x.v.Threads.FindTitle(&th.Thread); err != nil {
					return nil, "", err
				}
			}
			if out = append(out, *th); len(out) == p.Limit {
				return out, store.ThreadCursor(&th.Thread), nil
			}
		}
		if !full {
			return out, "", nil
		}
		if after = end; looked >= threadsLooked || bytes < 0 || f.Over != nil && f.Over() {
			return out, after, nil
		}
	}
}

// withMetadata keeps the threads whose metadata has these entries. bytes goes down by what was read.
func (x *threadSearch) withMetadata(
	rows []perdure.Thread, want map[string]string, bytes *int,
) (out []perdure.Thread, err error) {
	if len(want) == 0 {
		return rows, nil
	}
	values, err := x.v.Threads.Metadata(x.t, threadIDs(rows))
	if err != nil {
		return nil, err
	}
	for _, th := range rows {
		text, err := x.v.Values.Resolve(x.t, values[th.ID])
		if damaged := new(perdure.Error); errors.As(err, &damaged) {
			continue // what can't be read is found by its id
		}
		if err != nil {
			return nil, err
		}
		if *bytes -= len(text); hasEntries(text, want) {
			out = append(out, th)
		}
	}
	return out, nil
}

// hasEntries tells whether metadata has these scalars.
func hasEntries(metadata perdure.Value, want map[string]string) bool {
	var have map[string]json.RawMessage
	if json.Unmarshal([]byte(metadata), &have) != nil {
		return false
	}
	for name, text := range want {
		if !isScalar(have[name], text) {
			return false
		}
	}
	return true
}

// isScalar tells whether a value is a string, or a number or boolean that a text stands for.
func isScalar(raw json.RawMessage, text string) bool {
	if len(raw) == 0 || raw[0] == '{' || raw[0] == '[' || raw[0] == 'n' {
		return false
	}
	if raw[0] == '"' {
		var s string
		return json.Unmarshal(raw, &s) == nil && s == text
	}
	if string(raw) == text {
		return true
	}
	a, errA := strconv.ParseFloat(string(raw), 64)
	b, errB := strconv.ParseFloat(text, 64)
	return errA == nil && errB == nil && a == b
}

func threadIDs(rows []perdure.Thread) []perdure.ThreadID {
	out := make([]perdure.ThreadID, len(rows))
	for i := range rows {
		out[i] = rows[i].ID
	}
	return out
}

// withStatus adds the active runs of some threads, and what is going on there.
func (x *threadSearch) withStatus(rows []perdure.Thread) ([]ListedThread, error) {
	var active, suspended []perdure.RunID
	var still []perdure.ThreadID
	for i := range rows {
		if rows[i].Active != "" {
			active = append(active, rows[i].Active)
		}
	}
	live, err := x.v.Runs.Live(x.t, active)
	if err != nil {
		return nil, err
	}
	for i := range rows {
		if r, ok := live[rows[i].Active]; !ok {
			still = append(still, rows[i].ID)
		} else if r.State == perdure.Suspended {
			suspended = append(suspended, r.ID)
		}
	}
	newest, err := x.v.Threads.NewestStates(x.t, still)
	if err != nil {
		return nil, err
	}
	asking, err := x.v.Waits.Asking(x.t, suspended)
	if err != nil {
		return nil, err
	}
	out := make([]ListedThread, 0, len(rows))
	for _, th := range rows {
		one := ListedThread{Thread: th, Status: perdure.ThreadIdle}
		if r, ok := live[th.Active]; ok {
			one.Live, one.Status = &r, perdure.ThreadBusy
			asks := asking[r.ID]
			if !asks && r.State == perdure.Suspended {
				if asks, err = x.asksBelow(&th, &r); err != nil {
					return nil, err
				}
			}
			if asks {
				one.Status = perdure.ThreadWaiting
			}
		} else if s := newest[th.ID]; s == perdure.Failed || s == perdure.TimedOut {
			one.Status = perdure.ThreadError
		}
		out = append(out, one)
	}
	return out, nil
}

// asksBelow tells whether a run below the active run of a thread asks a person. The tree of a continuation
// has its root on the same thread.
func (x *threadSearch) asksBelow(th *perdure.Thread, r *store.LiveRun) (_ bool, err error) {
	if x.trees == nil {
		if x.trees, err = x.v.Approvals.AskingTrees(x.t); err != nil {
			return false, err
		}
	}
	if !x.trees[r.Root] || r.Root == r.ID {
		return x.trees[r.Root], nil
	}
	root, ok, err := x.v.Runs.Get(x.t, r.Root)
	return ok && root.ThreadID == th.ID, err
}

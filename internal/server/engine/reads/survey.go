package reads

import (
	"cmp"
	"context"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// A Survey compares runs with what a watcher knows of them. It selects the runs by a page of a list
// or by their ids, reads their heads, and then the rows and lines of those that have changed.
type Survey struct {
	// Tenant is the owner of the runs. AllTenants selects the runs of all tenants.
	Tenant perdure.TenantID
	// Page selects the runs, unless IDs does.
	Page RunFilter
	// IDs are the runs to look at. If it is not nil, Page is not read.
	IDs []perdure.RunID

	// Known are the runs that the watcher knows.
	Known []kernel.Ref
	// Changed tells whether a run differs from what the watcher knows, or is not known to it.
	Changed func(*perdure.Run) bool
	// Whole asks for the rows of so many of the first selected runs, whether or not they have
	// changed.
	Whole int
	// RowBytes bounds the size of the rows. At least one is read.
	RowBytes int
	// Wants gives the line after which a run's log is wanted. Negative: the log is not wanted.
	Wants func(*perdure.Run) (from int64)

	// Lines bounds the lines of a run's log.
	Lines int
	// Bytes bounds the size of a log; a larger one is left out.
	Bytes int
	// AllBytes bounds the size of all logs: no more are read once it is reached.
	AllBytes int

	// Selected are the heads of the selected runs, newest first. Only the fields of a head are set.
	Selected []perdure.Run
	// Next is the cursor behind the page, if there may be more runs.
	Next perdure.RunID
	// Short says that the search for runs ended before the page was full, at Next.
	Short bool
	// Runs are the selected runs that have changed or are among the first Whole, newest first.
	Runs []perdure.Run
	// Cut tells that RowBytes was reached: there are more runs to read.
	Cut bool
	// Left are the known runs that are no longer selected. Runs that do not exist any more are not
	// among them; with Cut, others may be missing too.
	Left []perdure.Run
	// Logs are those that were read up to the run's last line.
	Logs map[perdure.RunID][]perdure.Line
}

// Survey reads the runs and logs from one snapshot.
func ReadSurvey(ctx context.Context, e *kernel.Engine, s *Survey) error {
	return e.Store().View(ctx, func(v *store.View) error {
		if err := s.selectRuns(v); err != nil {
			return err
		}
		var err error
		var changed, left []kernel.Ref
		selected := make(map[perdure.RunID]bool, len(s.Selected))
		for i := range s.Selected {
			r := &s.Selected[i]
			selected[r.ID] = true
			if i < s.Whole || s.Changed(r) {
				changed = append(changed, kernel.Ref{Tenant: r.Tenant, Run: r.ID})
			}
		}
		if s.Runs, s.Cut, err = readRuns(v, changed, s.RowBytes); err != nil {
			return err
		}
		sortNewest(s.Runs)
		for _, ref := range s.Known {
			if !selected[ref.Run] {
				left = append(left, ref)
			}
		}
		var cut bool
		if s.Left, cut, err = readRuns(v, left, s.RowBytes); err != nil {
			return err
		}
		s.Cut = s.Cut || cut
		return s.readLogs(v)
	})
}

// rowsAtOnce is the number of rows that readRuns reads before it looks at their size.
const rowsAtOnce = 64

// readRuns reads runs, in no order, until they have so many bytes. Runs that do not exist are left
// out.
func readRuns(v *store.View, refs []kernel.Ref, bytes int) (out []perdure.Run, cut bool, err error) {
	for part := range slices.Chunk(refs, rowsAtOnce) {
		if bytes <= 0 {
			return out, true, nil
		}
		ids := make(map[perdure.TenantID][]perdure.RunID)
		for _, ref := range part {
			ids[ref.Tenant] = append(ids[ref.Tenant], ref.Run)
		}
		for t, list := range ids {
			runs, err := v.Runs.ByID(t, list)
			if err != nil {
				return nil, false, err
			}
			for i := range runs {
				bytes -= store.RunSize(&runs[i])
			}
			out = append(out, runs...)
		}
	}
	return out, false, nil
}

// selectRuns reads the heads of the selected runs.
func (s *Survey) selectRuns(v *store.View) error {
	tenants := []perdure.TenantID{s.Tenant}
	if s.Tenant == kernel.AllTenants {
		var err error
		if tenants, err = allTenants(v); err != nil {
			return err
		}
	}
	s.Selected, s.Next, s.Short = nil, "", false
	if s.IDs != nil {
		for _, t := range tenants {
			heads, err := v.Runs.Heads(t, s.IDs)
			if err != nil {
				return err
			}
			for _, h := range heads {
				s.Selected = append(s.Selected, perdure.Run{Tenant: t, ID: h.ID, Seq: h.Seq, State: h.State,
					DeferredAt: h.DeferredAt, SeenAt: h.SeenAt})
			}
		}
		sortNewest(s.Selected)
		return nil
	}
	f := s.Page
	f.Heads = true
	newest := make(map[perdure.TenantID]perdure.RunID)
	if len(tenants) > 1 {
		var err error
		if newest, err = v.Tenants.Newest(maxSurveyed); err != nil {
			return err
		}
		slices.SortFunc(tenants, func(a, b perdure.TenantID) int { return cmp.Compare(newest[b], newest[a]) })
	}
	cut := false
	for _, t := range tenants {
		if len(tenants) > 1 && newest[t] <= f.After {
			// The runs of this tenant and of those behind it are older than the page.
			cut = cut || newest[t] != "" && len(s.Selected) == f.Limit
			break
		}
		p, err := v.Runs.Page(t, f)
		if err != nil {
			return err
		}
		s.Selected, s.Next, s.Short = append(s.Selected, p.Runs...), max(s.Next, p.Next), s.Short || p.Cut
		if len(tenants) == 1 || len(p.Runs) == 0 {
			continue
		}
		sortNewest(s.Selected)
		if len(s.Selected) > f.Limit {
			s.Selected, cut = s.Selected[:f.Limit], true
		}
		if len(s.Selected) == f.Limit { // of the other tenants only newer runs count
			f.After = max(f.After, s.Selected[f.Limit-1].ID)
		}
	}
	if cut { // a tenant's page may have ended before that, at a bound of its own
		s.Next = max(s.Next, s.Selected[f.Limit-1].ID)
	}
	return nil
}

func sortNewest(runs []perdure.Run) {
	slices.SortFunc(runs, func(a, b perdure.Run) int { return cmp.Compare(b.ID, a.ID) })
}

// maxSurveyed bounds the tenants of a view over all tenants.
const maxSurveyed = 1000

// allTenants gives the first tenants by name.
func allTenants(v *store.View) (out []perdure.TenantID, err error) {
	rows, err := v.Tenants.Page("", maxSurveyed)
	for i := range rows {
		out = append(out, rows[i].ID)
	}
	return out, err
}

// readLogs reads the wanted logs within the bounds.
func (s *Survey) readLogs(v *store.View) error {
	s.Logs = make(map[perdure.RunID][]perdure.Line)
	left := s.AllBytes
	for i := range s.Runs {
		r := &s.Runs[i]
		from := s.Wants(r)
		if from < 0 || left <= 0 {
			continue
		}
		log, err := v.Events.Within(r.Tenant, r.ID, from, s.Lines, s.Bytes)
		if err != nil {
			return err
		}
		if n := len(log); n == 0 || log[n-1].Seq < r.Seq {
			// The log exceeds the bounds. The watcher reads it by itself.
			continue
		}
		size := 0
		for k := range log {
			size += len(log[k].Data)
			log[k].Data = withRunID(log[k].Type, log[k].Data, r.ID)
		}
		if size <= s.Bytes {
			left -= size
			s.Logs[r.ID] = log
		}
	}
	return nil
}

package engine

import (
	"cmp"
	"context"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/store"
)

// A Survey reads many runs of a tenant for a watcher: new runs, and known ones that have changed.
// Known runs are compared by their heads, and only those that are new or have changed are read.
type Survey struct {
	Tenant perdure.TenantID
	// Fresh selects the runs that may be new.
	Fresh RunFilter
	// Known are the runs that the watcher knows.
	Known []perdure.RunID
	// Knows tells whether a run is one of these.
	Knows func(perdure.RunID) bool
	// Changed tells whether a known run differs from what the watcher knows.
	Changed func(*Head) bool
	// Wants gives the line after which a run's log is wanted. Negative: the log is not wanted.
	Wants func(*perdure.Run) (from int64)

	// Lines bounds the lines of a run's log.
	Lines int
	// Bytes bounds the size of a log; a larger one is left out.
	Bytes int
	// AllBytes bounds the size of all logs: no more are read once it is reached.
	AllBytes int

	// Runs are the new and changed runs, by id.
	Runs []perdure.Run
	// Logs are those that were read up to the run's last line.
	Logs map[perdure.RunID][]perdure.Line
}

// Survey reads the runs and logs from one snapshot.
func (e *Engine) Survey(ctx context.Context, s *Survey) error {
	return e.store.View(ctx, func(v *store.View) error {
		ids, err := v.Runs.IDs(s.Tenant, s.Fresh)
		if err != nil {
			return err
		}
		ids = slices.DeleteFunc(ids, s.Knows)
		heads, err := v.Runs.Heads(s.Tenant, s.Known)
		if err != nil {
			return err
		}
		for i := range heads {
			if s.Changed(&heads[i]) {
				ids = append(ids, heads[i].ID)
			}
		}
		if s.Runs, err = v.Runs.ByID(s.Tenant, ids); err != nil {
			return err
		}
		slices.SortFunc(s.Runs, func(a, b perdure.Run) int { return cmp.Compare(a.ID, b.ID) })
		return s.readLogs(v)
	})
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
		log, err := v.Events.Within(s.Tenant, r.ID, from, s.Lines, s.Bytes)
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

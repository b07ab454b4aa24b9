package engine

import (
	"cmp"
	"context"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/store"
)

// A Survey is a look at many runs of a tenant: at those that its watcher knows, and for new ones.
// Known runs are compared by their heads, and only those that are new or have changed are read.
type Survey struct {
	Tenant  perdure.TenantID
	Fresh   RunFilter                       // chooses the runs that may be new
	Known   []perdure.RunID                 // the runs that the watcher knows
	Knows   func(perdure.RunID) bool        // tells whether a run is one of these
	Changed func(*Head) bool                // tells whether one of these is not as the watcher knows it
	Wants   func(*perdure.Run) (from int64) // the line after which a run's log is wanted; negative: none is

	Lines    int // of a run's log are read at most
	Bytes    int // a log that has more of them is left out
	AllBytes int // no more logs are read once these hold as many

	Runs []perdure.Run                    // by id
	Logs map[perdure.RunID][]perdure.Line // those that were read to the run's last line
}

// Survey looks, at one moment.
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

// readLogs reads the logs that are wanted, as long as there is room for them.
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
			continue // too much: whoever wants it reads it
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

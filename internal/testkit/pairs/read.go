package pairs

import (
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/store"
)

// about reads what other tables have about a run, in one statement: the simulator asks after every write.
const about = "SELECT " +
	"(SELECT count(*) FROM inbox WHERE tenant=? AND run_id=? AND type='" + perdure.ItemSignal + "')," +
	"(SELECT count(*) FROM members m JOIN gatherings g ON g.tenant=m.tenant AND g.id=m.gathering_id " +
	"WHERE m.tenant=? AND m.run_id=? AND g.kind='" + perdure.GatheringGroup + "')," +
	"(SELECT count(*) FROM members m JOIN gatherings g ON g.tenant=m.tenant AND g.id=m.gathering_id " +
	"WHERE m.tenant=? AND m.run_id=? AND g.kind='" + perdure.GatheringChord + "')," +
	"(SELECT count(*) FROM artifacts WHERE tenant=? AND run_id=?)," +
	"(SELECT count(*) FROM run_views WHERE tenant=? AND run_id=?)," +
	"(SELECT count(*) FROM kinds WHERE tenant=? AND kind=?)," +
	"(SELECT count(*) FROM dead_letters WHERE tenant=? AND run_id=? AND redriven_by=?)," +
	"(SELECT count(*) FROM (SELECT 1 FROM runs WHERE tenant<>? AND queue=? AND alarm_at IS NOT NULL LIMIT 1) x)," +
	"(SELECT coalesce(max(max_live_runs),0) FROM tenants WHERE id=?)," +
	"(SELECT count(*) FROM runs WHERE tenant=? AND alarm_at IS NOT NULL)"

// Read reads what a store has about a run.
func Read(v *store.View, r *perdure.Run) (f Facts, err error) {
	f.Run = r
	t, id := string(r.Tenant), string(r.ID)
	args := []any{t, id, t, id, t, id, t, id, t, id, t, r.Kind, t, string(r.RetryOf), id, t, r.Queue, t, t}
	err = v.Rows(about, args, func(scan func(...any) error) error {
		var groups, chords, kinds, letters, neighbours, limit, live int64
		var signals, artifacts, views int64
		err := scan(&signals, &groups, &chords, &artifacts, &views, &kinds, &letters, &neighbours, &limit, &live)
		f.Signals, f.Artifacts, f.Views = int(signals), int(artifacts), int(views)
		f.InGroup, f.InChord, f.Registered, f.Redriven = groups > 0, chords > 0, kinds > 0, letters > 0
		f.Neighbours, f.AtShare = neighbours > 0, limit > 0 && live >= limit
		return err
	})
	if err == nil && r.WaitsOpen > 0 {
		err = f.readWaits(v)
	}
	if err == nil && r.JournalSeq > 0 {
		err = f.readUndo(v)
	}
	return f, err
}

// readWaits reads the types of the open waits.
func (f *Facts) readWaits(v *store.View) error {
	waits, err := v.Waits.List(f.Run.Tenant, f.Run.ID)
	for _, w := range waits {
		if w.State == perdure.WaitOpen {
			f.Open = append(f.Open, w.Type)
		}
	}
	return err
}

// readUndo reads whether the journal has a step that is not undone.
func (f *Facts) readUndo(v *store.View) error {
	entries, err := v.Journal.After(f.Run.Tenant, f.Run.ID, 0, 10000)
	open := make(map[string]bool)
	for _, j := range entries {
		if key, ok := strings.CutPrefix(j.Key, perdure.UndoPrefix); ok {
			open[key] = true
		}
		if key, ok := strings.CutPrefix(j.Key, perdure.UndonePrefix); ok {
			delete(open, key)
		}
	}
	f.ToUndo = len(open) > 0
	return err
}

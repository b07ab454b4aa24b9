package watchdog

import (
	"context"
	"sync"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/store"
)

// A sweep is one transaction: if one of its rows can't be written, nothing of it is. It is then
// repeated part by part, and its runs one by one, so that only the row at fault stays behind. That
// row is set aside for a minute, with an alert. The list of such rows is in memory only, because
// the row may be the very thing that can't be written.

// sweepInParts repeats a sweep that could not be written, part by part.
func (w *Watchdog) sweepInParts(ctx context.Context) {
	if s := w.engine.Store(); s.Err() != nil || s.Away() != nil {
		return // the store as a whole does not work, so no single row is at fault
	}
	for _, p := range parts {
		if ctx.Err() != nil {
			return
		}
		if p.name == "runs" {
			for _, ref := range w.dueRuns(ctx) {
				w.sweepRun(ctx, ref)
			}
			continue
		}
		w.sweepPart(ctx, p.name)
	}
}

// sweepPart sweeps one part with fewer and fewer rows until it can be written. If that fails with a
// single row, the row is set aside.
func (w *Watchdog) sweepPart(ctx context.Context, part string) {
	for rows := sweepRows; ; rows /= 4 {
		op := &Sweep{w: w, part: part, maxRows: max(1, rows)}
		err := w.engine.Do(ctx, op)
		if err == nil || ctx.Err() != nil {
			return
		}
		if rows <= 1 {
			w.setFirstAside(ctx, part, err)
			return
		}
	}
}

// sweepRun acts on one run alone, and sets it aside if that fails.
func (w *Watchdog) sweepRun(ctx context.Context, ref store.Ref) {
	err := w.engine.Do(ctx, &Sweep{w: w, single: &ref})
	if err != nil && ctx.Err() == nil {
		w.setAside("runs", ref.Tenant, string(ref.Run), err)
	}
}

// dueRuns returns runs whose alarm is due, as many as one sweep reads.
func (w *Watchdog) dueRuns(ctx context.Context) (out []store.Ref) {
	err := w.engine.Store().Keep(ctx, func(v *store.View) (err error) {
		out, err = v.Runs.RingingRefs(sweepRows + w.aside.count(v.Now))
		return err
	})
	if err != nil && ctx.Err() == nil {
		w.log.Error("the runs whose alarm has rung can't be read", "error", err)
	}
	return out
}

// setFirstAside sets aside the first row of a part: the one that a sweep of one row fails with.
func (w *Watchdog) setFirstAside(ctx context.Context, part string, why error) {
	err := w.engine.Store().Keep(ctx, func(v *store.View) error {
		t, id, err := v.FirstDue(part, w.aside.ids(v.Now, part))
		if err == nil && id != "" {
			w.setAside(part, t, id, why)
		}
		return err
	})
	if err != nil && ctx.Err() == nil {
		w.log.Error("the row that makes a sweep fail can't be found", "part", part, "error", err)
	}
}

// setAside leaves a row alone for a while, and reports it.
func (w *Watchdog) setAside(part string, t perdure.TenantID, id string, why error) {
	w.log.Error("a row can't be acted on and is set aside",
		"part", part, "tenant", t, "id", id, "for", setAsideFor, "error", why)
	w.aside.add(w.engine.Store().Now().Add(setAsideFor), part, t, id)
	if w.OnSetAside != nil {
		w.OnSetAside(part)
	}
}

// maxAside bounds the rows that are set aside. When the list is full, the row whose time ends first
// is dropped.
const maxAside = 1000

// An asideList has rows that are left alone until an instant. It is safe for concurrent use.
type asideList struct {
	mu   sync.Mutex
	rows map[asideRow]perdure.Instant
}

type asideRow struct {
	part   string
	tenant perdure.TenantID
	id     string
}

// add adds a row until an instant.
func (a *asideList) add(until perdure.Instant, part string, t perdure.TenantID, id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.rows) >= maxAside {
		var first asideRow
		for row, at := range a.rows {
			if first == (asideRow{}) || at < a.rows[first] {
				first = row
			}
		}
		delete(a.rows, first)
	}
	if a.rows == nil {
		a.rows = make(map[asideRow]perdure.Instant)
	}
	a.rows[asideRow{part, t, id}] = until
}

// has tells whether a row is left alone now.
func (a *asideList) has(now perdure.Instant, part string, t perdure.TenantID, id string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return now < a.rows[asideRow{part, t, id}]
}

// any tells whether the list has any rows.
func (a *asideList) any() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.rows) > 0
}

// count drops the rows whose time is over and returns how many are left.
func (a *asideList) count(now perdure.Instant) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	for row, until := range a.rows {
		if until <= now {
			delete(a.rows, row)
		}
	}
	return len(a.rows)
}

// ids returns the rows of a part that are left alone now, as tenant, NUL byte and id.
func (a *asideList) ids(now perdure.Instant, part string) map[string]bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make(map[string]bool)
	for row, until := range a.rows {
		if row.part == part && now < until {
			out[string(row.tenant)+"\x00"+row.id] = true
		}
	}
	return out
}

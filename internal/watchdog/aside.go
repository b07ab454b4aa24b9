package watchdog

import (
	"context"
	"sync"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/store"
)

// A sweep is one batch: when it can't be written, nothing of it is. It is then done again in parts, each of them by itself and
// the runs one by one, so that the others go on. A row that fails by itself is set aside for a minute, with an alert. The list is
// kept in memory alone: the row may be what can't be written.

// oneByOne does the parts of a sweep that could not be written.
func (w *Watchdog) oneByOne(ctx context.Context) {
	if s := w.engine.Store(); s.Err() != nil || s.Away() != nil {
		return // it is not a row that is to blame
	}
	for _, p := range parts {
		if ctx.Err() != nil {
			return
		}
		if p.name == "runs" {
			for _, ref := range w.ringing(ctx) {
				w.one(ctx, ref)
			}
			continue
		}
		for most := batch; ; most /= 4 {
			op := &Sweep{w: w, part: p.name, most: max(1, most)}
			err := w.engine.Do(ctx, op)
			if err == nil || ctx.Err() != nil {
				break
			}
			if most <= 1 {
				w.setFirstAside(ctx, p.name, err)
				break
			}
		}
	}
}

// one acts on one run by itself, and sets it aside if that fails.
func (w *Watchdog) one(ctx context.Context, ref store.Ref) {
	err := w.engine.Do(ctx, &Sweep{w: w, only: &ref})
	if err != nil && ctx.Err() == nil {
		w.setAside("runs", ref.Tenant, string(ref.Run), err)
	}
}

// ringing names the runs whose alarm has rung, as many as a sweep looks at.
func (w *Watchdog) ringing(ctx context.Context) (out []store.Ref) {
	err := w.engine.Store().Keep(ctx, func(v *store.View) (err error) {
		out, err = v.RingingRuns(batch + w.aside.count(v.Now))
		return err
	})
	if err != nil && ctx.Err() == nil {
		w.log.Error("the runs whose alarm has rung can't be read", "error", err)
	}
	return out
}

// setFirstAside sets the row aside that a part of a sweep begins with.
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

func (w *Watchdog) setAside(part string, t perdure.TenantID, id string, why error) {
	w.log.Error("a row can't be acted on and is set aside", "part", part, "tenant", t, "id", id, "for", aside, "error", why)
	w.aside.add(w.engine.Store().Now().Add(aside), part, t, id)
	if w.Aside != nil {
		w.Aside(part)
	}
}

// maxAside bounds how many rows are set aside. Beyond it the one whose time is over first is forgotten.
const maxAside = 1000

// An asideList names rows that are left alone for a while.
type asideList struct {
	mu   sync.Mutex
	rows map[asideRow]perdure.Instant // until when
}

type asideRow struct {
	part   string
	tenant perdure.TenantID
	id     string
}

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

// has tells whether a row is to be left alone.
func (a *asideList) has(now perdure.Instant, part string, t perdure.TenantID, id string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return now < a.rows[asideRow{part, t, id}]
}

// some tells whether there is any.
func (a *asideList) some() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.rows) > 0
}

// count is how many rows are left alone; those whose time is over are forgotten.
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

// ids names the rows of a part that are left alone.
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

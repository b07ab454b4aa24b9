package watchdog

import (
	"context"
	"sync"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/store"
)

// A sweep is one transaction: if one of its rows can't be written, nothing of it is. It is then
// repeated part by part, with fewer and fewer rows, so that only the row at fault stays behind. That
// row is set aside for a minute, with an alert. The list of such rows is in memory only, because
// the row may be the very thing that can't be written.
//
// A row is at fault if a sweep of it alone fails twice although the store takes other writes, which
// is tried after each failure. A store that is read-only, full, away, locked or slow fails with
// every row: that is an outage, and no row is set aside. When a sweep succeeds after an outage, the
// rows that were set aside are tried again at once.

const (
	// maxParts bounds the sweeps that one repeated sweep makes of a part.
	maxParts = 512
	// maxTimeouts is how many rows of a part may take too long before the store counts as slow, if no
	// row of the part went well meanwhile.
	maxTimeouts = 3
)

// sweepInParts repeats a sweep that could not be written, part by part.
func (w *Watchdog) sweepInParts(ctx context.Context, why error) {
	if store.TableLocked(why) || !w.storeWorks(ctx) {
		w.noteOutage(why)
		return
	}
	if !store.Outage(why) && !store.TimedOut(why) { // otherwise it was a moment of the store
		w.log.Error("a sweep failed", "error", why)
	}
	for i := range parts {
		if ctx.Err() != nil {
			return
		}
		if err := w.sweepPart(ctx, parts[i].name); err != nil {
			w.noteOutage(err)
			return
		}
	}
}

// storeWorks tells whether the store takes writes now.
func (w *Watchdog) storeWorks(ctx context.Context) bool {
	s := w.engine.Store()
	return s.Err() == nil && s.Away() == nil && store.Probe(ctx, s) == nil
}

// noteOutage records that sweeps fail because of the store, and logs the beginning of it.
func (w *Watchdog) noteOutage(why error) {
	if !w.outage {
		w.log.Warn("no sweep can be written until the store takes writes again", "error", why)
	}
	w.outage = true
}

// noteSuccess records that a sweep was written. After an outage every row is tried again.
func (w *Watchdog) noteSuccess() {
	if w.outage {
		w.outage = false
		w.aside.clear()
		w.log.Info("sweeps are written again")
	}
}

// sweepPart sweeps one part with fewer rows after a failure and with more after a success, until
// nothing is left. A row that fails alone is set aside. An error means that the store is the reason.
func (w *Watchdog) sweepPart(ctx context.Context, part string) error {
	done, timeouts := 0, 0
	var first asideRow // of the last sweep that was written
	failed := false    // the last sweep failed with a single row
	rows := sweepRows
	for range maxParts {
		op := &Sweep{w: w, part: part, maxRows: rows}
		err := w.engine.Do(ctx, op)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			for _, ref := range op.Contended {
				w.sweepRun(ctx, ref)
			}
			if done++; !op.More || len(op.acting) == 0 || op.acting[0] == first {
				return nil // the next sweep goes on with a row that has more to do
			}
			rows, failed, first = min(sweepRows, 4*rows), false, op.acting[0]
			continue
		case store.TableLocked(err) || !w.storeWorks(ctx):
			return err
		case rows > 1:
			rows = max(1, rows/4)
			continue
		case !failed && !store.Locked(err):
			failed = true // once more: the store may have taken no writes for a moment
			continue
		}
		failed = false
		if store.TimedOut(err) {
			timeouts++
		}
		if done == 0 && timeouts >= maxTimeouts {
			return err
		}
		if !w.blame(part, op, err) {
			return nil
		}
	}
	return nil
}

// sweepRun acts on one run alone, and sets it aside if that fails.
func (w *Watchdog) sweepRun(ctx context.Context, ref store.Ref) {
	var err error
	op := &Sweep{w: w, single: &ref}
	for range 2 {
		if err = w.engine.Do(ctx, op); err == nil || ctx.Err() != nil {
			return
		}
		if !w.storeWorks(ctx) {
			w.noteOutage(err)
			return
		}
	}
	op.acting = []asideRow{{"runs", ref.Tenant, string(ref.Run)}}
	w.blame("runs", op, err)
}

// blame leaves alone the row that a sweep of one row failed with. It tells whether there is one. A
// row that is locked, or for which the disk has too little room, is tried again soon, without an
// alert: it is sound.
func (w *Watchdog) blame(part string, op *Sweep, why error) bool {
	if len(op.acting) == 0 {
		w.log.Error("the row that makes a sweep fail can't be found", "part", part, "error", why)
		return false
	}
	row := op.acting[len(op.acting)-1]
	if store.Locked(why) || store.Outage(why) {
		w.aside.add(w.engine.Store().Now().Add(lockedFor), row)
		return true
	}
	w.setAside(row, why)
	return true
}

// setAside leaves a row alone for a while, and reports it.
func (w *Watchdog) setAside(row asideRow, why error) {
	w.log.Error("a row can't be acted on and is set aside",
		"part", row.part, "tenant", row.tenant, "id", row.id, "for", setAsideFor, "error", why)
	w.aside.add(w.engine.Store().Now().Add(setAsideFor), row)
	if w.OnSetAside != nil {
		w.OnSetAside(row.part)
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

// An asideRow is a row of a part of a sweep.
type asideRow struct {
	part   string
	tenant perdure.TenantID
	id     string
}

// add adds a row until an instant.
func (a *asideList) add(until perdure.Instant, row asideRow) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.rows) >= maxAside {
		var first asideRow
		for x, at := range a.rows {
			if first == (asideRow{}) || at < a.rows[first] {
				first = x
			}
		}
		delete(a.rows, first)
	}
	if a.rows == nil {
		a.rows = make(map[asideRow]perdure.Instant)
	}
	a.rows[row] = until
}

// clear drops all rows.
func (a *asideList) clear() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.rows)
}

// has tells whether a row is left alone now.
func (a *asideList) has(now perdure.Instant, row asideRow) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return now < a.rows[row]
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

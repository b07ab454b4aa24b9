package watchdog

import (
	"context"
	"fmt"
	"time"

	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/upkeep"
	"github.com/perdure/perdure/internal/server/store"
)

// Retention runs in small steps with pauses between them, so that other operations always get the
// store. Between two rounds it rests for a hundredth of the retention, within these bounds, and at
// least for watchdog_interval. An idle server spends nothing on it, and data is kept only a little
// longer than asked.
const (
	minRetainPause = 25 * time.Millisecond
	minRetainRest  = time.Second
	maxRetainRest  = time.Minute
)

// retire removes expired data until the context ends.
func (w *Watchdog) retire(ctx context.Context) {
	p := w.engine.Policy()
	rest := max(minRetainRest, min(maxRetainRest, p.Retention/100), p.WatchdogInterval)
	timer := time.NewTimer(rest)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		op, pause, began := w.Retire(), rest, time.Now()
		switch err := w.engine.Do(ctx, op); {
		case ctx.Err() != nil:
			return
		case store.HeldUp(err): // what is locked is removed later
		case err != nil:
			w.log.Error("a step of the retention failed", "error", err)
		case op.More:
			pause = max(minRetainPause, 3*time.Since(began)) // at most a quarter of the store's time
		}
		timer.Reset(pause)
	}
}

// Retire returns one step of the retention, as an operation.
func (w *Watchdog) Retire() *Retire { return &Retire{w: w} }

// Retire removes a bounded portion of the data whose retention is over. It is not part of a sweep,
// so that an alarm never waits for it.
type Retire struct {
	w *Watchdog

	Actions []Action
	// More tells that there is more to remove at once.
	More bool
}

// Needs names no runs: the operation selects them itself.
func (*Retire) Needs() []store.Ref { return nil }

// Lane returns the lane for bulk work, which holds up no other lane.
func (*Retire) Lane() store.Lane { return store.LaneBulk }

// Do removes one portion, and records what was removed.
func (op *Retire) Do(tx *kernel.Tx) error {
	op.Actions = nil
	next, did, err := upkeep.Retain(tx, op.w.retain)
	if err != nil {
		return err
	}
	p := tx.Policy()
	if did.Runs > 0 {
		op.Actions = append(op.Actions, op.w.newAction(tx.Now, ruleRetention, did.Tenant, "",
			fmt.Sprintf("%d runs removed", did.Runs), "they ended more than "+span(p.Retention)+" ago"))
	}
	for _, x := range []struct {
		n         int
		rows, why string
	}{
		{did.Rows.Workers, "workers", "they gave no sign of life for more than " + span(p.WorkerRetention)},
		{did.Rows.Webhooks, "webhooks",
			"they were deleted, or last needed, more than " + span(p.WebhookRetention) + " ago"},
		{did.Rows.Keys, "keys", "they were revoked, or expired, more than " + span(p.KeyRetention) + " ago"},
		{did.Rows.Kinds, "kinds", "no worker announced or served them for more than " + span(p.KindRetention)},
	} {
		if x.n > 0 {
			op.Actions = append(op.Actions,
				op.w.newAction(tx.Now, ruleRetention, "", "", fmt.Sprintf("%d %s removed", x.n, x.rows), x.why))
		}
	}
	op.More = did.More
	tx.DB.After(func() { op.w.retain = next })
	return op.w.writeActions(tx, op.Actions)
}

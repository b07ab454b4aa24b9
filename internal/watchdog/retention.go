package watchdog

import (
	"context"
	"fmt"
	"time"

	"github.com/perdure/perdure/internal/engine"
	"github.com/perdure/perdure/internal/store"
)

// Retention goes on in small steps with a pause between them, so that it never has the store for itself, and rests between
// two rounds: long enough to cost an idle server nothing, and short beside how long things are kept.
const (
	retainPause = 25 * time.Millisecond
	restLeast   = time.Second
	restMost    = time.Minute
)

// retire removes what has had its time, until the context ends.
func (w *Watchdog) retire(ctx context.Context) {
	rest := max(restLeast, min(restMost, w.engine.Policy().Retention/100))
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
		case err != nil:
			w.log.Error("a step of the retention failed", "error", err)
		case op.More:
			pause = max(retainPause, 3*time.Since(began)) // at most a quarter of the store's time
		}
		timer.Reset(pause)
	}
}

// Retire is one step of the retention, as an operation.
func (w *Watchdog) Retire() *Retire { return &Retire{w: w} }

// Retire removes a bounded part of what has had its time. It is no part of a sweep: an alarm never waits for it.
type Retire struct {
	w *Watchdog

	Actions []Action
	More    bool // there is more: again in a moment
}

// Needs names nothing: it finds its runs itself.
func (*Retire) Needs() []store.Ref { return nil }

// Lane keeps it out of everybody's way.
func (*Retire) Lane() store.Lane { return store.LaneBulk }

// Do removes.
func (op *Retire) Do(tx *engine.Tx) error {
	op.Actions = nil
	at, did, err := tx.Retain(op.w.retain)
	if err != nil {
		return err
	}
	if did.Runs > 0 {
		op.Actions = append(op.Actions, op.w.action(tx.Now, "retention", did.Tenant, "", fmt.Sprintf("%d runs removed", did.Runs),
			"they ended more than "+span(tx.Policy().Retention)+" ago"))
	}
	for _, x := range []struct {
		n            int
		things, over string
	}{
		{did.Rows.Workers, "workers", "they gave no sign of life for more than " + span(tx.Policy().WorkerRetention)},
		{did.Rows.Webhooks, "webhooks", "they were deleted, or last needed, more than " + span(tx.Policy().WebhookRetention) + " ago"},
		{did.Rows.Keys, "keys", "they were revoked, or expired, more than " + span(tx.Policy().KeyRetention) + " ago"},
	} {
		if x.n > 0 {
			op.Actions = append(op.Actions, op.w.action(tx.Now, "retention", "", "", fmt.Sprintf("%d %s removed", x.n, x.things), x.over))
		}
	}
	op.w.note(tx, op.Actions)
	op.More = did.More
	tx.After(func() { op.w.retain = at })
	return nil
}

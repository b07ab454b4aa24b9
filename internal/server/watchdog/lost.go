package watchdog

import (
	"context"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/store"
)

// TakeFrom takes the runs that workers inside a server were granted before an instant, instead of
// waiting for their leases to expire: its process is known to be gone. Each spends an attempt, as
// by the rule lost-worker. TakeFrom returns how many runs it took. Those that it can't take, and
// those above maxTaken, are left to that rule.
func (w *Watchdog) TakeFrom(ctx context.Context, instance string, before perdure.Instant) (taken int, err error) {
	var held []store.Ref
	err = w.engine.Store().Keep(ctx, func(v *store.View) (err error) {
		held, err = v.Runs.HeldInside(instance, maxTaken)
		return err
	})
	if err != nil {
		return 0, err
	}
	for _, ref := range held {
		op := &Sweep{w: w, single: &ref, gone: instance, before: before}
		if failed := w.engine.Do(ctx, op); failed != nil {
			err = failed
			continue
		}
		taken += len(op.Actions)
	}
	return taken, err
}

// maxTaken bounds the runs of one TakeFrom: the first sweep of all tenants waits for the end of it.
const maxTaken = 1000

// take takes a run from a worker of the instance that is gone, if that still has it.
func (s *Sweep) take(tx *kernel.Tx, r *perdure.Run) error {
	if !strings.HasSuffix(r.Worker, "~"+s.gone) || !r.State.Leased() || r.GrantedAt >= s.before || r.Damage != nil {
		return nil
	}
	before, rule, act := *r, byClock["lease"], byClock["lease"].act
	if r.State == perdure.Dispatched { // not begun, so it costs no attempt
		rule, act = byClock["undelivered"], func(tx *kernel.Tx, r *perdure.Run) error {
			if r.Cancel.RequestedAt != 0 {
				return life.LoseCancelled(tx, r, 0, "not_started",
					"its worker ended while the run was being cancelled")
			}
			return life.Requeue(tx, r, perdure.Released{Epoch: r.Epoch})
		}
	}
	if err := act(tx, r); err != nil {
		return err
	}
	s.record(tx, rule.Name, r.Tenant, r.ID, outcome(tx.Policy(), rule, &before, r, tx.Now),
		"worker "+before.Worker+" ended with its server; last sign of life "+span(tx.Now.Sub(before.SeenAt))+" ago")
	return nil
}

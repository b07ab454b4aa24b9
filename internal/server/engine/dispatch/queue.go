package dispatch

import (
	"context"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/rules"
	"github.com/perdure/perdure/internal/server/store"
)

// A Queue is a queue with the number of its runs.
type Queue struct {
	store.QueueDepth
	// Paused is set while nothing is granted from the queue.
	Paused *perdure.QueuePause
	// OldestFor is how long its oldest claimable run has been claimable.
	OldestFor time.Duration
	// MissingLimits are limits of the queue that do not exist.
	MissingLimits []string
}

// Queues reads a page of a tenant's queues by name.
func Queues(
	ctx context.Context, e *kernel.Engine, t perdure.TenantID, p kernel.Page,
) (list []Queue, next string, err error) {
	err = e.Store().View(ctx, func(v *store.View) error {
		var rows []store.QueueDepth
		if rows, next, err = v.Queues.Page(t, p, store.PageRows); err != nil {
			return err
		}
		paused, err := rules.PausedNow(&v.Records, t)
		for _, q := range rows {
			x := Queue{QueueDepth: q, Paused: paused.On(q.Name, v.Now)}
			if x.MissingLimits, err = v.Limits.Missing(t, q.LimitNames()); err != nil {
				return err
			}
			if q.Oldest != 0 {
				x.OldestFor = v.Now.Sub(q.Oldest)
			}
			list = append(list, x)
		}
		return err
	})
	return list, next, err
}

type (
	// Ready names a queue and a kind with a claimable run.
	Ready = store.Ready
	// A ReadyRound is the cursor of repeated calls of Engine.Ready.
	ReadyRound = store.ReadyRound
)

// Ready reads the queues and kinds that have a claimable run, from the cursor on, except for those that
// are closed. It does not wait for reads of callers.
func ReadyPlaces(ctx context.Context, e *kernel.Engine, round *ReadyRound) (list []Ready, err error) {
	err = e.Store().Keep(ctx, func(v *store.View) error {
		all, err := v.Claims.Ready(round)
		if err != nil {
			return err
		}
		waits := WaitReader{Engine: e, DB: &v.Records}
		for _, r := range all {
			t, err := waits.Of(r.Tenant)
			if err != nil {
				return err
			}
			why := t.closed(r.Queue, r.Kind)
			// Polls are told of a missing signing key.
			if why == nil || why.Reason == perdure.WaitingNoSigner {
				list = append(list, r)
			}
		}
		return nil
	})
	return list, err
}

// Workers reads a page of a tenant's workers by id.
func Workers(
	ctx context.Context, e *kernel.Engine, t perdure.TenantID, p kernel.Page,
) (list []perdure.Worker, next string, err error) {
	err = e.Store().View(ctx, func(v *store.View) error {
		list, next, err = v.Workers.Page(t, p)
		return err
	})
	return list, next, err
}

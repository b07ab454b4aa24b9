package engine

import (
	"context"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/store"
)

// A Queue is a queue with what is in it.
type Queue struct {
	store.QueueDepth
	OldestFor time.Duration // how long its oldest claimable run has been that
}

// Queues reads a page of a tenant's queues by name.
func (e *Engine) Queues(ctx context.Context, t perdure.TenantID, p Page) (list []Queue, next string, err error) {
	err = e.store.View(ctx, func(v *store.View) error {
		var rows []store.QueueDepth
		rows, next, err = v.Queues.Page(t, p, store.PageRows)
		for _, q := range rows {
			x := Queue{QueueDepth: q}
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
	// Ready names a kind and a queue in which there is something to claim.
	Ready = store.Ready
	// A ReadyRound says how far the last look at what is ready came.
	ReadyRound = store.ReadyRound
)

// Ready reads of which kinds and in which queues there is something to claim, and goes on where the
// look before ended. It waits for no reads of callers.
func (e *Engine) Ready(ctx context.Context, round *ReadyRound) (list []Ready, err error) {
	err = e.store.Keep(ctx, func(v *store.View) error {
		list, err = v.Claims.Ready(round)
		return err
	})
	return list, err
}

// Workers reads a page of a tenant's workers by id.
func (e *Engine) Workers(
	ctx context.Context, t perdure.TenantID, p Page,
) (list []perdure.Worker, next string, err error) {
	err = e.store.View(ctx, func(v *store.View) error {
		list, next, err = v.Workers.Page(t, p)
		return err
	})
	return list, next, err
}

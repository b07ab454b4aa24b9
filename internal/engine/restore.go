package engine

import (
	"context"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/store"
)

// Restore fills an empty store from a backup. Whoever held a run when the backup was made, or has been granted it since, on the
// store that is lost, holds it no more: epochs go on from far beyond any that can have been granted. What was leased is
// claimable at once, and has lost no attempt.
func Restore(ctx context.Context, s *store.Store, path string, p *perdure.Policy, told func(store.Copied)) (store.Backup, int64, error) {
	return s.Restore(ctx, path, func(generation int64, now perdure.Instant) store.Adoption {
		// The same backup may be restored twice, and what happened in between be lost too: by the instant the two differ.
		epoch := generation<<32 | int64(now)&(1<<31-1)
		return store.Adoption{
			Run: func(r perdure.Run) (perdure.Run, []perdure.Line, error) {
				if r.State.Leased() && r.Cancel.RequestedAt == 0 {
					return p.Apply(r, perdure.Restored{Epoch: epoch}, now)
				}
				return p.Apply(r, perdure.Renumbered{Epoch: epoch}, now)
			},
			Item: func(i perdure.Item) perdure.Item {
				i.Status, i.Epoch, i.AlarmAt = perdure.ItemPending, 0, now.Add(p.PendingWakeup)
				return i
			},
		}
	}, told)
}

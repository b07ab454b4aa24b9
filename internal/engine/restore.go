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
		epoch := firstEpoch(generation, now)
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

// firstEpoch is what the epochs of a restored store go on from. The same backup may be restored again, and what happened in between be
// lost too: the later of the two has the greater epochs, since nobody is granted a run more often than once in a millisecond.
func firstEpoch(generation int64, now perdure.Instant) int64 {
	const year2020 = 1_577_836_800_000
	return generation<<epochBits | min(max(0, int64(now)/1000-year2020), 1<<epochBits-1)
}

// epochBits hold milliseconds until 2089; the generation is above them.
const epochBits = 41

// wasRestored tells of a run that it came from a backup. Another store that was restored from it, and is lost, may have granted
// epochs that this one never did.
func wasRestored(r *perdure.Run) bool { return r.Epoch>>epochBits > 0 }

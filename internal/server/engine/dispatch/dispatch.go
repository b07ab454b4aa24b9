package dispatch

import (
	"github.com/perdure/perdure/internal/server/doorbell"
	"github.com/perdure/perdure/internal/server/engine/access"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
)

// Add adds this wing to an engine: runs that become claimable are granted to polls that stand by.
func Add(e *kernel.Engine) {
	polls := standing.Of(e)
	access.OnKeyGone(e, polls.withdraw)
	life.OnHeldBack(e, knownHeld.Of(e).add)
	e.OnDecided(func(tx *kernel.Tx) error {
		if tx.AnyReady() && polls.n.Load() > 0 {
			// Runs that the operation itself makes claimable, when it is decided, ring.
			if h := tx.Last(func() kernel.Op { return &handOver{e: e} }).(*handOver); !h.done {
				handOvers.Of(tx).op = h
			}
		}
		return nil
	})
	e.OnReady(func(tx *kernel.Tx, t doorbell.Topic) bool {
		s := handOvers.Has(tx)
		return s == nil || s.op.rings(t)
	})
}

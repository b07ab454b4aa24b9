package outbox

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
)

// Add adds this wing to an engine: every transition notifies the webhooks that match it.
func Add(e *kernel.Engine) {
	e.OnApplied(func(tx *kernel.Tx, _, r *perdure.Run, lines []perdure.Line) error { return notify(tx, r, lines) })
	e.OnDurable(func(tx *kernel.Tx) {
		if s := stagedIn.Has(tx); s != nil && len(s.postings) > 0 {
			posted.Of(e).add(s.postings)
		}
	})
}

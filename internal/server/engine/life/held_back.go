package life

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// heldBack has the functions that are called when a run is held back, or waits for its clean-up.
var heldBack = kernel.NewPart(func(*kernel.Engine) *[]func(at store.Ready, now perdure.Instant) {
	return &[]func(at store.Ready, now perdure.Instant){}
})

// OnHeldBack has f called for every run that is held back or waits for its clean-up, once that is durable.
func OnHeldBack(e *kernel.Engine, f func(at store.Ready, now perdure.Instant)) {
	list := heldBack.Of(e)
	*list = append(*list, f)
}

// tellHeldBack tells that a run is held back, or waits for its clean-up, once the batch is durable.
func tellHeldBack(tx *kernel.Tx, r *perdure.Run) {
	at, now := store.Ready{Tenant: r.Tenant, Queue: r.Queue, Kind: r.Kind}, tx.Now
	tx.DB.After(func() {
		for _, f := range *heldBack.Of(tx.Engine) {
			f(at, now)
		}
	})
}

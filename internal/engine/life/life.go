package life

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/engine/kernel"
	"github.com/perdure/perdure/internal/store"
)

// state is what life keeps in an engine.
type state struct {
	// workers has the workers whose row is recent enough. A row that another node removes is written again a
	// little later.
	workers kernel.Cache[workerRow, struct{}]
	// heldBack are called when a run is held back, or waits for its clean-up.
	heldBack []func(at store.Ready, now perdure.Instant)
}

var part = kernel.NewPart[state]()

func of(e *kernel.Engine) *state { return part.Of(e) }

// scratch is what ends of runs remember in an operation.
type scratch struct {
	// followUps are the consequences of ends that are left to do; see follow.go.
	followUps []followUp
	// ending counts nested calls of Finish.
	ending int
	// inFollowUps is true while runFollowUps is running.
	inFollowUps bool
}

var inTx = kernel.NewScratch[scratch]()

// Add adds this wing to an engine.
func Add(e *kernel.Engine) {
	l := &state{}
	l.workers.TTL = e.Policy().WorkerOffline / 8
	part.Set(e, l)
}

// OnHeldBack has f called for every run that is held back or waits for its clean-up, once that is durable.
func OnHeldBack(e *kernel.Engine, f func(at store.Ready, now perdure.Instant)) {
	l := of(e)
	l.heldBack = append(l.heldBack, f)
}

// tellHeldBack tells that a run is held back, or waits for its clean-up, once the batch is durable.
func tellHeldBack(tx *kernel.Tx, r *perdure.Run) {
	at, now := store.Ready{Tenant: r.Tenant, Queue: r.Queue, Kind: r.Kind}, tx.Now
	tx.DB.After(func() {
		for _, f := range of(tx.Engine).heldBack {
			f(at, now)
		}
	})
}

package dispatch

import (
	"crypto/sha256"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/doorbell"
	"github.com/perdure/perdure/internal/engine/access"
	"github.com/perdure/perdure/internal/engine/kernel"
	"github.com/perdure/perdure/internal/engine/life"
)

// state is what dispatch keeps in an engine.
type state struct {
	// polls has the polls that were recorded a short time ago. A row that another node removes is written
	// again a little later.
	polls    kernel.Cache[[sha256.Size]byte, struct{}]
	cursors  pollCursors
	standing standbys
	held     heldPlaces
	// served has who polls for what, by tenant, for people: no grant depends on it.
	served kernel.Cache[perdure.TenantID, *Serving]
}

var part = kernel.NewPart[state]()

func of(e *kernel.Engine) *state { return part.Of(e) }

// scratch is what dispatch remembers in an operation.
type scratch struct {
	// handOver grants the runs that became claimable to polls that stand by.
	handOver *handOver
}

var inTx = kernel.NewScratch[scratch]()

// Add adds this wing to an engine: runs that become claimable are granted to polls that stand by.
func Add(e *kernel.Engine) {
	d := &state{}
	d.served.TTL, d.served.Most = servingTTL, maxServing
	d.polls.TTL = e.Policy().WorkerOffline / 2
	part.Set(e, d)
	access.OnKeyGone(e, d.standing.withdraw)
	life.OnHeldBack(e, d.held.add)
	e.OnDecided(func(tx *kernel.Tx) {
		if tx.AnyReady() && d.standing.n.Load() > 0 {
			inTx.Of(tx).handOver = tx.Last(func() kernel.Op { return &handOver{e: e} }).(*handOver)
		}
	})
	e.OnReady(func(tx *kernel.Tx, t doorbell.Topic) bool {
		s := inTx.Has(tx)
		return s == nil || s.handOver.rings(t)
	})
}

package outbox

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/engine/kernel"
)

// state is what the outbox keeps in an engine.
type state struct {
	hooks  webhookCache
	posted postings
}

var part = kernel.NewPart[state]()

func of(e *kernel.Engine) *state { return part.Of(e) }

// scratch is what the outbox remembers in an operation.
type scratch struct {
	// notified counts the notifications that the operation has staged; see maxNotified.
	notified int
	// postings name the endpoints that have something to send once the batch is durable.
	postings []Posting
}

var inTx = kernel.NewScratch[scratch]()

// Add adds this wing to an engine: every transition notifies the webhooks that match it.
func Add(e *kernel.Engine) {
	o := &state{}
	o.hooks.withHooks.TTL, o.hooks.tenants.TTL, o.hooks.runHooks.TTL = HookTTL, HookTTL, HookTTL
	o.posted.list, o.posted.bell = make(map[Posting]bool), make(chan struct{}, 1)
	part.Set(e, o)
	e.OnApplied(func(tx *kernel.Tx, _, r *perdure.Run, lines []perdure.Line) error { return notify(tx, r, lines) })
	e.OnDurable(func(tx *kernel.Tx) {
		if s := inTx.Has(tx); s != nil && len(s.postings) > 0 {
			o.posted.add(s.postings)
		}
	})
}

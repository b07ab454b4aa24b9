package rules

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/engine/kernel"
	"github.com/perdure/perdure/internal/engine/outbox"
)

// state is what the rules keep in an engine.
type state struct {
	Options

	// signing has the tenants that require signatures. A tenant that requires them anew has runs of the time
	// before without one, so half a second more of these changes nothing.
	signing kernel.Cache[struct{}, outbox.TenantSet]
	live    liveRuns
	// kinds has definitions for decisions, without what only readers need. A worker announces its kinds before
	// it polls, and a definition counts for the runs that are accepted after it.
	kinds  kernel.Cache[kindRef, kindFacts]
	pauses pauseCache
}

// RulesOptions are what a server's configuration says of its tenants.
type Options struct {
	// Signer signs the runs that are accepted. Default: runs are not signed.
	Signer *perdure.Signer
	// SigningRequired names tenants whose runs have to be signed, whatever the store says.
	SigningRequired []perdure.TenantID
	// MaxLiveRuns limits the live runs of a tenant without a limit of its own. Zero: no limit.
	MaxLiveRuns int64
}

var part = kernel.NewPart[state]()

func of(e *kernel.Engine) *state { return part.Of(e) }

// Add adds this wing to an engine.
func Add(e *kernel.Engine, opt Options) {
	r := &state{Options: opt}
	r.kinds.TTL, r.kinds.Most = KindTTL, maxCachedKinds
	r.signing.TTL, r.pauses.generation.TTL = outbox.HookTTL, pauseTTL
	part.Set(e, r)
}

// Signer gives the key that signs accepted runs. Nil: runs are not signed.
func Signer(e *kernel.Engine) *perdure.Signer { return of(e).Signer }

// SigningRequired names the tenants whose runs have to be signed by the configuration.
func SigningRequired(e *kernel.Engine) []perdure.TenantID { return of(e).SigningRequired }

package rules

import (
	"encoding/json"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// KindTTL is how long a cached definition is used. Changes on this node take effect at once, those of
// other nodes within this time.
const KindTTL = time.Second

// maxCachedKinds bounds the cached definitions.
const maxCachedKinds = 4096

type kindRef struct {
	tenant perdure.TenantID
	kind   string
}

// kindFacts are the effective definition of a kind without descriptions and schemas; of signals it has the
// names. Every submission needs them, so in the common case that costs no query. Those of a kind that is
// not registered are cached as well.
type kindFacts struct {
	def *perdure.KindDef
	// known is set if the kind is registered. Its definition may be empty all the same.
	known bool
}

// cachedKinds has definitions for decisions, without the fields that only readers need. A worker announces
// its kinds before it polls, and a definition counts for the runs that are accepted after it.
var cachedKinds = kernel.NewPart(func(*kernel.Engine) *kernel.Cache[kindRef, kindFacts] {
	return &kernel.Cache[kindRef, kindFacts]{TTL: KindTTL, Most: maxCachedKinds}
})

// noKind is the definition of a kind that is not registered.
var noKind = &perdure.KindDef{}

// KindOf gives the effective definition of a kind for decisions, from the cache or from what is
// committed. It is shared: callers do not change it.
func KindOf(tx *kernel.Tx, t perdure.TenantID, kind string) (*perdure.KindDef, error) {
	def, _, err := LookUpKind(tx, t, kind, false)
	return def, err
}

// LookUpKind is KindOf, and tells whether the kind is registered. With fresh, the cached answer that it is
// not counts only in the batch that has read it: another node may just have registered it.
func LookUpKind(tx *kernel.Tx, t perdure.TenantID, kind string, fresh bool) (*perdure.KindDef, bool, error) {
	at, ref, cache := kernel.LookOf(tx), kindRef{t, kind}, cachedKinds.Of(tx.Engine)
	if k, ok := cache.Peek(at, ref); ok && (k.known || !fresh || cache.ReadBy(at, ref)) {
		return k.def, k.known, nil
	}
	k, err := cache.Load(at, ref, func() (kindFacts, error) { return readKindFacts(tx, t, kind) })
	return k.def, k.known, err
}

// readKindFacts reads what decisions need of a kind.
func readKindFacts(tx *kernel.Tx, t perdure.TenantID, kind string) (kindFacts, error) {
	layers, err := tx.DB.Kinds.Layers(t, kind)
	if err != nil {
		return kindFacts{}, err
	}
	k := kindFacts{def: noKind, known: len(layers) > 0}
	if def, _ := MergeLayers(layers, nil); !def.Empty() {
		def.Description, def.InputSchema, def.OutputSchema = "", nil, nil
		names := make(map[string]json.RawMessage, len(def.Signals))
		for name := range def.Signals {
			names[name] = nil
		}
		def.Signals = names
		k.def = &def
	}
	return k, nil
}

// forgetKind drops a cached kind. A change of the platform's layer concerns every tenant.
func forgetKind(e *kernel.Engine, t perdure.TenantID, kind string) {
	if t == store.PlatformKinds {
		cachedKinds.Of(e).Forget()
		return
	}
	cachedKinds.Of(e).Forget(kindRef{t, kind})
}

// MergeLayers gives the effective definition of a kind and the build that counts. The layers are
// that of the platform and that of the tenant. sources may be nil.
func MergeLayers(layers []store.KindLayer, sources map[string]string) (def perdure.KindDef, build string) {
	for i := range layers {
		l := &layers[i]
		from := perdure.KindFromWorker
		if l.Tenant == store.PlatformKinds {
			from = perdure.KindFromPlatform
		}
		if l.NewestAt != 0 {
			def.Overlay(&l.Announced, from, sources)
			build = l.Newest
		}
		def.Overlay(&l.Overrides, perdure.KindFromOperator, sources)
	}
	return def, build
}

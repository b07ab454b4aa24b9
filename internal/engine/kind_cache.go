package engine

import (
	"encoding/json"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/store"
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

// noKind is the definition of a kind that is not registered.
var noKind = &perdure.KindDef{}

// kindOf gives the effective definition of a kind for decisions, from the cache or from what is
// committed. It is shared: callers do not change it.
func kindOf(tx *Tx, t perdure.TenantID, kind string) (*perdure.KindDef, error) {
	def, _, err := lookUpKind(tx, t, kind, false)
	return def, err
}

// lookUpKind is kindOf, and tells whether the kind is registered. With fresh, a cached answer counts
// only if the kind is: another node may just have registered it.
func lookUpKind(tx *Tx, t perdure.TenantID, kind string, fresh bool) (*perdure.KindDef, bool, error) {
	at, ref := lookOf(tx), kindRef{t, kind}
	if k, ok := tx.e.kinds.peek(at, ref); ok && (k.known || !fresh) {
		return k.def, k.known, nil
	}
	k, err := tx.e.kinds.load(at, ref, func() (kindFacts, error) { return readKindFacts(tx, t, kind) })
	return k.def, k.known, err
}

// readKindFacts reads what decisions need of a kind.
func readKindFacts(tx *Tx, t perdure.TenantID, kind string) (kindFacts, error) {
	layers, err := tx.DB.Kinds.Layers(t, kind)
	if err != nil {
		return kindFacts{}, err
	}
	k := kindFacts{def: noKind, known: len(layers) > 0}
	if def, _ := mergeLayers(layers, nil); !def.Empty() {
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
func (e *Engine) forgetKind(t perdure.TenantID, kind string) {
	if t == store.PlatformKinds {
		e.kinds.forget()
		return
	}
	e.kinds.forget(kindRef{t, kind})
}

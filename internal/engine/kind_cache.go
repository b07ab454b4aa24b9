package engine

import (
	"encoding/json"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/store"
)

// KindTTL is how long a cached definition is used. Changes on this node take effect at once, those of
// other nodes within this time.
const KindTTL = time.Second

// maxCachedKinds bounds the cache. A full cache is cleared.
const maxCachedKinds = 4096

// kindCache caches the effective definitions of kinds, without descriptions and schemas; of
// signals it has the names. Every
// submission needs one, so in the common case it costs no query. A kind that is not registered is
// cached as well.
type kindCache struct {
	mu sync.Mutex
	// changes counts invalidations. A read that began before one does not fill the cache.
	changes int64
	known   map[kindRef]cachedKind
}

type kindRef struct {
	tenant perdure.TenantID
	kind   string
}

type cachedKind struct {
	until perdure.Instant
	def   *perdure.KindDef
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
	c, ref := &tx.e.kinds, kindRef{t, kind}
	c.mu.Lock()
	known, ok := c.known[ref]
	changes := c.changes
	c.mu.Unlock()
	if ok && tx.Now < known.until && (known.known || !fresh) {
		return known.def, known.known, nil
	}
	layers, err := tx.DB.Kinds.Layers(t, kind)
	if err != nil {
		return nil, false, err
	}
	known = cachedKind{until: tx.Now.Add(KindTTL), def: noKind, known: len(layers) > 0}
	if def, _ := mergeLayers(layers, nil); !def.Empty() {
		def.Description, def.InputSchema, def.OutputSchema = "", nil, nil
		names := make(map[string]json.RawMessage, len(def.Signals))
		for name := range def.Signals {
			names[name] = nil
		}
		def.Signals = names
		known.def = &def
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.changes == changes {
		if c.known == nil || len(c.known) >= maxCachedKinds {
			c.known = make(map[kindRef]cachedKind)
		}
		c.known[ref] = known
	}
	return known.def, known.known, nil
}

// forget drops a cached kind. A change of the platform's layer concerns every tenant.
func (c *kindCache) forget(t perdure.TenantID, kind string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changes++
	if t == store.PlatformKinds {
		clear(c.known)
		return
	}
	delete(c.known, kindRef{t, kind})
}

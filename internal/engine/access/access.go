package access

import (
	"sync"

	"github.com/perdure/perdure/internal/engine/kernel"
)

// state is what access keeps in an engine.
type state struct {
	sealKeys [][]byte
	// ring is the root secret.
	ring keyring
	// keys has the API keys that were looked up, by id. A key that another node revokes is valid here for
	// keyTTL, which docs/security.md promises.
	keys kernel.Cache[string, cachedKey]

	mu sync.Mutex
	// ownKeys are the keys of callers inside this process, by id; see Keys.MakeOwn.
	ownKeys map[string]cachedKey

	// gone are called with the id of a key that is no longer valid.
	gone []func(id string)
}

var part = kernel.NewPart[state]()

func of(e *kernel.Engine) *state { return part.Of(e) }

// Add adds this wing to an engine. The keys seal the root secret.
func Add(e *kernel.Engine, sealKeys [][]byte) {
	a := &state{sealKeys: sealKeys, ownKeys: make(map[string]cachedKey)}
	a.keys.TTL = keyTTL
	part.Set(e, a)
}

// OnKeyGone has f called with the id of each key that is no longer valid, once this node knows.
func OnKeyGone(e *kernel.Engine, f func(id string)) {
	a := of(e)
	a.gone = append(a.gone, f)
}

package httpd

import (
	"context"
	"sync"
	"time"

	"github.com/perdure/perdure/internal/engine"
)

// A keyring knows the keys of the streams and of the calls that block, and ends these when their key is revoked or expires.
type keyring struct {
	engine *engine.Engine
	every  time.Duration // how often the keys are looked at

	mu   sync.Mutex
	keys map[string]*held
	some chan struct{} // there is one to look at
}

type held struct {
	users int
	valid context.Context
	end   context.CancelFunc
}

// keysEvery is how often the keys of whoever is attached are looked at where other nodes revoke them too. Where none can, a ring tells
// of what is revoked, and looking finds what expires.
const keysEvery = 500 * time.Millisecond

// watch gives a context that ends when a key is no longer valid.
func (k *keyring) watch(id string) (valid context.Context, forget func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	h := k.keys[id]
	if h == nil {
		h = &held{}
		h.valid, h.end = context.WithCancel(context.Background())
		k.keys[id] = h
		select {
		case k.some <- struct{}{}:
		default:
		}
	}
	h.users++
	return h.valid, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if h.users--; h.users == 0 && k.keys[id] == h {
			delete(k.keys, id)
		}
	}
}

// run looks until the context ends, when it is rung and as long as there is something to look at. A store that can't be
// read says nothing about a key.
func (k *keyring) run(ctx context.Context, rung <-chan struct{}) {
	var next <-chan time.Time // nil: nothing is open
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.some:
			if next == nil {
				next = time.After(k.every)
			}
			continue
		case <-rung:
		case <-next:
		}
		k.mu.Lock()
		ids := make([]string, 0, len(k.keys))
		for id := range k.keys {
			ids = append(ids, id)
		}
		k.mu.Unlock()
		if next = nil; len(ids) == 0 {
			continue
		}
		next = time.After(k.every)
		gone, err := k.engine.Keys.Invalid(ctx, ids)
		if err != nil {
			continue
		}
		k.mu.Lock()
		for _, id := range gone {
			if h := k.keys[id]; h != nil {
				h.end()
				delete(k.keys, id)
			}
		}
		k.mu.Unlock()
	}
}

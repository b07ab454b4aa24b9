package httpd

import (
	"context"
	"sync"
	"time"

	"github.com/perdure/perdure/internal/server/engine"
)

// A keyWatcher ends the streams and the blocked calls of a key when the key is revoked or expires.
//
// Each call registers its key and gets a context. The watcher reads all registered keys in one
// query: when the doorbell rings for a revoked key, and at an interval, which finds keys that have
// expired or whose ring was lost. It cancels the contexts of those that are invalid.
type keyWatcher struct {
	engine *engine.Engine
	// every is the interval at which the keys are read while any is registered.
	every time.Duration

	mu   sync.Mutex
	keys map[string]*watchedKey
	// added is signalled when a key is registered.
	added chan struct{}
}

// A watchedKey is shared by the calls of a key.
type watchedKey struct {
	users int
	valid context.Context
	end   context.CancelFunc
}

// keyCheckEvery is the interval on a store that nodes share, where a ring may be lost. On other
// stores a ring tells of every revocation, and Options.Poll is enough to find keys that expire.
const keyCheckEvery = 500 * time.Millisecond

// watch registers a call of a key. The context ends when the key is no longer valid.
func (k *keyWatcher) watch(id string) (valid context.Context, forget func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	h := k.keys[id]
	if h == nil {
		h = &watchedKey{}
		h.valid, h.end = context.WithCancel(context.Background())
		k.keys[id] = h
		select {
		case k.added <- struct{}{}:
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

// run checks the keys until the context ends. If the store can't be read, the keys stay valid until
// the next check.
func (k *keyWatcher) run(ctx context.Context, rung <-chan struct{}) {
	// A key may have been revoked before this listened. Later next is nil while no key is registered.
	next := time.After(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.added:
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
		invalid, err := k.engine.Keys.Invalid(ctx, ids)
		if err != nil {
			continue
		}
		k.mu.Lock()
		for _, id := range invalid {
			if h := k.keys[id]; h != nil {
				h.end()
				delete(k.keys, id)
			}
		}
		k.mu.Unlock()
	}
}

package kernel

import (
	"sync"
	"time"

	"github.com/perdure/perdure"
)

// A Cache holds what was read from the store, so that decisions and readers need not read it again.
//
// One rule says what may be stale:
//
//   - A value is used until its time is over: ttl after it was read.
//   - What this node changes counts at once: the change calls forget when it is durable. A read that began
//     before that does not fill the cache.
//   - What another node changes counts after ttl. Decisions that were made before are written within
//     store.MaxAge, or made again.
//   - A reader uses what is cached, and fills nothing that decisions go by: its snapshot may be older than a
//     change that was made meanwhile.
//   - A batch that is decided again uses only values that were read since its first try. A stale one may
//     have caused the conflict.
//
// It is bounded. A full cache is cleared, which costs one look-up for each entry.
//
// Each user says beside its field why it may be stale.
type Cache[K comparable, V any] struct {
	// ttl is how long a value is used. Zero: until it is forgotten.
	TTL time.Duration
	// most bounds the entries. Zero: MaxKnown.
	Most int

	mu sync.Mutex
	// changes counts calls of forget.
	changes int64
	known   map[K]cached[V]
}

// MaxKnown bounds a cache that has no bound of its own.
const MaxKnown = 10000

// cached is a value, when its time is over, and the number of the batch that read it.
type cached[V any] struct {
	value V
	until perdure.Instant
	by    int64
}

// A Look says when something is looked up, and by which batch. The zero number is a reader's.
type Look struct {
	Now    perdure.Instant
	number int64
	// again is set if the batch is decided again.
	again bool
	// reader is set if the read comes from a snapshot that may have been there before the look.
	Reader bool
}

// Peek gives a value without reading it.
func (c *Cache[K, V]) Peek(at Look, key K) (v V, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	x, ok := c.known[key]
	// A clock that was set back makes no value last longer.
	over := c.TTL != 0 && (at.Now >= x.until || x.until.Sub(at.Now) > c.TTL)
	if !ok || over || at.again && x.by < at.number {
		return v, false
	}
	return x.value, true
}

// ReadBy tells whether the batch has read the cached value itself. A batch begins after the calls whose
// operations are in it, so what they have seen is in such a value.
func (c *Cache[K, V]) ReadBy(at Look, key K) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	x, ok := c.known[key]
	return ok && at.number != 0 && x.by == at.number
}

// Last gives a value whose time may be over, and since when it is.
func (c *Cache[K, V]) Last(key K) (v V, since perdure.Instant, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	x, ok := c.known[key]
	return x.value, x.until, ok
}

// Get gives a value, and reads it if need be.
func (c *Cache[K, V]) Get(at Look, key K, read func() (V, error)) (V, error) {
	if v, ok := c.Peek(at, key); ok {
		return v, nil
	}
	return c.Load(at, key, read)
}

// Load reads a value, whatever is cached.
func (c *Cache[K, V]) Load(at Look, key K, read func() (V, error)) (V, error) {
	begun := c.Begin()
	v, err := read()
	if err == nil && !at.Reader {
		c.Fill(at, key, v, begun)
	}
	return v, err
}

// Begin is to be called before a value is read, for fill.
func (c *Cache[K, V]) Begin() (begun int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changes
}

// Fill stores a value, unless something was forgotten since begin.
func (c *Cache[K, V]) Fill(at Look, key K, v V, begun int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.changes != begun {
		return
	}
	most := c.Most
	if most == 0 {
		most = MaxKnown
	}
	if c.known == nil || len(c.known) >= most {
		c.known = make(map[K]cached[V])
	}
	c.known[key] = cached[V]{v, at.Now.Add(c.TTL), at.number}
}

// Put stores a value that this node has just written.
func (c *Cache[K, V]) Put(now perdure.Instant, key K, v V) { c.Fill(Look{Now: now}, key, v, c.Begin()) }

// Forget drops values. None named: all.
func (c *Cache[K, V]) Forget(keys ...K) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changes++
	if len(keys) == 0 {
		c.known = nil
	}
	for _, k := range keys {
		delete(c.known, k)
	}
}

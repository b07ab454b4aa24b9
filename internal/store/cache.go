package store

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure"
)

// How many runs are remembered at least, and how large one may be.
const (
	cacheSize     = 8192
	maxRemembered = 4 << 10
)

// A cache remembers live runs as this process has last written them, so that they need not be read before the
// next change. It is never believed: a run that a batch takes from it is either written, which holds only for the
// version that was remembered, or has its version looked up before anybody is answered.
type cache struct {
	doubted atomic.Int64 // until when it is not used: others change what is remembered here
	misses  atomic.Bool  // hardly anything of what was last claimed was here

	mu         sync.Mutex
	young, old map[runKey]perdure.Run
}

// get gives a live run. Of those that have ended only that is remembered, so that nobody who is late to say so brings
// them back.
func (c *cache) get(k runKey) (perdure.Run, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.known(k)
	return r, r.State.Live()
}

func (c *cache) has(k runKey) bool {
	_, ok := c.get(k)
	return ok
}

func (c *cache) put(k runKey, r perdure.Run) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known(k).Version >= r.Version { // another lane was quicker to say so
		return
	}
	if len(c.young) >= cacheSize || c.young == nil {
		c.young, c.old = make(map[runKey]perdure.Run, cacheSize), c.young
	}
	c.young[k] = r
}

// known is what is remembered of a run, which may have ended. The caller holds c.mu.
func (c *cache) known(k runKey) perdure.Run {
	if r, ok := c.young[k]; ok {
		return r
	}
	return c.old[k]
}

// clear forgets everything.
func (c *cache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.young, c.old = nil, nil
}

// drop forgets a run that lives. That one has ended is final, and stays remembered.
func (c *cache) drop(k runKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known(k).State.Terminal() {
		return
	}
	delete(c.young, k)
	delete(c.old, k)
}

// recall takes a run from the cache into the batch.
func (tx *Tx) recall(k runKey) bool {
	if tx.cache == nil {
		return false
	}
	r, ok := tx.cache.get(k)
	if !ok {
		return false
	}
	tx.runs.absorb(k, r, true)
	tx.read[k] = r.Version
	tx.cached = append(tx.cached, k)
	return true
}

// verify looks up the versions of those runs that the batch remembered and does not write.
func (tx *Tx) verify() error {
	byTenant := make(map[perdure.TenantID][]string)
	for _, k := range tx.cached {
		if !tx.runs.slots[k].dirty {
			byTenant[k.t] = append(byTenant[k.t], string(k.r))
		}
	}
	for _, t := range slices.Sorted(maps.Keys(byTenant)) {
		ids, same := byTenant[t], 0
		err := eachPart(tx.s.dialect, ids, func(part []string) error {
			given, args := tx.s.dialect.keyed("runs", []string{"tenant", "id"}, []string{string(t)}, part)
			return tx.sess.Query("SELECT id, version FROM runs "+given, args, func(scan func(...any) error) error {
				k, version := runKey{t: t}, int64(0)
				if err := scan(&k.r, &version); err != nil {
					return err
				}
				if version == tx.read[k] {
					same++
				}
				return nil
			})
		})
		if err != nil {
			return err
		}
		if same != len(ids) {
			return errConflict
		}
	}
	return nil
}

// remember puts what the batch has written into the cache.
func (tx *Tx) remember() {
	c := &tx.s.cache
	tx.eachDirty(func(k runKey, r *perdure.Run) {
		switch {
		case r.State.Terminal():
			c.put(k, perdure.Run{Version: r.Version, State: r.State})
		case len(r.Input)+len(r.Result)+len(r.Progress)+len(r.Metadata)+len(r.LastCommit.Answer) <= maxRemembered:
			c.put(k, *r)
		default:
			c.drop(k)
		}
	})
}

// Live tells that a run had not ended when it was last written. It looks at what is remembered and reads nothing: where
// other nodes write too, or the run is not remembered, it says false, and that means nothing.
func (s *Store) Live(t perdure.TenantID, id perdure.RunID) bool {
	return !s.Shared() && s.cache.has(runKey{t, id})
}

// trusted gives the cache, unless it misled a batch a moment ago: where other nodes change the same runs, remembering
// them costs more than it saves.
func (s *Store) trusted() *cache {
	if time.Now().UnixNano() < s.cache.doubted.Load() {
		return nil
	}
	return &s.cache
}

// forget drops what a batch that was not written has taken from the cache.
func (tx *Tx) forget() {
	if len(tx.cached) > 0 && !tx.s.dialect.ownClock && tx.s.opt.Hooks.Clock == nil { // a test's time is not ours
		tx.s.cache.doubted.Store(time.Now().Add(time.Second).UnixNano())
	}
	for _, k := range tx.cached {
		tx.s.cache.drop(k)
	}
}

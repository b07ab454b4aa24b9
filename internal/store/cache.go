package store

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure"
)

// How many runs are remembered at least, how large one may be, and how many names of what it said.
const (
	cacheSize     = 8192
	maxRemembered = 4 << 10
	maxSaid       = 64
)

// A cache remembers runs as this process has last written them, so that they need not be read before the
// next change. It is never believed: a run that a batch takes from it is either written, which holds only for the
// version that was remembered, or has its version looked up before anybody is answered.
type cache struct {
	doubted atomic.Int64 // until when it is not used: others change what is remembered here
	misses  atomic.Bool  // hardly anything of what was last claimed was here

	mu         sync.Mutex
	young, old map[runKey]memory
}

// A memory is a run, and what it has said.
type memory struct {
	perdure.Run
	said *said
}

// said names the commits and the steps of a run that are in the database: those that it does not name are not. It is
// known of runs that this process has seen from their birth, as long as it is not much; nil: not known.
type said struct {
	commits, steps []string
}

// get gives a live run. One that has ended stays, so that nobody who is late to say so brings it back.
func (c *cache) get(k runKey) (perdure.Run, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.known(k).Run
	return r, r.State.Live()
}

func (c *cache) has(k runKey) bool {
	_, ok := c.get(k)
	return ok
}

func (c *cache) put(k runKey, m memory) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known(k).Version >= m.Version { // another lane was quicker to say so
		return
	}
	if len(c.young) >= cacheSize || c.young == nil {
		c.young, c.old = make(map[runKey]memory, cacheSize), c.young
	}
	c.young[k] = m
}

// said gives what a run of that version had said, if it is known.
func (c *cache) said(k runKey, version int64) *said {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.known(k); m.Version == version {
		return m.said
	}
	return nil
}

// known is what is remembered of a run, which may have ended. The caller holds c.mu.
func (c *cache) known(k runKey) memory {
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

// Afresh has everything read from here on: who only looks through what others are busy with is not held to what was
// remembered of it, and decided again because they go on.
func (tx *Tx) Afresh() { tx.cache = nil }

// recall takes a run from the cache into the batch.
func (repo *Runs) recall(k runKey) bool {
	tx := repo.in.tx
	if tx == nil || tx.cache == nil {
		return false
	}
	r, ok := tx.cache.get(k)
	if !ok {
		return false
	}
	repo.rows.absorb(k, r, true)
	repo.noteVersion(k, r.Version)
	tx.cached = append(tx.cached, k)
	return true
}

// verify looks up the versions of those runs that the batch does not write, and that it remembered or refused something about:
// what a refusal went by was perhaps read while somebody else changed it.
func (tx *Tx) verify() error {
	byTenant := make(map[perdure.TenantID][]string)
	seen := make(map[runKey]bool)
	for _, k := range slices.Concat(tx.cached, tx.judged) {
		if _, read := tx.Runs.read[k]; read && !seen[k] && !tx.Runs.rows.byKey[k].dirty {
			seen[k] = true
			byTenant[k.t] = append(byTenant[k.t], string(k.r))
		}
	}
	for _, t := range slices.Sorted(maps.Keys(byTenant)) {
		ids, same := byTenant[t], 0
		err := eachPart(tx.dialect, ids, func(part []string) error {
			given, args := tx.dialect.keyed("runs", []string{"tenant", "id"}, []string{string(t)}, part)
			return tx.sess.Query("SELECT id, version FROM runs "+given, args, func(scan func(...any) error) error {
				k, version := runKey{t: t}, int64(0)
				if err := scan(&k.r, nullable[int64]{&version}); err != nil {
					return err
				}
				if version == tx.Runs.read[k] {
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
	more := make(map[runKey]*said)
	of := func(k runKey) *said {
		if more[k] == nil {
			more[k] = new(said)
		}
		return more[k]
	}
	for _, k := range tx.Commits.rows.dirty {
		x := of(k.runKey)
		x.commits = append(x.commits, k.id)
	}
	for _, k := range tx.Journal.rows.dirty {
		x := of(k.runKey)
		x.steps = append(x.steps, k.key)
	}
	tx.Runs.eachChanged(func(k runKey, r *perdure.Run) {
		small := len(r.Input)+len(r.Result)+len(r.Progress)+len(r.Metadata)+len(r.LastCommit.Answer)+len(r.Fallback) <= maxRemembered
		switch {
		case small && r.State.Terminal():
			c.put(k, memory{Run: *r})
		case small:
			c.put(k, memory{*r, tx.saidSince(k, more[k])})
		case r.State.Terminal():
			c.put(k, memory{Run: perdure.Run{Version: r.Version, State: r.State}})
		default:
			c.drop(k)
		}
	})
}

// saidSince gives what a run has said when the batch is written, which adds more.
func (tx *Tx) saidSince(k runKey, more *said) *said {
	before := new(said)
	if version, ok := tx.Runs.read[k]; ok {
		before = tx.s.cache.said(k, version)
	}
	switch {
	case before == nil || more == nil:
		return before
	case len(before.commits)+len(before.steps)+len(more.commits)+len(more.steps) > maxSaid:
		return nil
	}
	return &said{slices.Concat(before.commits, more.commits), slices.Concat(before.steps, more.steps)}
}

// Live tells that a run had not ended when it was last written. It looks at what is remembered and reads nothing: where
// other nodes write too, or the run is not remembered, it says false, and that means nothing.
func (s *Store) Live(t perdure.TenantID, id perdure.RunID) bool {
	return !s.Shared() && s.cache.has(runKey{t, id})
}

// Ended gives a run that has ended as it was last written, if that is remembered, and nobody else can have changed it.
func (s *Store) Ended(t perdure.TenantID, id perdure.RunID) (perdure.Run, bool) {
	if s.Shared() {
		return perdure.Run{}, false
	}
	s.cache.mu.Lock()
	defer s.cache.mu.Unlock()
	r := s.cache.known(runKey{t, id}).Run
	return r, r.ID != "" && r.State.Terminal()
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
	if len(tx.cached) > 0 && !tx.dialect.ownClock && tx.s.opt.Hooks.Clock == nil { // a test's time is not ours
		tx.s.cache.doubted.Store(time.Now().Add(time.Second).UnixNano())
	}
	for _, k := range tx.cached {
		tx.s.cache.drop(k)
	}
}

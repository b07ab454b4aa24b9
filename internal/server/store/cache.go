package store

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure"
)

// The cache of runs.
//
// A run changes several times in a row: granted, heartbeats, commits, ended. The cache keeps runs
// as this process has last written them, so that the next change need not read them.
//
// The cache is never trusted. A batch that writes a cached run updates it only if the row still has
// the cached version. A cached run that the batch does not write has its version verified before
// any operation is answered. If a version differs, the runs are dropped from the cache and the
// batch is decided again without it. Where other nodes change the same runs, the cache is not used
// for a second after that.
//
// Entries are in two generations. When young has cacheSize entries, it replaces old. So at least
// the last cacheSize runs are kept, without bookkeeping per access. An ended run stays as an entry,
// so that a lane that is late with an older version can't bring it back.
//
// For runs that this process has created, the cache also knows which commits and steps are stored
// (recorded). A lookup of one that is not among them needs no query.

// cacheSize is the number of runs in a generation, maxRemembered the maximal size of a run, and
// maxRecorded the maximal number of its recorded names.
const (
	cacheSize     = 8192
	maxRemembered = 4 << 10
	maxRecorded   = 64
)

// A cache keeps runs as this process has last written them.
type cache struct {
	doubted atomic.Int64 // until when the cache is not used
	misses  atomic.Bool  // the last page of claims had few cached runs

	floor *atomic.Int64 // of the store: it changes when another server takes the place of the database's

	mu         sync.Mutex
	young, old map[runKey]cachedRun
}

// A cachedRun is a run, and its recorded names.
type cachedRun struct {
	perdure.Run
	recorded *recorded
}

// recorded has the ids of all commits and the keys of all steps of a run that are in the database.
// It is nil if they are not known: the run is not from this process, or has too many.
type recorded struct {
	commits, steps []string
}

// get gives a live run.
func (c *cache) get(k runKey) (perdure.Run, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.known(k).Run
	return r, r.State.Live()
}

// has tells whether a live run is cached.
func (c *cache) has(k runKey) bool {
	_, ok := c.get(k)
	return ok
}

// put adds a run that was written under a floor, unless the cache has it in this version or a newer
// one. A run that a replaced server has stored may be lost, and its version be used again.
func (c *cache) put(k runKey, m cachedRun, floor int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.floor != nil && c.floor.Load() != floor {
		return
	}
	if c.known(k).Version >= m.Version { // another lane has put a newer version
		return
	}
	if len(c.young) >= cacheSize || c.young == nil {
		c.young, c.old = make(map[runKey]cachedRun, cacheSize), c.young
	}
	c.young[k] = m
}

// recorded gives the recorded names of a run in that version, or nil.
func (c *cache) recorded(k runKey, version int64) *recorded {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.known(k); m.Version == version {
		return m.recorded
	}
	return nil
}

// known gives the entry of a run, which may have ended. The caller holds c.mu.
func (c *cache) known(k runKey) cachedRun {
	if r, ok := c.young[k]; ok {
		return r
	}
	return c.old[k]
}

// clear removes all entries.
func (c *cache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.young, c.old = nil, nil
}

// drop removes a live run. An ended run stays ended, and so does its entry.
func (c *cache) drop(k runKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known(k).State.Terminal() {
		return
	}
	delete(c.young, k)
	delete(c.old, k)
}

// BypassCache makes the batch read runs from the database from here on. It is for operations that
// examine many runs without changing them: with cached runs they would conflict whenever one of
// these changes.
func (tx *Tx) BypassCache() { tx.cache = nil }

// recall takes a run from the cache into the batch, if it is there.
func (repo *Runs) recall(k runKey) bool {
	tx := repo.in.tx
	if tx == nil || tx.cache == nil {
		return false
	}
	r, ok := tx.cache.get(k)
	if !ok {
		return false
	}
	absorbRow(&repo.rows, k, r, true)
	repo.noteRead(k, &r)
	tx.cached = append(tx.cached, k)
	return true
}

// verify checks the versions of runs that the batch does not write, if they came from the cache or
// a refused operation was about them. The records behind a refusal may have been read while another
// writer changed the run.
func (tx *Tx) verify() error {
	byTenant := make(map[perdure.TenantID][]string)
	seen := make(map[runKey]bool)
	for _, k := range slices.Concat(tx.cached, tx.refused) {
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

// remember puts the runs that the batch has written into the cache.
func (tx *Tx) remember() {
	c := &tx.s.cache
	more := make(map[runKey]*recorded)
	of := func(k runKey) *recorded {
		if more[k] == nil {
			more[k] = new(recorded)
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
		small := len(r.Input)+len(r.Result)+len(r.Progress)+len(r.Metadata)+len(r.LastCommit.Answer)+
			len(r.Fallback) <= maxRemembered
		switch {
		case small && r.State.Terminal():
			c.put(k, cachedRun{Run: *r}, tx.floor)
		case small:
			c.put(k, cachedRun{*r, tx.recordedAfter(k, more[k])}, tx.floor)
		case r.State.Terminal():
			c.put(k, cachedRun{Run: perdure.Run{Version: r.Version, State: r.State}}, tx.floor)
		default:
			c.drop(k)
		}
	})
}

// recordedAfter gives the recorded names of a run after this batch, which adds more.
func (tx *Tx) recordedAfter(k runKey, more *recorded) *recorded {
	before := new(recorded)
	if version, ok := tx.Runs.read[k]; ok {
		before = tx.s.cache.recorded(k, version)
	}
	switch {
	case before == nil || more == nil:
		return before
	case len(before.commits)+len(before.steps)+len(more.commits)+len(more.steps) > maxRecorded:
		return nil
	}
	return &recorded{slices.Concat(before.commits, more.commits), slices.Concat(before.steps, more.steps)}
}

// Live tells whether a run was live when this process last wrote it. It reads nothing. Another node
// may have ended the run since. If the run is not cached, it gives false, which means nothing.
func (s *Store) Live(t perdure.TenantID, id perdure.RunID) bool { return s.cache.has(runKey{t, id}) }

// Ended gives an ended run from the cache. Ends are final, so it holds with other nodes too.
func (s *Store) Ended(t perdure.TenantID, id perdure.RunID) (perdure.Run, bool) {
	s.cache.mu.Lock()
	defer s.cache.mu.Unlock()
	r := s.cache.known(runKey{t, id}).Run
	return r, r.ID != "" && r.State.Terminal()
}

// trusted gives the cache, or nil if it has just caused a conflict. Where other nodes change the
// same runs, the cache costs more than it saves.
func (s *Store) trusted() *cache {
	if time.Now().UnixNano() < s.cache.doubted.Load() {
		return nil
	}
	return &s.cache
}

// drop tells the operations that the batch is not written as it was decided.
func (tx *Tx) drop() {
	for _, f := range tx.dropped {
		f()
	}
}

// forget drops the cached runs of a batch that was not written.
func (tx *Tx) forget() {
	tx.drop()
	// A test's clock says nothing about real time.
	if len(tx.cached) > 0 && !tx.dialect.ownClock && tx.s.opt.Hooks.Clock == nil {
		tx.s.cache.doubted.Store(time.Now().Add(time.Second).UnixNano())
	}
	for _, k := range tx.cached {
		tx.s.cache.drop(k)
	}
}

package doors

import (
	"crypto/sha256"
	"sync"
	"time"
)

// A call that starts a run first looks whether there is such a kind, and whether the caller may see it. To
// read a kind the API reads its builds, pauses and workers, which takes as long as to start the run. So the
// answer is remembered for a short time. Only a yes is: a kind that has just been announced is there at once.
// One that was deleted meanwhile is taken as the API takes it, which accepts runs of kinds that nobody knows.

const (
	knownFor = 5 * time.Second
	maxKnown = 1000
	// maxKnownID is the longest id of a kind that is remembered.
	maxKnownID = 200
)

// known remembers the kinds that callers may see.
type known struct {
	mu    sync.Mutex
	kinds map[knownID]knownKind
}

// A knownID is what a caller calls a kind, with the digest of the caller's key.
type knownID struct {
	key [sha256.Size]byte
	id  string
}

type knownKind struct {
	name  string
	until time.Time
}

// KindOf returns the name of the kind that a caller calls id. It asks find if it does not remember it.
func (c *Call) KindOf(id string, find func() (string, error)) (string, error) {
	k, now := knownID{sha256.Sum256([]byte(c.Key)), id}, time.Now()
	c.set.known.mu.Lock()
	has, ok := c.set.known.kinds[k]
	c.set.known.mu.Unlock()
	if ok && now.Before(has.until) {
		return has.name, nil
	}
	name, err := find()
	if err != nil || len(id) > maxKnownID {
		return name, err
	}
	c.set.known.mu.Lock()
	defer c.set.known.mu.Unlock()
	if c.set.known.kinds == nil || len(c.set.known.kinds) >= maxKnown {
		c.set.known.kinds = make(map[knownID]knownKind)
	}
	c.set.known.kinds[k] = knownKind{name, now.Add(knownFor)}
	return name, nil
}

package lossfs

import (
	"math/rand/v2"
)

// A fate decides which of the changes that were not synced a power loss lets survive. A disk may keep any
// of them, so each of these happens:
//
//   - nothing survives;
//   - everything does;
//   - what was changed first, with the last write torn between two sectors: a disk that writes in order;
//   - any sector of any write, and any name, each by itself: a disk that writes as it likes.
type fate struct {
	rng    *rand.Rand
	kind   int
	sector int64
	cut    uint64  // in order: the change at which it stops
	share  float64 // scattered: how much survives
}

const (
	nothing = iota
	everything
	inOrder
	scattered
	fates
)

func newFate(seed, changes uint64) *fate {
	rng := rand.New(rand.NewPCG(seed, 0))
	f := &fate{rng: rng, kind: rng.IntN(fates), sector: 512, share: rng.Float64()}
	if rng.IntN(2) == 0 {
		f.sector = 4096
	}
	// Where it stops is told by its distance from the end: the last changes are the ones that are not synced.
	f.cut = changes - min(changes, uint64(rng.IntN(1+rng.IntN(256))))
	return f
}

// survives tells it of a change that is made whole or not at all.
func (f *fate) survives(order uint64) bool {
	switch f.kind {
	case everything:
		return true
	case inOrder:
		return order < f.cut
	case scattered:
		return f.rng.Float64() < f.share
	}
	return false
}

// apply gives the content of a file after as much of a change as survives.
func (f *fate) apply(content []byte, c *change) []byte {
	torn := f.kind == scattered || f.kind == inOrder && c.order == f.cut
	if c.bytes == nil || !torn {
		if f.survives(c.order) {
			content = c.apply(content)
		}
		return content
	}
	for at := int64(0); at < int64(len(c.bytes)); {
		end := min(int64(len(c.bytes)), at+f.sector-(c.off+at)%f.sector)
		keep := f.rng.IntN(2) == 0
		if f.kind == scattered {
			keep = f.rng.Float64() < f.share
		} else if !keep {
			return content // in order within the write too
		}
		if keep {
			content = (&change{0, c.off + at, c.bytes[at:end]}).apply(content)
		}
		at = end
	}
	return content
}

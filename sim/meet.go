package sim

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/testkit/pairs"
)

// Pairs of features.
//
// After every write of a run the detector of package pairs decides which features are in force on it.
// The report counts the pairs that were in force together, by the order in which they came. That reads
// the store and draws nothing, so the history of a seed does not depend on it.

// meetings is what the simulator knows of a run's features.
type meetings struct {
	history pairs.History
	facts   pairs.Facts
	// starts counts the starts of servers when the run was made.
	starts int
	// revoked counts the revoked keys when the run was made.
	revoked int
	// by has a bit for each node that has written the run.
	by int
	// stoodBy is the epoch that was granted to a poll that stood by.
	stoodBy int64
}

// meet notes which features are in force on a run that a node has written. n is nil if it is not known
// which.
func (s *sim) meet(v *store.View, n *node, r *row) error {
	m := r.met
	if m == nil {
		m = &meetings{starts: s.starts(), revoked: s.revoked}
		r.met = m
	}
	for i, x := range s.nodes {
		if x == n {
			m.by |= 1 << i
		}
	}
	var err error
	if m.facts, err = pairs.Read(v, &r.Run); err != nil {
		return err
	}
	s.meetAgain(r)
	return nil
}

// meetAgain decides once more about a run, whose surroundings may have changed.
func (s *sim) meetAgain(r *row) {
	m := r.met
	f := &m.facts
	f.Run, f.Nodes = &r.Run, m.by&1+m.by>>1
	f.Restarted, f.KeyRevoked = s.starts() > m.starts, s.revoked > m.revoked
	f.StoodBy = r.State.Leased() && m.stoodBy == r.Epoch
	f.Paused = s.pauses.holds(r.Queue)
	for _, p := range m.history.Observe(pairs.Detect(f)) {
		s.pairs[p]++
	}
}

// meetAll decides once more about all live runs.
func (s *sim) meetAll() {
	for _, id := range s.model.order {
		if r := s.model.rows[id]; r.State.Live() && r.met != nil {
			s.meetAgain(r)
		}
	}
}

// starts counts the starts of servers.
func (s *sim) starts() (n int) {
	for _, x := range s.nodes {
		n += x.gen
	}
	return n
}

// holds tells whether a queue is paused.
func (p *pauses) holds(queue string) bool {
	if p == nil {
		return false
	}
	x := p.known[queue]
	return x != nil && x.Holds(p.latest)
}

// stoodBy notes that runs were granted to a poll that stood by.
func (s *sim) stoodBy(runs []perdure.Run) {
	for i := range runs {
		if r := s.model.rows[runs[i].ID]; r != nil && r.met != nil {
			r.met.stoodBy = runs[i].Epoch
			s.meetAgain(r)
		}
	}
}

package dispatch

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/doorbell"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/plant"
	"github.com/perdure/perdure/internal/server/store"
)

// Polls that stand by.
//
// A poll that has found nothing stands by. A batch that makes runs claimable then grants them to such
// polls itself, so that a run is accepted and leased in one transaction: that saves a sync of the
// disk, and the search. Batches in which this fails, and runs that no poll on this node stands by
// for, ring the queue's doorbell.
//
// Only new, small runs are handed over in this way: those whose grant needs no reads and no memory to
// speak of. A standing poll has visited its queues in vain, so that no run is passed over.

// Bounds of what a standing poll gets in one batch. Its answer needs no reserved memory.
const (
	handOverInput = 8 << 10
	handOverBytes = 48 << 10
	// maxStandbyTopics bounds the pairs of a queue and a kind of a standing poll.
	maxStandbyTopics = 64
)

// A Standby is a poll that stands by.
type Standby struct {
	e  *kernel.Engine
	op Claim
	// topics are those under which it is registered.
	topics []doorbell.Topic
	// settled is closed when op.Grants is final.
	settled chan struct{}

	// The registry's lock guards these.
	taken     bool // by a batch that is being decided or written
	withdrawn bool
	done      bool
}

// standbys are the polls that stand by on this node, the one that has waited longest first, by the
// topics that they listen to.
type standbys struct {
	n       atomic.Int64
	mu      sync.Mutex
	byTopic map[doorbell.Topic][]*Standby
}

var standing = kernel.NewPart(func(*kernel.Engine) *standbys { return &standbys{} })

// StandBy has a poll that found nothing wait for runs. A poll with very many topics gets none: it
// waits for the doorbell.
func StandBy(e *kernel.Engine, op *Claim) *Standby {
	s := &Standby{e: e, op: *op, topics: op.Topics(), settled: make(chan struct{})}
	s.op.Grants = nil
	if len(s.topics) > maxStandbyTopics {
		s.topics = nil
	}
	r := standing.Of(e)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byTopic == nil {
		r.byTopic = make(map[doorbell.Topic][]*Standby)
	}
	for _, t := range s.topics {
		r.byTopic[t] = append(r.byTopic[t], s)
	}
	r.n.Add(1)
	return s
}

// Settled is closed when a batch has granted runs to the poll and is durable, or when its key was
// revoked.
func (s *Standby) Settled() <-chan struct{} { return s.settled }

// End ends the wait and gives the runs that were granted during it. If a batch is just granting some,
// End waits for it.
func (s *Standby) End() []Grant {
	r := standing.Of(s.e)
	r.mu.Lock()
	s.withdrawn = true
	if !s.taken && !s.done {
		r.settle(s)
	}
	r.mu.Unlock()
	<-s.settled
	return s.op.Grants
}

// withdraw ends the polls of a key that is no longer valid.
func (r *standbys) withdraw(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []*Standby
	for _, list := range r.byTopic {
		all = append(all, list...)
	}
	for _, s := range all {
		if s.op.Key != key || s.withdrawn {
			continue
		}
		if s.withdrawn = true; !s.taken && !s.done {
			r.settle(s)
		}
	}
}

// settle removes a poll. The caller holds the lock.
func (r *standbys) settle(s *Standby) {
	for _, t := range s.topics {
		list := slices.DeleteFunc(r.byTopic[t], func(x *Standby) bool { return x == s })
		if r.byTopic[t] = list; len(list) == 0 {
			delete(r.byTopic, t)
		}
	}
	r.n.Add(-1)
	s.done = true
	close(s.settled)
}

// take reserves a poll that stands by for a run, for one batch. It gives nil if there is none.
func (r *standbys) take(run *perdure.Run, now perdure.Instant) *Standby {
	t := doorbell.Queue(run.Tenant, run.Queue)
	all := doorbell.Queue("", run.Queue)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, topic := range []doorbell.Topic{t, t.Of(run.Kind), all, all.Of(run.Kind)} {
		for _, s := range r.byTopic[topic] {
			if !s.taken && !s.withdrawn && (s.op.KeyExpires == 0 || now < s.op.KeyExpires) {
				s.taken = true
				return s
			}
		}
	}
	return nil
}

// giveBack ends the reservation of a batch. Polls that were granted runs are settled, unless the
// batch was dropped.
func (r *standbys) giveBack(list []*Standby, dropped bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range list {
		if s.taken = false; dropped && !plant.Is("lost-grants-handed-over") {
			s.op.Grants = nil
		}
		if len(s.op.Grants) > 0 || s.withdrawn {
			r.settle(s)
		}
	}
}

// A handOver grants the runs that a batch has made claimable to polls that stand by. It is the last
// operation of the batch.
type handOver struct {
	e *kernel.Engine
	// done is set when left is final.
	done bool
	// left are the topics of runs that nobody got.
	left map[doorbell.Topic]bool

	taken []*Standby
	// room is how many more bytes each poll gets.
	room map[*Standby]int
}

// handOvers has the operation that grants the runs which an operation has made claimable.
var handOvers = kernel.NewScratch[struct{ op *handOver }]()

func (*handOver) Needs() []store.Ref { return nil }

// rings tells whether the doorbell of a run that became claimable has to ring.
func (h *handOver) rings(t doorbell.Topic) bool { return h == nil || !h.done || h.left[t] }

// Do grants runs.
func (h *handOver) Do(tx *kernel.Tx) error {
	h.taken, h.room = nil, make(map[*Standby]int)
	tx.DB.Dropped(func() {
		h.done = false
		standing.Of(h.e).giveBack(h.taken, true)
	})
	tx.DB.After(func() { standing.Of(h.e).giveBack(h.taken, false) })
	ready := tx.DB.Claims.Changed()
	slices.SortStableFunc(ready, func(a, b perdure.Run) int {
		return store.ClaimOrder(store.ClaimableOf(&a), store.ClaimableOf(&b))
	})
	h.left = make(map[doorbell.Topic]bool)
	for _, r := range ready {
		granted, err := h.grant(tx, r)
		if err != nil {
			return err
		}
		if !granted {
			h.left[doorbell.Queue(r.Tenant, r.Queue).Of(r.Kind)] = true
		}
	}
	h.done = true
	return nil
}

// grant grants a run to the next poll that stands by for it and has room. Polls take turns.
func (h *handOver) grant(tx *kernel.Tx, r perdure.Run) (bool, error) {
	if _, _, ref := r.Input.Ref(); ref || len(r.Input) > handOverInput || r.JournalSeq > 0 || r.InboxOpen > 0 {
		return false, nil
	}
	c, err := conditionsOf(tx, r.Tenant)
	if err != nil {
		return false, err
	}
	why := c.grantable(&r, "")
	if c.err != nil || why != nil && why.Reason == perdure.WaitingLimit {
		return true, c.holdBack(tx, &r, why)
	}
	if why != nil && !plant.Is("handed-over-though-paused") {
		// Nobody is woken for a run that may not be granted. But polls are told of a missing signing key.
		return why.Reason != perdure.WaitingNoSigner, nil
	}
	if s := standing.Of(h.e).take(&r, tx.Now); s != nil {
		h.taken, h.room[s] = slices.Insert(h.taken, 0, s), handOverBytes
	}
	need := grantOverhead + len(r.Input)
	i := slices.IndexFunc(h.taken, func(s *Standby) bool {
		return s.op.wants(&r) && len(s.op.Grants) < s.op.Slots && h.room[s] >= need
	})
	if i < 0 {
		return false, nil
	}
	s := h.taken[i]
	g, ok, err := s.op.grant(tx, r)
	if err != nil || !ok {
		return false, err
	}
	s.op.Grants, h.room[s] = append(s.op.Grants, g), h.room[s]-need
	h.taken = append(slices.Delete(h.taken, i, i+1), s)
	return true, nil
}

package engine

import (
	"slices"
	"sync"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/doorbell"
	"github.com/perdure/perdure/internal/store"
)

// How a poll finds runs.
//
// A place is a queue and a kind of a tenant. A poll visits its places in rounds. A round takes some
// tenants and, of each of their queues, some kinds. It reads only the claim keys of the next runs
// of these places. A tenant's runs come in claim order, whichever place they are in. Tenants take
// turns: one run of each, then the next of each.
//
// The places of a round and of a poll are bounded. If a queue has more kinds, or the store more
// tenants, than a poll visits, the next poll begins behind them. The engine holds one cursor for
// all polls (pollCursors).
const (
	maxPlaces  = 1000 // places of one poll
	maxKinds   = 64   // kinds of a queue in one round, of a poll that names none
	maxTenants = 64   // tenants of one round
)

// A search is the state of one poll's search for runs.
type search struct {
	op *Claim
	tx *Tx

	tenants roundRobin[perdure.TenantID]
	// first is the first tenant that was visited.
	first perdure.TenantID
	round []*walk
	// walks are those of all rounds.
	walks []*walk
	// visited counts the places.
	visited int
}

// A walk goes through places of one tenant in claim order.
type walk struct {
	tenant perdure.TenantID
	places []*place
	// kinds has an entry for each queue, if the poll names no kinds.
	kinds []*kindsOf
	over  bool
}

// A place is a queue and a kind of a tenant, with the run that is next there.
type place struct {
	*store.ClaimQueue
	topic doorbell.Topic
	head  perdure.Run
	over  bool
}

// kindsOf goes through the kinds of a queue that have a claimable run.
type kindsOf struct {
	queue string
	roundRobin[string]
}

// begin prepares the first round.
func (op *Claim) begin(tx *Tx) *search {
	s := &search{op: op, tx: tx}
	if op.AnyTenant {
		s.tenants.from(perdure.TenantID(tx.e.cursors.get(tenantCursor)))
	}
	return s
}

// next gives up to limit claimable runs, in the order in which they are to be granted. None: the
// poll has reached its bounds.
func (s *search) next(limit int) ([]perdure.Run, error) {
	for {
		found, err := s.takeInTurn(limit)
		if err != nil || len(found) > 0 {
			return found, err
		}
		if s.visited >= maxPlaces {
			return nil, nil
		}
		if more, err := s.nextRound(); err != nil || !more {
			return nil, err
		}
	}
}

// takeInTurn takes runs from the tenants of the round, one of each in turn.
func (s *search) takeInTurn(limit int) (found []perdure.Run, err error) {
	for progress := true; progress; {
		progress = false
		for _, w := range s.round {
			if w.over || len(found) == limit {
				continue
			}
			r, ok, err := w.next()
			if err != nil {
				return nil, err
			}
			if w.over = !ok; ok {
				found, progress = append(found, r), true
			}
		}
	}
	return found, nil
}

// next gives the first run of all places of a walk.
func (w *walk) next() (perdure.Run, bool, error) {
	var first *place
	for _, p := range w.places {
		if p.head.ID == "" && !p.over {
			r, ok, err := p.Peek()
			if err != nil {
				return r, false, err
			}
			p.head, p.over = r, !ok
		}
		if !p.over && (first == nil || store.ClaimOrder(p.head, first.head) < 0) {
			first = p
		}
	}
	if first == nil {
		return perdure.Run{}, false, nil
	}
	r := first.head
	first.Take(&r)
	first.head = perdure.Run{}
	return r, true, nil
}

// nextRound continues with the remaining kinds of the last round's tenants. If there are none, it
// continues with the next tenants.
func (s *search) nextRound() (bool, error) {
	last := s.round
	s.round = nil
	for _, w := range last {
		if !slices.ContainsFunc(w.kinds, func(k *kindsOf) bool { return !k.done }) {
			continue
		}
		if err := s.look(&walk{tenant: w.tenant, kinds: w.kinds}, len(last)); err != nil {
			return false, err
		}
		// The new walk has them.
		w.kinds = nil
	}
	if len(s.round) > 0 || s.tenants.done {
		return len(s.round) > 0, nil
	}
	tenants := []perdure.TenantID{s.op.Tenant}
	if s.op.AnyTenant {
		var err error
		if tenants, err = s.tenants.next(maxTenants, s.tx.DB.Claims.Tenants); err != nil {
			return false, err
		}
	} else {
		s.tenants.done = true
	}
	for _, t := range tenants {
		if s.visited >= maxPlaces {
			break
		}
		// The next poll begins behind this tenant.
		s.tenants.at = t
		if !s.op.takes(t) {
			s.visited++
			continue
		}
		if err := checkGrantable(s.tx, t); perdure.CodeOf(err) == perdure.CodeNoSigner && s.op.AnyTenant {
			s.visited++
			// The other tenants must not wait for a signing key.
			continue
		} else if err != nil {
			return false, err
		}
		paused, err := pausedIn(s.tx, t)
		if err != nil {
			return false, err
		}
		w := &walk{tenant: t}
		for _, q := range s.op.Queues {
			if paused.on(q, s.tx.Now) != nil {
				continue
			}
			k := &kindsOf{queue: q}
			if k.done = len(s.op.Kinds) > 0; !k.done {
				k.from(s.tx.e.cursors.get(kindCursor(t, q)))
			}
			w.kinds = append(w.kinds, k)
		}
		if len(w.kinds) == 0 { // all queues are paused
			s.visited++
			continue
		}
		if s.first == "" {
			s.first = t
		}
		if err := s.look(w, len(tenants)); err != nil {
			return false, err
		}
	}
	if s.op.AnyTenant && len(tenants) > 0 && s.tenants.at != tenants[len(tenants)-1] {
		s.tenants.done = false
	}
	return len(s.round) > 0 || s.op.AnyTenant && !s.tenants.done && s.visited < maxPlaces, nil
}

// look adds a walk to the round. For each queue it visits the kinds that the poll names, or the
// next ones. tenants is the number of tenants that share the round.
func (s *search) look(w *walk, tenants int) error {
	type pair struct{ queue, kind string }
	var pairs []pair
	for _, k := range w.kinds {
		kinds := s.op.Kinds
		if len(kinds) == 0 {
			if k.done {
				continue
			}
			var err error
			limit := max(1, min(maxKinds, maxPlaces/len(w.kinds)))
			kinds, err = k.next(limit, func(after string, limit int) ([]string, bool, error) {
				return s.tx.DB.Claims.Kinds(w.tenant, k.queue, after, limit)
			})
			if err != nil {
				return err
			}
		}
		for _, kind := range kinds {
			pairs = append(pairs, pair{k.queue, kind})
		}
	}
	open := s.tx.DB.Claims.Queues(pageFor(s.op.Slots, tenants*len(pairs)))
	for _, p := range pairs {
		w.places = append(w.places, &place{ClaimQueue: open(w.tenant, p.queue, p.kind),
			topic: doorbell.Queue(w.tenant, p.queue).Of(p.kind)})
	}
	s.visited += max(1, len(pairs))
	s.round, s.walks = append(s.round, w), append(s.walks, w)
	return nil
}

// pageFor gives how many runs of a place the first read gets. All places of a round together read a
// few thousand at most; a place that needs more reads again.
func pageFor(slots, places int) int {
	n := 64
	for n < slots {
		n *= 2
	}
	return max(2, min(n, 2*pollRows/max(1, places)))
}

// finish rings for the runs that the poll leaves, and stores the cursors for the next poll.
func (s *search) finish() {
	granted := len(s.op.Grants)
	cursors := make(map[string]string)
	for _, w := range s.walks {
		for _, p := range w.places {
			if p.More() {
				// A poll that finds more than it can take wakes the next one.
				s.tx.ring(p.topic)
			}
		}
		if len(s.op.Kinds) > 0 {
			continue
		}
		for _, k := range w.kinds {
			if k.done {
				if k.start != "" {
					cursors[kindCursor(w.tenant, k.queue)] = ""
				}
				continue
			}
			cursors[kindCursor(w.tenant, k.queue)] = k.at
			if granted > 0 {
				s.tx.ring(doorbell.Queue(w.tenant, k.queue))
			}
		}
	}
	began := s.finishTenants(cursors)
	if len(cursors) == 0 && began == s.op.began {
		return
	}
	s.tx.DB.After(func() {
		s.op.began = began
		s.tx.e.cursors.set(cursors)
	})
}

// finishTenants sets the tenant behind which the next poll begins: the one of the last grant, or
// the last one that was visited in vain. A poll that found nothing wakes another one for the
// remaining tenants, until the round is complete.
func (s *search) finishTenants(cursors map[string]string) (began perdure.TenantID) {
	if !s.op.AnyTenant {
		return ""
	}
	granted := len(s.op.Grants)
	switch {
	case granted > 0:
		cursors[tenantCursor] = string(s.op.Grants[granted-1].Run.Tenant)
	case s.tenants.done:
		return ""
	default:
		cursors[tenantCursor] = string(s.tenants.at)
		if began = s.op.began; began == "" {
			began = s.first
		} else if s.passed(began) {
			return ""
		}
	}
	if !s.tenants.done {
		topic := doorbell.Queue(s.tenants.at, s.op.Queues[0])
		if len(s.op.Kinds) > 0 {
			topic = topic.Of(s.op.Kinds[0])
		}
		s.tx.ring(topic)
	}
	return began
}

// passed tells whether the poll has visited a tenant.
func (s *search) passed(t perdure.TenantID) bool {
	return slices.ContainsFunc(s.walks, func(w *walk) bool { return w.tenant == t })
}

// roundRobin goes through names in order: from behind start to the end, and then from the beginning
// up to start.
type roundRobin[T ~string] struct {
	start, at     T
	wrapped, done bool
}

// from sets the name behind which the round begins.
func (c *roundRobin[T]) from(start T) { c.start, c.at = start, start }

// next gives the next names, at most limit. ready reads those behind a name, and tells whether
// there are more.
func (c *roundRobin[T]) next(limit int, ready func(after T, limit int) ([]T, bool, error)) (out []T, err error) {
	for !c.done && len(out) < limit {
		names, more, err := ready(c.at, limit-len(out))
		if err != nil {
			return nil, err
		}
		if c.wrapped {
			if n := slices.IndexFunc(names, func(name T) bool { return name > c.start }); n >= 0 {
				names, more = names[:n], false
			}
		}
		if out = append(out, names...); len(names) > 0 {
			c.at = names[len(names)-1]
		}
		switch {
		case more:
		case c.wrapped || c.start == "":
			c.done = true
		default:
			c.wrapped, c.at = true, ""
		}
	}
	return out, nil
}

// pollCursors holds where the last polls stopped. It is bounded. After it is cleared, a round
// begins with the first name.
type pollCursors struct {
	mu sync.Mutex
	at map[string]string
}

// tenantCursor is the key of the cursor among tenants.
const tenantCursor = "tenants"

// kindCursor is the key of the cursor among the kinds of a queue.
func kindCursor(t perdure.TenantID, queue string) string {
	return "kinds\x00" + string(t) + "\x00" + queue
}

// get gives the name at which the last poll stopped.
func (t *pollCursors) get(key string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.at[key]
}

// set stores names by their keys, and removes those that are empty.
func (t *pollCursors) set(names map[string]string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.at == nil || len(t.at) >= maxKnown {
		t.at = make(map[string]string)
	}
	for key, name := range names {
		if name == "" {
			delete(t.at, key)
		} else {
			t.at[key] = name
		}
	}
}

package dispatch

import (
	"cmp"
	"slices"
	"strings"
	"sync"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/doorbell"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/rules"
	"github.com/perdure/perdure/internal/server/store"
)

// How a poll finds runs.
//
// A place is a queue and a kind of a tenant. A poll visits its places in rounds. A round takes some
// tenants and, of each of them, some places. It reads only the claim keys of the next runs of these
// places. A tenant's runs come in claim order, whichever place they are in. Tenants take turns, in which
// each gets as many runs as its weight says: one, mostly. The next claim goes on with a turn that
// this one has no slots for.
//
// A claim reads maxReads rows beside those of the runs that it grants, whatever it polls for. A poll
// for a few places reads them one by one. Any other walks along the index of claimable runs, which
// skips places without runs. If there are more places than one claim reads, the order is that of the
// places that it has read. The next claim for the same queues and kinds begins behind them
// (pollCursors), so that every place has its turn. A claim that has found nothing yet, and has not
// read all places, is not over: see Claim.More.
const (
	maxReads   = 180 // rows that are read to find runs; the rest of 200 is for the worker, weights and others
	maxTenants = 16  // tenants of one round
	fewPlaces  = 8   // places that are read without a walk
	pageRows   = 128 // rows of a page
	// pauseRows is what the pauses of a tenant cost at most, if they have to be read.
	pauseRows = perdure.MaxPauses + 1
	// minSearch is what the search for held runs leaves for the others.
	minSearch = 40
)

// A search is the state of one poll's search for runs.
type search struct {
	op *Claim
	tx *kernel.Tx
	// before is what the batch had read when the search began, and granted what was read for the
	// runs that were granted.
	before, granted int
	// chunk is how many runs it finds before they are granted.
	chunk int

	tenants roundRobin[perdure.TenantID]
	// turn is the turn that the last claim has left unfinished. It comes first.
	turn  pollTurn
	round []*walk
	// walks are those of all rounds.
	walks []*walk
	// fresh are the runs that became claimable within the batch.
	fresh map[Ready][]store.Claimable
	// seen are the places that were visited.
	seen map[Ready]bool
	// key identifies the queues and kinds.
	key string
}

// A walk goes through places of one tenant in claim order.
type walk struct {
	tenant perdure.TenantID
	gate   *conditions
	// set are the places whose queues are open.
	set *store.PlaceSet
	path
	places []*place
	over   bool
	// weight is how many runs a turn has, and left how many of them are left.
	weight, left int64
}

// A path is the way of a walk through its places: from start to the end, and then from the beginning
// up to start.
type path struct {
	start, at     store.Position
	wrapped, done bool
}

// A place is a queue and a kind of a tenant, with the run that is next there.
type place struct {
	*store.ClaimQueue
	topic doorbell.Topic
	head  store.Claimable
	taken int
	over  bool
}

// begin prepares the first round.
func (op *Claim) begin(tx *kernel.Tx) *search {
	s := &search{op: op, tx: tx, before: tx.DB.Cost().Read, chunk: 32}
	switch {
	case op.rest != nil:
		s.tenants = op.rest.tenants
	case op.AnyTenant:
		s.turn = keptCursors.Of(tx.Engine).turn(s.places())
		s.tenants.from(s.turn.tenant)
	}
	return s
}

// left is how many rows the claim may still read.
func (s *search) left() int { return maxReads - (s.tx.DB.Cost().Read - s.before) + s.granted }

// few tells whether the poll is for so few places that it reads each of them.
func (s *search) few() bool {
	return len(s.op.Kinds) > 0 && len(s.op.Queues)*len(s.op.Kinds) <= fewPlaces
}

// places gives a key for the poll's queues and kinds.
func (s *search) places() string {
	if s.key == "" {
		s.key = rules.PlacesKey(s.op.Queues, s.op.Kinds)
	}
	return s.key
}

// next gives up to limit claimable runs, in the order in which they are to be granted. None: the
// claim has reached its bounds.
func (s *search) next(limit int) ([]store.Claimable, error) {
	// The runs are read too before they are granted, and perhaps not all of them fit.
	limit = min(limit, s.chunk, max(1, s.left()/2))
	s.chunk = min(64, 2*s.chunk)
	for {
		found, err := s.takeInTurn(limit)
		if err != nil || len(found) > 0 {
			return found, err
		}
		if len(s.walks) > 0 && s.left() <= 0 {
			return nil, nil
		}
		if more, err := s.nextRound(); err != nil || !more {
			return nil, err
		}
	}
}

// takeInTurn takes runs from the tenants of the round, which take turns.
func (s *search) takeInTurn(limit int) (found []store.Claimable, err error) {
	for progress := true; progress && len(found) < limit; {
		progress = false
		for _, w := range s.round {
			for ; w.left > 0 && !w.over && len(found) < limit; w.left-- {
				r, ok, err := s.take(w)
				if err != nil {
					return nil, err
				}
				if w.over = !ok; w.over {
					break
				}
				found, progress = append(found, r), true
			}
		}
		if len(found) < limit {
			for _, w := range s.round { // all turns are over
				progress = progress || !w.over && w.left == 0
				w.left = w.weight
			}
		}
	}
	return found, nil
}

// take gives the first run of all places of a walk.
func (s *search) take(w *walk) (store.Claimable, bool, error) {
	var first *place
	for _, p := range w.places {
		if p.head.ID == "" && !p.over {
			if err := s.peek(w, p); err != nil {
				return store.Claimable{}, false, err
			}
		}
		if !p.over && (first == nil || store.ClaimOrder(p.head, first.head) < 0) {
			first = p
		}
	}
	if first == nil {
		return store.Claimable{}, false, nil
	}
	r := first.head
	first.Take(&r)
	first.taken++
	first.head = store.Claimable{}
	return r, true, nil
}

// peek finds the next run of a place. If that takes more rows than the claim may read, the place is
// left to the next claim.
func (s *search) peek(w *walk, p *place) error {
	for {
		r, ok, known := p.Peek()
		if known {
			p.head, p.over = r, !ok
			return nil
		}
		left := s.left()
		if left <= 0 {
			p.over = true
			return nil
		}
		if err := p.Read(min(left, pageFor(s.op.Slots, len(w.places), p.taken))); err != nil {
			return err
		}
	}
}

// pageFor gives how many runs of a place are read at once: as many as were taken from it, and at
// first so many that all places together read one page.
func pageFor(slots, places, taken int) int {
	n := 64
	for n < slots && n < pageRows {
		n *= 2
	}
	return min(pageRows, max(1, taken, min(n, pageRows/max(1, places))))
}

// nextRound continues with the remaining places of the last round's tenants. If there are none, it
// continues with the next tenants.
func (s *search) nextRound() (bool, error) {
	var walks []*walk
	for _, w := range s.round {
		if !w.done {
			walks = append(walks, &walk{tenant: w.tenant, gate: w.gate, set: w.set, path: w.path, weight: w.weight,
				left: w.left})
			w.done = true // the new walk has the rest
		}
	}
	if len(s.walks) == 0 && s.op.rest != nil {
		for _, t := range s.op.rest.order {
			w, err := s.walkIn(t)
			if err != nil {
				return false, err
			}
			if w != nil {
				w.path = s.op.rest.paths[t]
				walks = append(walks, w)
			}
		}
	}
	s.round = nil
	if len(walks) == 0 && !s.tenants.done {
		var err error
		if walks, err = s.nextTenants(); err != nil {
			return false, err
		}
	}
	for _, w := range walks {
		if err := s.look(w, len(walks)); err != nil {
			return false, err
		}
		s.round, s.walks = append(s.round, w), append(s.walks, w)
	}
	return len(s.round) > 0 || !s.tenants.done && s.left() > pauseRows, nil
}

// nextTenants gives walks for the next tenants, with their closed queues left out.
func (s *search) nextTenants() (walks []*walk, err error) {
	if !s.op.AnyTenant {
		s.tenants.done = true
		w, err := s.walkIn(s.op.Tenant)
		if w == nil {
			return nil, err
		}
		return []*walk{w}, err
	}
	before := s.tenants
	tenants, err := s.tenants.next(maxTenants, s.tx.DB.Claims.Tenants)
	if err != nil {
		return nil, err
	}
	if t := s.turn.tenant; s.turn.left > 0 {
		w, err := s.walkIn(t)
		if err != nil {
			return nil, err
		}
		if w != nil {
			w.left = min(w.left, s.turn.left)
			walks = append(walks, w)
		}
		s.turn.left = 0
		tenants = slices.DeleteFunc(tenants, func(x perdure.TenantID) bool { return x == t })
	}
	for i, t := range tenants {
		if i > 0 && s.left() < pauseRows+2*maxTenants {
			// The next claim begins behind the tenant before.
			s.tenants.back(before, tenants[i-1])
			return walks, nil
		}
		w, err := s.walkIn(t)
		if err != nil {
			return nil, err
		}
		if w != nil {
			walks = append(walks, w)
		}
	}
	return walks, nil
}

// walkIn prepares a walk through the places of a tenant. It gives nil if nothing may be granted there.
func (s *search) walkIn(t perdure.TenantID) (*walk, error) {
	if !s.op.takes(t) {
		return nil, nil
	}
	c, err := s.op.enter(s.tx, t)
	if c == nil {
		return nil, err
	}
	w := &walk{tenant: t, gate: c, set: &store.PlaceSet{Queues: s.op.Queues, Kinds: s.op.Kinds}, weight: 1}
	if s.op.AnyTenant {
		if w.weight, err = rules.WeightOf(s.tx, t); err != nil {
			return nil, err
		}
	}
	w.left = w.weight
	closed := func(queue string) bool { return c.closed(queue, "") != nil }
	some := slices.ContainsFunc(s.op.Queues, closed)
	if some {
		w.set.Queues = slices.DeleteFunc(slices.Clone(s.op.Queues), closed)
		if len(w.set.Queues) == 0 {
			return nil, nil
		}
	}
	if w.done = s.few(); !w.done {
		if w.set.Key = s.places(); some {
			w.set.Key = rules.PlacesKey(w.set.Queues, w.set.Kinds)
		}
		w.start = keptCursors.Of(s.tx.Engine).get(t, s.places()) // it survives a pause
		w.at = w.start
	}
	return w, nil
}

// look reads the next places of a walk. walks is the number of walks that share what may be read.
func (s *search) look(w *walk, walks int) error {
	if s.fresh == nil {
		s.fresh, s.seen = s.tx.DB.Claims.Fresh(), make(map[Ready]bool)
	}
	var at []Ready
	if s.few() {
		for _, q := range w.set.Queues {
			for _, k := range w.set.Kinds {
				at = append(at, Ready{Tenant: w.tenant, Queue: q, Kind: k})
			}
		}
	} else {
		var err error
		if at, err = s.walkOn(w, max(2, s.left()*3/4/walks)); err != nil {
			return err
		}
		for p := range s.fresh {
			if p.Tenant == w.tenant && s.op.covers(p) && slices.Contains(w.set.Queues, p.Queue) {
				at = append(at, p)
			}
		}
		slices.SortFunc(at, func(a, b Ready) int {
			return cmp.Or(strings.Compare(a.Queue, b.Queue), strings.Compare(a.Kind, b.Kind))
		})
	}
	for _, p := range at {
		if s.seen[p] || w.gate.closed(p.Queue, p.Kind) != nil {
			continue
		}
		s.seen[p] = true
		w.places = append(w.places, &place{ClaimQueue: s.tx.DB.Claims.Queue(p, s.fresh[p]),
			topic: doorbell.Queue(p.Tenant, p.Queue).Of(p.Kind)})
	}
	return nil
}

// walkOn reads at most limit rows of the next places.
func (s *search) walkOn(w *walk, limit int) (at []Ready, err error) {
	each := 2 // a place with one run is then known to have no other
	if s.op.Slots == 1 && len(w.set.Queues) > fewPlaces {
		each = 1
	}
	for !w.done && limit > 0 {
		before := s.tx.DB.Cost().Read
		walked, err := s.tx.DB.Claims.Walk(w.tenant, w.set, w.at, each, limit)
		if err != nil {
			return nil, err
		}
		limit -= max(1, s.tx.DB.Cost().Read-before, len(walked.Places))
		for _, p := range walked.Places {
			if w.wrapped && !(store.Position{Queue: p.Queue, Kind: p.Kind}).Less(w.start) {
				w.done = true
				break
			}
			at = append(at, p)
		}
		w.at = walked.Next
		switch {
		case w.at.Queue != "":
			w.done = w.done || w.wrapped && !w.at.Less(w.start)
			return at, nil
		case w.wrapped || w.start.Queue == "":
			w.done = true
		default:
			w.wrapped = true
		}
	}
	return at, nil
}

// finish rings for the runs that the poll leaves, and stores the cursors for the next poll.
func (s *search) finish() error {
	granted := len(s.op.Grants) > 0
	cursors := make(map[perdure.TenantID]store.Position)
	rest := &pollRest{tenants: s.tenants, paths: make(map[perdure.TenantID]path)}
	for _, w := range s.walks {
		for _, p := range w.places {
			if p.taken > 0 && p.head.ID == "" && !p.over {
				if err := s.peek(w, p); err != nil { // to know whether it has more
					return err
				}
			}
			if p.More() {
				// A poll that finds more than it can take wakes the next one.
				s.tx.Ring(p.topic)
			}
		}
		if s.few() {
			continue
		}
		if w.done {
			cursors[w.tenant] = store.Position{}
			continue
		}
		cursors[w.tenant] = w.at
		rest.order = append(rest.order, w.tenant)
		rest.paths[w.tenant] = w.path
		if granted {
			s.ringAt(w.tenant, w.at)
		}
	}
	turn := pollTurn{tenant: s.tenants.at}
	if s.op.AnyTenant {
		if n := len(s.op.Grants); n > 0 {
			turn.tenant = s.op.Grants[n-1].Run.Tenant
			for _, w := range s.walks {
				if w.tenant == turn.tenant && !w.over && w.left < w.weight {
					turn.left = w.left
				}
			}
		}
		if granted && !s.tenants.done {
			s.ringAt(s.tenants.at, store.Position{})
		}
	}
	if granted || s.tenants.done && len(rest.order) == 0 {
		rest = nil
	}
	s.op.More = rest != nil
	if len(cursors) == 0 && rest == nil && s.op.rest == nil && !s.op.AnyTenant {
		return nil
	}
	s.tx.DB.After(func() {
		s.op.rest = rest
		if len(cursors) > 0 {
			keptCursors.Of(s.tx.Engine).set(s.places(), cursors)
		}
		if s.op.AnyTenant {
			keptCursors.Of(s.tx.Engine).setTurn(s.places(), turn)
		}
	})
	return nil
}

// ringAt wakes a poll for the places behind a position.
func (s *search) ringAt(t perdure.TenantID, at store.Position) {
	topic := doorbell.Queue(t, cmp.Or(at.Queue, s.op.Queues[0]))
	if len(s.op.Kinds) > 0 {
		i, _ := slices.BinarySearch(s.op.Kinds, at.Kind)
		topic = topic.Of(s.op.Kinds[min(i, len(s.op.Kinds)-1)])
	}
	s.tx.Ring(topic)
}

// roundRobin goes through names in order: from behind start to the end, and then from the beginning
// up to start.
type roundRobin[T ~string] struct {
	start, at     T
	wrapped, done bool
}

// back returns to a name that next gave. before is the state before that.
func (c *roundRobin[T]) back(before roundRobin[T], to T) {
	*c = roundRobin[T]{start: before.start, at: to, wrapped: before.wrapped || to <= before.at}
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

// pollCursors holds where the last polls stopped, by tenant and by the queues and kinds of the poll.
// It is bounded. A tenant whose cursors are cleared begins with the first place; that is no concern of other
// tenants.
type pollCursors struct {
	mu      sync.Mutex
	tenants map[perdure.TenantID]map[string]store.Position
	turns   map[string]pollTurn // of polls for all tenants
}

// A pollTurn is the tenant that had the last turn, and how many runs of it are left.
type pollTurn struct {
	tenant perdure.TenantID
	left   int64
}

var keptCursors = kernel.NewPart(func(*kernel.Engine) *pollCursors { return &pollCursors{} })

// maxPollCursors bounds the cursors of a tenant.
const maxPollCursors = 64

// get gives the position at which the last poll stopped.
func (c *pollCursors) get(t perdure.TenantID, key string) store.Position {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tenants[t][key]
}

// set stores positions of a poll by their tenants, and removes those that are empty.
func (c *pollCursors) set(key string, at map[perdure.TenantID]store.Position) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for t, p := range at {
		if p.Queue == "" {
			if delete(c.tenants[t], key); len(c.tenants[t]) == 0 {
				delete(c.tenants, t)
			}
			continue
		}
		if c.tenants == nil || len(c.tenants) >= kernel.MaxKnown {
			c.tenants = make(map[perdure.TenantID]map[string]store.Position)
		}
		if c.tenants[t] == nil || len(c.tenants[t]) >= maxPollCursors {
			c.tenants[t] = make(map[string]store.Position)
		}
		c.tenants[t][key] = p
	}
}

// turn gives the last turn of polls for all tenants.
func (c *pollCursors) turn(key string) pollTurn {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.turns[key]
}

// setTurn stores the last turn of a poll for all tenants.
func (c *pollCursors) setTurn(key string, turn pollTurn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.turns == nil || len(c.turns) >= maxPollCursors {
		c.turns = make(map[string]pollTurn)
	}
	c.turns[key] = turn
}

// grant grants runs that were found. What is read for the runs that are granted does not count.
func (s *search) grant(found []store.Claimable, budget *pollBudget) (full bool, err error) {
	reads, grants := s.tx.DB.Cost().Read, len(s.op.Grants)
	full, err = s.op.grantFound(s.tx, found, budget)
	grants = len(s.op.Grants) - grants
	s.granted += grants + max(0, s.tx.DB.Cost().Read-reads-(len(found)-grants))
	return full, err
}

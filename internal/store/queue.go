package store

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure"
)

// The queue of a lane. Requests wait per tenant, in the order in which they came. A batch is gathered by going
// round the tenants that wait and taking one operation of each, until the batch is full or nobody waits. So a
// tenant with a thousand operations and one with a single operation have their turns alike. The server's own
// work has the empty tenant, and a turn like any other.
//
// A batch is full when it has maxBatch operations or when the next one would take it over batchRows or
// batchBytes. An operation that is heavier than that has a batch to itself. The operations of one request keep
// their order, and share a batch as far as they fit.
//
// While several tenants write, a heavy operation has a batch to itself as well, and a batch of light ones comes
// between two of them. So a light operation waits for one heavy operation at most. A batch also takes no more
// than batchShare operations of each tenant then, so that it stays short. A tenant counts as one of several if
// another has asked for something within mixedFor.
//
// A heavy operation is also followed by a rest: the tenant's next one waits restFactor times as long as that one
// took, maxRest at most, while several tenants write. So the heavy operations of a tenant take a small part of
// the lane's time, and few calls of others meet one. Heavy requests have a turn of their own, so that a tenant's
// light operations, its heartbeats above all, do not wait for its heavy ones.
//
// A tenant that has laneShare operations in the queue is refused more of them while another tenant waits. One that
// has heavyShare operations in its heavy turn is refused more of those while several tenants write. The server's own
// work is never refused and never rests.

// The bounds of a batch, and of the operations of one tenant that may wait while others wait too.
const (
	maxBatch   = 256
	batchRows  = 2000
	batchBytes = 8 << 20
	laneShare  = 512

	batchShare = 16
	mixedFor   = 100 * time.Millisecond // see above

	heavyShare = 16
	restFactor = 12
	maxRest    = time.Second
)

// A heavy operation writes more than this.
const (
	heavyRows  = 400
	heavyBytes = 512 << 10
)

// weighing is an operation that says how many rows it is going to write and how many bytes they have, about.
type weighing interface{ Weight() (rows, bytes int) }

// What an operation weighs that does not say.
const (
	usualRows  = 4
	usualBytes = 1 << 10
)

func weigh(op Op) (rows, bytes int) {
	if x, ok := op.(weighing); ok {
		return x.Weight()
	}
	return usualRows, usualBytes
}

func isHeavy(op Op) bool {
	rows, bytes := weigh(op)
	return rows > heavyRows || bytes > heavyBytes
}

func anyHeavy(ops []Op) bool { return slices.ContainsFunc(ops, isHeavy) }

// A load is what a batch has been given so far.
type load struct{ ops, rows, bytes int }

// add takes an operation into a batch, unless it is one too many. The first is never too many.
func (l *load) add(op Op) bool {
	rows, bytes := weigh(op)
	if l.ops > 0 && (l.ops >= maxBatch || l.rows+rows > batchRows || l.bytes+bytes > batchBytes) {
		return false
	}
	l.ops++
	l.rows += rows
	l.bytes += bytes
	return true
}

// fit tells whether operations fit into one batch.
func fit(ops []Op) bool {
	var l load
	for _, op := range ops {
		if !l.add(op) {
			return false
		}
	}
	return true
}

// A request is operations that came together. Its fields but done belong to the queue until done is closed.
type request struct {
	turnKey
	ops  []Op
	errs []error       // one per operation
	next int           // the first operation that is in no batch yet
	open int           // operations without an answer
	done chan struct{} // closed when every operation has its answer
}

func newRequest(t perdure.TenantID, ops []Op) *request {
	return &request{turnKey: turnKey{t, anyHeavy(ops)}, ops: ops, errs: make([]error, len(ops)), open: len(ops), done: make(chan struct{})}
}

func (r *request) answer(i int, err error) {
	r.errs[i] = err
	if r.open--; r.open == 0 {
		close(r.done)
	}
}

// An entry is an operation that a batch was given: which one of which request.
type entry struct {
	r *request
	i int
}

type queue struct {
	bell   chan struct{} // has an element when something may be waiting
	queued atomic.Int64  // operations that wait

	mu    sync.Mutex
	turns map[turnKey]*turn
	round []*turn                        // of those that have requests, the next one first
	rests map[perdure.TenantID]time.Time // until when the heavy operations of a tenant rest
	asked [2]asker                       // the two tenants that asked last, the last one first
}

type asker struct {
	tenant perdure.TenantID
	at     time.Time
}

// A tenant has a turn for its heavy requests and one for the others.
type turnKey struct {
	tenant perdure.TenantID
	heavy  bool
}

// A turn holds the requests of a tenant that wait.
type turn struct {
	turnKey
	requests []*request // those that were withdrawn are dropped when they come first
	ops      int        // those that wait
	taken    int        // those that the batch which is being gathered has taken
}

func newQueue() *queue {
	return &queue{bell: make(chan struct{}, 1), turns: make(map[turnKey]*turn), rests: make(map[perdure.TenantID]time.Time)}
}

// push has a request wait, or refuses it.
func (q *queue) push(r *request) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.meet(r.tenant)
	t := q.turns[r.turnKey]
	if t == nil {
		t = &turn{turnKey: r.turnKey}
		q.turns[r.turnKey] = t
		q.round = append(q.round, t)
	}
	if r.tenant != "" && t.ops >= laneShare && q.queued.Load() > int64(t.ops) {
		return perdure.Errorf(perdure.CodeTooMany, "%d operations of this tenant wait to be written, as many as may while others wait too", t.ops)
	}
	if r.tenant != "" && r.heavy && t.ops >= heavyShare && !q.others(r.tenant).IsZero() {
		return perdure.Errorf(perdure.CodeTooMany, "%d large writes of this tenant wait, as many as may while others write too", t.ops)
	}
	t.requests = append(t.requests, r)
	t.ops += len(r.ops)
	q.queued.Add(int64(len(r.ops)))
	q.ring()
	return nil
}

func (q *queue) ring() {
	select {
	case q.bell <- struct{}{}:
	default:
	}
}

// meet notes that a tenant writes. The caller holds the lock.
func (q *queue) meet(t perdure.TenantID) {
	if t == "" {
		return
	}
	if t != q.asked[0].tenant {
		q.asked[1] = q.asked[0]
	}
	q.asked[0] = asker{t, time.Now()}
}

// others gives the time until which a tenant counts as one that does not write alone; zero if it does. The caller
// holds the lock.
func (q *queue) others(t perdure.TenantID) (until time.Time) {
	for _, a := range q.asked {
		if end := a.at.Add(mixedFor); a.tenant != t && a.tenant != "" && time.Until(end) > 0 {
			return end
		}
	}
	return time.Time{}
}

// InUse tells whether a tenant has written something a moment ago, or waits to.
func (s *Store) InUse() bool {
	return slices.ContainsFunc(s.lanes[:], func(l *lane) bool {
		l.queue.mu.Lock()
		defer l.queue.mu.Unlock()
		return !l.queue.others("").IsZero()
	})
}

// mayPass tells whether operations may be written at once when nobody waits. Heavy ones have to wait for the end
// of their tenant's rest.
func (q *queue) mayPass(t perdure.TenantID, ops []Op) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.meet(t)
	return q.restOf(t) == 0 || !anyHeavy(ops)
}

// restOf tells how much longer the heavy operations of a tenant wait. The caller holds the lock.
func (q *queue) restOf(t perdure.TenantID) time.Duration {
	until, rests := q.rests[t]
	if !rests {
		return 0
	}
	return max(0, min(time.Until(until), time.Until(q.others(t))))
}

// wrote notes how long a batch of a tenant's operations took. After a heavy one the tenant rests.
func (q *queue) wrote(t perdure.TenantID, ops []Op, took time.Duration) {
	if t == "" || !anyHeavy(ops) {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for other, until := range q.rests {
		if time.Until(until) < 0 {
			delete(q.rests, other)
		}
	}
	q.rests[t] = time.Now().Add(min(maxRest, restFactor*took))
}

// gather appends the next batch to two empty lists: the operations, and where they come from. If all that waits
// rests, it rings when the first rest is over.
func (q *queue) gather(ops []Op, from []entry) ([]Op, []entry) {
	q.mu.Lock()
	defer q.mu.Unlock()
	var l load
	var later []*turn // turns that have had their share, or whose next operation is heavy and not for this batch
	var rest time.Duration
	for len(q.round) > 0 {
		t := q.round[0]
		several := !q.others(t.tenant).IsZero()
		if t.taken >= maxBatch || several && t.taken >= batchShare {
			q.round, later = q.round[1:], append(later, t)
			continue
		}
		r := t.first()
		if r == nil {
			q.round = q.round[1:]
			delete(q.turns, t.turnKey)
			continue
		}
		op := r.ops[r.next]
		large := several && isHeavy(op)
		if d := q.restOf(t.tenant); large && (l.ops > 0 || d > 0) {
			if d > 0 && (rest == 0 || d < rest) {
				rest = d
			}
			q.round, later = q.round[1:], append(later, t)
			continue
		}
		if !l.add(op) {
			break
		}
		ops, from = append(ops, op), append(from, entry{r, r.next})
		r.next++
		t.ops--
		t.taken++
		q.queued.Add(-1)
		if q.round = q.round[1:]; t.first() != nil {
			q.round = append(q.round, t)
		} else {
			delete(q.turns, t.turnKey)
		}
		if large {
			break
		}
	}
	q.round = append(later, q.round...)
	for _, t := range q.round {
		t.taken = 0
	}
	if len(ops) == 0 && rest > 0 {
		time.AfterFunc(rest, q.ring)
	}
	return ops, from
}

// first gives the first request that has an operation left, or nil.
func (t *turn) first() *request {
	for len(t.requests) > 0 {
		if r := t.requests[0]; r.next < len(r.ops) {
			return r
		}
		t.requests[0] = nil
		t.requests = t.requests[1:]
	}
	return nil
}

// answer tells the requests of a batch what became of their operations.
func (q *queue) answer(from []entry, errs []error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, e := range from {
		e.r.answer(e.i, errs[i])
	}
}

// withdraw answers the operations of a request that are in no batch yet. The others have their answers later.
func (q *queue) withdraw(r *request, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	left := len(r.ops) - r.next
	if left == 0 {
		return
	}
	q.turns[r.turnKey].ops -= left
	q.queued.Add(-int64(left))
	for ; left > 0; left-- {
		r.next++
		r.answer(r.next-1, err)
	}
}

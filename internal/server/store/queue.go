package store

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure"
)

// The queue of a lane.
//
// Requests wait per tenant, in the order of their arrival. gather takes one operation of each
// waiting tenant in turn, until the batch is full or nothing waits. So a tenant with one operation
// does not wait behind the thousand operations of another. The server's own work has the empty
// tenant and a turn like any other.
//
// A batch is full at maxBatch operations, or when the next operation would exceed batchRows or
// batchBytes. An operation above these limits gets a batch of its own. The operations of one
// request keep their order and share a batch as far as they fit.
//
// While several tenants write, three more rules keep batches short. A heavy operation gets a batch
// of its own, and a batch of light ones comes between two of them. So a light operation waits for
// one heavy operation at most. A batch takes a few operations of each tenant: batchShare, or more on
// a slow disk, where a batch may take as long to decide as to become durable. An operation counts by
// the rows that it reads and writes, as one or several. After a heavy
// operation, its tenant's next one waits restFactor times as long as that one took, at most maxRest.
// A tenant counts as one of several if a request of another tenant waits, or was sent within mixedFor.
//
// Heavy requests of a tenant have a turn of their own, so that its light operations, such as
// heartbeats, do not wait for them.
//
// A tenant with laneShare waiting operations is refused more of them while another tenant waits. A
// tenant with heavyShare waiting heavy operations is refused more of those while several tenants
// write. The server's own work is never refused and never rests.

// Limits of a batch, and of the operations of one tenant that may wait while others wait too.
const (
	maxBatch   = 256
	batchRows  = 2000
	batchBytes = 8 << 20
	laneShare  = 512

	batchShare = 6
	opTime     = 200 * time.Microsecond // of an operation, about
	mixedFor   = time.Second

	slowSync    = time.Millisecond // from which on a batch waits for company
	maxPatience = 2 * time.Millisecond

	heavyShare = 16
	restFactor = 12
	maxRest    = time.Second
)

// A heavy operation writes more than this.
const (
	heavyRows  = 400
	heavyBytes = 512 << 10
)

// weighing is an operation that estimates how many rows and bytes it is going to read or write.
type weighing interface{ Weight() (rows, bytes int) }

// The estimate for an operation that gives none.
const (
	usualRows  = 4
	usualBytes = 1 << 10
)

// weigh estimates the rows and bytes that an operation writes.
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

// A load is the sum of the operations in a batch.
type load struct{ ops, rows, bytes int }

// add adds an operation to a batch, unless that exceeds a limit. The first one always fits.
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

// fitBatch tells whether operations fit into one batch.
func fitBatch(ops []Op) bool {
	var l load
	for _, op := range ops {
		if !l.add(op) {
			return false
		}
	}
	return true
}

// A request is operations that were passed to DoAll together. The queue owns its fields, except
// done, until done is closed.
type request struct {
	turnKey
	ops  []Op
	errs []error
	// next is the index of the first operation that is in no batch yet.
	next int
	// open is the number of operations without an answer.
	open int
	// done is closed when every operation has its answer.
	done chan struct{}
}

func newRequest(t perdure.TenantID, ops []Op) *request {
	return &request{turnKey: turnKey{t, anyHeavy(ops)}, ops: ops, errs: make([]error, len(ops)), open: len(ops),
		done: make(chan struct{})}
}

// answer sets the result of an operation. The caller holds the queue's lock.
func (r *request) answer(i int, err error) {
	r.errs[i] = err
	if r.open--; r.open == 0 {
		close(r.done)
	}
}

// An entry is an operation of a batch: its request and its index there.
type entry struct {
	r *request
	i int
}

// A queue holds the waiting requests of a lane.
type queue struct {
	// bell has an element when something may be waiting.
	bell chan struct{}
	// queued is the number of waiting operations.
	queued atomic.Int64
	// durable is the time in nanoseconds in which the last batches became durable.
	durable atomic.Int64
	// size is 16 times the average number of operations of the last batches.
	size atomic.Int64

	mu    sync.Mutex
	turns map[turnKey]*turn
	// round are the turns that have requests, the next one first.
	round []*turn
	// rests says until when the heavy operations of a tenant rest.
	rests map[perdure.TenantID]time.Time
	// asked are the last two tenants that sent a request, the latest first.
	asked [2]asker
}

// An asker is a tenant and the time of its last request.
type asker struct {
	tenant perdure.TenantID
	at     time.Time
}

// A turnKey names a turn. A tenant has one for its heavy requests and one for the others.
type turnKey struct {
	tenant perdure.TenantID
	heavy  bool
}

// A turn holds the waiting requests of a tenant.
type turn struct {
	turnKey
	// requests includes withdrawn ones until they are the first.
	requests []*request
	ops      int // waiting operations
	taken    int // operations in the batch that is being gathered
	// units are taken by their weight.
	units int
}

// shareRows is how many rows count as one more operation of a tenant's share of a batch.
const shareRows = 12

// unitsOf gives how many light operations an operation counts as.
func unitsOf(op Op) int {
	rows, _ := weigh(op)
	return 1 + rows/shareRows
}

func newQueue() *queue {
	return &queue{bell: make(chan struct{}, 1), turns: make(map[turnKey]*turn),
		rests: make(map[perdure.TenantID]time.Time)}
}

// push adds a request to the queue, or refuses it.
func (q *queue) push(r *request) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.noteTenant(r.tenant)
	t := q.turns[r.turnKey]
	if t == nil {
		t = &turn{turnKey: r.turnKey}
		q.turns[r.turnKey] = t
		q.round = append(q.round, t)
	}
	if r.tenant != "" && t.ops >= laneShare && q.queued.Load() > int64(t.ops) {
		return perdure.Errorf(perdure.CodeTooMany,
			"%d operations of this tenant wait to be written, as many as may while others wait too", t.ops)
	}
	if r.tenant != "" && r.heavy && t.ops >= heavyShare && !q.others(r.tenant).IsZero() {
		return perdure.Errorf(perdure.CodeTooMany,
			"%d large writes of this tenant wait, as many as may while others write too", t.ops)
	}
	t.requests = append(t.requests, r)
	t.ops += len(r.ops)
	q.queued.Add(int64(len(r.ops)))
	q.ring()
	return nil
}

// ring wakes the lane.
func (q *queue) ring() {
	select {
	case q.bell <- struct{}{}:
	default:
	}
}

// noteTenant records that a tenant writes. The caller holds the lock.
func (q *queue) noteTenant(t perdure.TenantID) {
	if t == "" {
		return
	}
	if t != q.asked[0].tenant {
		q.asked[1] = q.asked[0]
	}
	q.asked[0] = asker{t, time.Now()}
}

// others gives the time until which another tenant counts as writing too. It is zero if the tenant
// writes alone. A tenant that has waited for long counts as well: otherwise the slower it is served, the
// less it would be spared. The caller holds the lock.
func (q *queue) others(t perdure.TenantID) (until time.Time) {
	waiting := len(q.turns) - q.turnsOf(t)
	if t != "" {
		waiting -= q.turnsOf("") // the server's own work
	}
	if waiting > 0 {
		return time.Now().Add(mixedFor)
	}
	for _, a := range q.asked {
		if end := a.at.Add(mixedFor); a.tenant != t && a.tenant != "" && time.Until(end) > 0 {
			return end
		}
	}
	return time.Time{}
}

// turnsOf counts the turns of a tenant. The caller holds the lock.
func (q *queue) turnsOf(t perdure.TenantID) (n int) {
	for _, heavy := range []bool{false, true} {
		if q.turns[turnKey{t, heavy}] != nil {
			n++
		}
	}
	return n
}

// InUse tells whether a tenant has sent a request within mixedFor.
func (s *Store) InUse() bool {
	return slices.ContainsFunc(s.lanes[:], func(l *lane) bool {
		l.queue.mu.Lock()
		defer l.queue.mu.Unlock()
		return !l.queue.others("").IsZero()
	})
}

// gathered records the number of operations of a batch.
func (q *queue) gathered(ops int) { q.size.Store((3*q.size.Load() + 16*int64(ops)) / 4) }

// patience is how long a batch waits for more operations before it begins. On a slow disk, callers who
// were answered together come back together, a moment later than the next batch could begin. Without
// the pause they would have to wait for all of that batch, and their own would have half of them.
func (q *queue) patience() time.Duration {
	durable := time.Duration(q.durable.Load())
	if durable < slowSync || q.size.Load() < 2*16 {
		return 0
	}
	return min(durable/8, maxPatience)
}

// madeDurable records the time in which a batch became durable.
func (q *queue) madeDurable(took time.Duration) {
	q.durable.Store((3*q.durable.Load() + int64(took)) / 4)
}

// share is how many operations of one tenant a batch takes while several write.
func (q *queue) share() int {
	return int(min(maxBatch, max(batchShare, time.Duration(q.durable.Load())/opTime)))
}

// mayPass tells whether operations may skip the queue when nothing waits. Heavy ones have to wait
// until their tenant's rest is over.
func (q *queue) mayPass(t perdure.TenantID, ops []Op) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.noteTenant(t)
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

// wrote records how long a batch of a tenant's operations took. After a heavy one the tenant rests.
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

// gather appends the next batch to two empty lists: the operations, and their entries. If only
// resting operations wait, it rings when the first rest is over.
func (q *queue) gather(ops []Op, from []entry) ([]Op, []entry) {
	q.mu.Lock()
	defer q.mu.Unlock()
	var l load
	share := q.share()
	var later []*turn // turns that have used their share, or whose next operation is heavy and does not fit here
	var rest time.Duration
	for len(q.round) > 0 {
		t := q.round[0]
		several := !q.others(t.tenant).IsZero()
		if t.taken >= maxBatch || several && t.units >= share {
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
		t.units += unitsOf(op)
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
		t.taken, t.units = 0, 0
	}
	if len(ops) == 0 && rest > 0 {
		time.AfterFunc(rest, q.ring)
	}
	return ops, from
}

// first gives the first request with an operation that is in no batch yet, or nil.
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

// answer gives the results of a batch to its requests.
func (q *queue) answer(from []entry, errs []error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, e := range from {
		e.r.answer(e.i, errs[i])
	}
}

// withdraw answers the operations of a request that are in no batch yet. The others are answered by
// their batch.
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

package store

import (
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
// than batchShare operations of each tenant then, so that it stays short. Several tenants write if two have
// asked for something within mixedFor.
//
// A tenant that has laneShare operations in the queue is refused more of them while another tenant waits. The
// server's own work is never refused.

// The bounds of a batch, and of the operations of one tenant that may wait while others wait too.
const (
	maxBatch   = 256
	batchRows  = 2000
	batchBytes = 8 << 20
	laneShare  = 512

	batchShare = 16
	mixedFor   = 100 * time.Millisecond // see above
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
	tenant perdure.TenantID
	ops    []Op
	errs   []error       // one per operation
	next   int           // the first operation that is in no batch yet
	open   int           // operations without an answer
	done   chan struct{} // closed when every operation has its answer
}

func newRequest(t perdure.TenantID, ops []Op) *request {
	return &request{tenant: t, ops: ops, errs: make([]error, len(ops)), open: len(ops), done: make(chan struct{})}
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

	mu      sync.Mutex
	tenants map[perdure.TenantID]*turn
	round   []*turn          // of the tenants that wait, the next one first
	last    perdure.TenantID // who asked last
	mixed   time.Time        // when somebody asked who was not the one before
}

// A turn is what waits of one tenant.
type turn struct {
	tenant   perdure.TenantID
	requests []*request // those that were withdrawn are dropped when they come first
	ops      int        // those that wait
	taken    int        // those that the batch which is being gathered has taken
}

func newQueue() *queue {
	return &queue{bell: make(chan struct{}, 1), tenants: make(map[perdure.TenantID]*turn)}
}

// push has a request wait, or refuses it.
func (q *queue) push(r *request) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	t := q.tenants[r.tenant]
	if t == nil {
		t = &turn{tenant: r.tenant}
		q.tenants[r.tenant] = t
		q.round = append(q.round, t)
	}
	if r.tenant != "" && t.ops >= laneShare && q.queued.Load() > int64(t.ops) {
		return perdure.Errorf(perdure.CodeTooMany, "%d operations of this tenant wait to be written, as many as may while others wait too", t.ops)
	}
	if r.tenant != q.last && r.tenant != "" {
		q.last, q.mixed = r.tenant, time.Now()
	}
	t.requests = append(t.requests, r)
	t.ops += len(r.ops)
	q.queued.Add(int64(len(r.ops)))
	select {
	case q.bell <- struct{}{}:
	default:
	}
	return nil
}

// gather appends the next batch to two empty lists: the operations, and where they come from.
func (q *queue) gather(ops []Op, from []entry) ([]Op, []entry) {
	q.mu.Lock()
	defer q.mu.Unlock()
	var l load
	var later []*turn // of tenants who have had their share, or whose next operation is heavy and not for this batch
	several, share := time.Since(q.mixed) < mixedFor, maxBatch
	if several {
		share = batchShare
	}
	for len(q.round) > 0 {
		t := q.round[0]
		if t.taken >= share {
			q.round, later = q.round[1:], append(later, t)
			continue
		}
		r := t.first()
		if r == nil {
			q.round = q.round[1:]
			delete(q.tenants, t.tenant)
			continue
		}
		op := r.ops[r.next]
		large := several && isHeavy(op)
		if large && l.ops > 0 {
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
			delete(q.tenants, t.tenant)
		}
		if large {
			break
		}
	}
	q.round = append(later, q.round...)
	for _, t := range q.round {
		t.taken = 0
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
	q.tenants[r.tenant].ops -= left
	q.queued.Add(-int64(left))
	for ; left > 0; left-- {
		r.next++
		r.answer(r.next-1, err)
	}
}

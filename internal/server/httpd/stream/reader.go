package stream

import (
	"context"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/reads"
)

// The reader merges the reads of all followers of a node.
//
// A follower asks for a query: a run, the line after which to read, and whether the run's row is
// needed. Followers that ask for the same query share one result, so an event with ten thousand
// followers is read a few times. Queries wait in one of two queues:
//
//   - urgent: the doorbell rang, or the follower knows of more lines. Two workers take up to
//     batchSize queries each and read them in one view of the store.
//   - idle: nothing rang, and the follower checks for a lost ring. One worker takes them, a pause
//     after the first, so that followers of many runs share a view.
//
// A worker removes a query from the pending ones before it reads. A query that comes while the read
// is under way is therefore read again: its result is never older than the question.
//
// The last cachedPages pages with lines are cached, and the oldest is evicted first. The lines of a
// log never change, so a cached page is right for a follower with the same cursor. It is not
// current: lines may have followed it, and the run may have ended. The follower asks again
// after it.

// A Reader reads logs for the followers of a node.
type Reader struct {
	engine *engine.Engine

	mu      sync.Mutex
	stopped bool
	// pending has the queries that no worker has taken yet.
	pending map[query]*result
	// urgent and idle have the keys of pending, in the order of arrival.
	urgent []query
	idle   []query

	// cache has the last pages with lines. ring has its keys, and next is the index of the oldest.
	cache map[query]*Page
	ring  [cachedPages]query
	next  int

	// hasUrgent and hasIdle are signalled when a query is queued.
	hasUrgent chan struct{}
	hasIdle   chan struct{}
}

// A query asks for the lines of a log after a line.
type query struct {
	ref   kernel.Ref
	after int64
	// withRun also asks for the run's row.
	withRun bool
	// idle is set for a check that nothing prompted. It may wait for others.
	idle bool
}

// A result is shared by the followers that asked for the same query. Its page and error are set
// before done is closed.
type result struct {
	done chan struct{}
	page *Page
	err  error
}

// A Page is a part of a log, and the state of its run.
type Page struct {
	Head reads.Head
	Run  perdure.Run
	// lines are the frames of the page's lines.
	lines piece
	// upto is the last line of the page, or the cursor if it has none.
	upto int64
	// first is the first line after the cursor that still exists. Earlier ones were removed.
	first int64
	// ended is set if the run has ended and the page has the end of its log.
	ended bool
	// cached is set for a page of the cache: later lines may exist.
	cached bool
}

const (
	// pageLines and pageBytes bound a page. A stream holds one page, and a slow client makes it
	// hold the page for long.
	pageLines = 256
	pageBytes = 32 << 10

	cachedPages   = 64
	urgentWorkers = 2
	batchSize     = 32
	idleBatchSize = 512
	idlePause     = 200 * time.Millisecond
)

// NewReader returns a Reader, which reads while its Run is running.
func NewReader(e *engine.Engine) *Reader {
	return &Reader{engine: e, pending: make(map[query]*result), cache: make(map[query]*Page),
		hasUrgent: make(chan struct{}, 1), hasIdle: make(chan struct{}, 1)}
}

// ask queues a query and returns its result, which is set later. The result is of a moment after
// the call, or a cached page.
func (l *Reader) ask(q query) *result {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		return &result{done: closedChan, err: context.Canceled}
	}
	if p := l.cache[query{ref: q.ref, after: q.after}]; p != nil && !q.withRun {
		page := *p
		page.cached = true
		return &result{done: closedChan, page: &page}
	}
	r := l.pending[q]
	if r != nil {
		return r
	}
	r = &result{done: make(chan struct{})}
	l.pending[q] = r
	if q.idle {
		l.idle = append(l.idle, q)
		signal(l.hasIdle)
	} else {
		l.urgent = append(l.urgent, q)
		signal(l.hasUrgent)
	}
	return r
}

// closedChan is a closed channel.
var closedChan = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// First reads a run and the first page of its log after a line. It gives up when gone is closed.
func (l *Reader) First(gone <-chan struct{}, ref kernel.Ref, after int64) (*Page, error) {
	r := l.ask(query{ref: ref, after: after, withRun: true})
	select {
	case <-r.done:
		return r.page, r.err
	case <-gone:
		return nil, context.Canceled
	}
}

// signal wakes one receiver. The channel has a buffer of one, so a signal is kept until it is read.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run reads until the context ends. It then fails the queries that are pending.
func (l *Reader) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for range urgentWorkers {
		wg.Go(func() {
			for l.wait(ctx, l.hasUrgent, 0) {
				for l.readBatch(ctx, &l.urgent, batchSize, l.hasUrgent) {
				}
			}
		})
	}
	wg.Go(func() {
		for l.wait(ctx, l.hasIdle, idlePause) {
			for l.readBatch(ctx, &l.idle, idleBatchSize, nil) {
			}
		}
	})
	wg.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
	for q, r := range l.pending {
		r.err = context.Canceled
		close(r.done)
		delete(l.pending, q)
	}
}

// wait waits for a signal, and then for the pause. It returns false when the context ends.
func (l *Reader) wait(ctx context.Context, c chan struct{}, pause time.Duration) bool {
	select {
	case <-c:
	case <-ctx.Done():
		return false
	}
	if pause == 0 {
		return true
	}
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// readBatch takes up to limit queries from a queue and reads them in one view of the store. If more
// are queued it signals another worker. It returns false if the queue was empty.
func (l *Reader) readBatch(ctx context.Context, queue *[]query, limit int, more chan struct{}) bool {
	l.mu.Lock()
	n := min(limit, len(*queue))
	queries := append([]query(nil), (*queue)[:n]...)
	if *queue = (*queue)[n:]; len(*queue) == 0 {
		*queue = nil // release the backing array after a burst
	}
	results := make([]*result, n)
	for i, q := range queries {
		results[i] = l.pending[q]
		delete(l.pending, q)
	}
	left := len(*queue) > 0
	l.mu.Unlock()
	if n == 0 {
		return false
	}
	if left && more != nil {
		signal(more)
	}
	looks := make([]*reads.Look, n)
	for i, q := range queries {
		looks[i] = &reads.Look{Tenant: q.ref.Tenant, RunID: q.ref.Run, After: q.after,
			Lines: pageLines, Bytes: pageBytes, Whole: q.withRun}
	}
	err := l.engine.Runs.Look(ctx, looks...)
	for i, r := range results {
		l.finish(r, queries[i], looks[i], err)
	}
	return true
}

// finish sets a result and wakes the followers that wait for it. A page with lines goes to the
// cache.
func (l *Reader) finish(r *result, q query, k *reads.Look, err error) {
	defer close(r.done)
	switch {
	case err != nil:
		r.err = err
	case !k.Found:
		r.err = perdure.Errorf(perdure.CodeNotFound, "no such run")
	default:
		r.page, r.err = newPage(k)
	}
	if r.page != nil && len(r.page.lines.text) > 0 && !q.withRun {
		l.store(query{ref: q.ref, after: q.after}, r.page)
	}
}

// CacheIndex returns the index at which the next page is cached. Tests watch it to see whether
// pages are still read.
func (l *Reader) CacheIndex() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.next
}

// store caches a page, in place of the oldest.
func (l *Reader) store(q query, p *Page) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cache[q] == nil {
		delete(l.cache, l.ring[l.next])
		l.ring[l.next] = q
		l.next = (l.next + 1) % cachedPages
	}
	l.cache[q] = p
}

// newPage encodes the lines of a look as frames.
func newPage(l *reads.Look) (*Page, error) {
	p := &Page{Head: l.Head, Run: l.Run, upto: l.Upto(), ended: l.Ended(), first: l.First()}
	if len(l.Log) > 0 {
		var frames []byte
		for i := range l.Log {
			var err error
			if frames, err = frame(frames, &l.Log[i]); err != nil {
				return nil, err
			}
		}
		p.lines = pieceOf(frames)
	}
	return p, nil
}

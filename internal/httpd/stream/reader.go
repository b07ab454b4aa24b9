package stream

import (
	"context"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/engine"
)

// A Reader reads the logs that the streams of a node follow. Streams that want the same are given the same, and one
// look at the store serves many: an event that ten thousand wait for is read a few times. What was wanted after a look
// has begun is looked at anew. A few pages are kept: the lines of a log never change, so that one that has some
// is as good as a new one to whoever goes on from there.
type Reader struct {
	engine *engine.Engine

	mu      sync.Mutex
	stopped bool
	asked   map[want]*reading
	now     []want // in the order in which they came
	idle    []want

	recent map[want]*Page // with lines
	ring   [keptPages]want
	at     int

	more     chan struct{} // signalled when there is something to read now
	someIdle chan struct{}
}

// A want is for what a log has after a line.
type want struct {
	ref   engine.Ref
	after int64
	whole bool // the run is wanted as well
	idle  bool // there is no reason to think that something is new: it may wait for others
}

// A reading is what those who want the same wait for.
type reading struct {
	done chan struct{}
	page *Page
	err  error
}

// A Page is what a log had.
type Page struct {
	Head  engine.Head
	Run   perdure.Run
	lines piece // as frames of a stream
	upto  int64 // the last of them, or the cursor
	gap   int64 // the first line that there is
	ended bool  // the run has ended and this was the last of its log
	kept  bool  // it is not of now: what is beyond its last line is not known
}

const (
	// pageLines and pageBytes bound a page: a stream holds at most one, and one whose reader is slow holds it for long.
	pageLines = 256
	pageBytes = 32 << 10

	keptPages     = 64
	readersOfLogs = 2
	asksAtOnce    = 32
	idleAtOnce    = 512
	idlePause     = 200 * time.Millisecond
)

// NewReader makes a Reader, which reads while its Run goes on.
func NewReader(e *engine.Engine) *Reader {
	return &Reader{engine: e, asked: make(map[want]*reading), recent: make(map[want]*Page), more: make(chan struct{}, 1), someIdle: make(chan struct{}, 1)}
}

// ask begins to read what a log has after a line, as of a moment after this was called.
func (l *Reader) ask(a want) *reading {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		return &reading{done: over, err: context.Canceled}
	}
	if p := l.recent[want{ref: a.ref, after: a.after}]; p != nil && !a.whole {
		old := *p
		old.kept = true
		return &reading{done: over, page: &old}
	}
	r := l.asked[a]
	if r != nil {
		return r
	}
	r = &reading{done: make(chan struct{})}
	l.asked[a] = r
	if a.idle {
		l.idle = append(l.idle, a)
		signal(l.someIdle)
	} else {
		l.now = append(l.now, a)
		signal(l.more)
	}
	return r
}

// over is closed.
var over = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// First reads a run and what its log has after a line, unless left is closed before.
func (l *Reader) First(left <-chan struct{}, ref engine.Ref, after int64) (*Page, error) {
	r := l.ask(want{ref: ref, after: after, whole: true})
	select {
	case <-r.done:
		return r.page, r.err
	case <-left:
		return nil, context.Canceled
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run reads until the context ends.
func (l *Reader) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for range readersOfLogs {
		wg.Go(func() {
			for l.wait(ctx, l.more, 0) {
				for l.look(ctx, &l.now, asksAtOnce, l.more) {
				}
			}
		})
	}
	wg.Go(func() {
		for l.wait(ctx, l.someIdle, idlePause) {
			for l.look(ctx, &l.idle, idleAtOnce, nil) {
			}
		}
	})
	wg.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
	for a, r := range l.asked {
		r.err = context.Canceled
		close(r.done)
		delete(l.asked, a)
	}
}

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

// look answers the next wants, and tells whether there may be more.
func (l *Reader) look(ctx context.Context, from *[]want, limit int, next chan struct{}) bool {
	l.mu.Lock()
	n := min(limit, len(*from))
	wants := append([]want(nil), (*from)[:n]...)
	if *from = (*from)[n:]; len(*from) == 0 {
		*from = nil // what was a storm once is not kept
	}
	readings := make([]*reading, n)
	for i, a := range wants {
		readings[i] = l.asked[a]
		delete(l.asked, a)
	}
	left := len(*from) > 0
	l.mu.Unlock()
	if n == 0 {
		return false
	}
	if left && next != nil {
		signal(next) // for the other reader
	}
	looks := make([]*engine.Look, n)
	for i, a := range wants {
		looks[i] = &engine.Look{Tenant: a.ref.Tenant, RunID: a.ref.Run, After: a.after, Lines: pageLines, Bytes: pageBytes, Whole: a.whole}
	}
	err := l.engine.Runs.Look(ctx, looks...)
	for i, r := range readings {
		l.settle(r, wants[i], looks[i], err)
	}
	return true
}

// settle answers those who wait for a reading.
func (l *Reader) settle(r *reading, w want, k *engine.Look, err error) {
	defer close(r.done)
	switch {
	case err != nil:
		r.err = err
	case !k.Found:
		r.err = perdure.Errorf(perdure.CodeNotFound, "no such run")
	default:
		r.page, r.err = newPage(k)
	}
	if r.page != nil && len(r.page.lines.text) > 0 && !w.whole {
		l.keep(want{ref: w.ref, after: w.after}, r.page)
	}
}

// Place is where the next page is kept. It changes as long as streams are read for.
func (l *Reader) Place() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.at
}

// keep keeps a page instead of the one that was kept for longest.
func (l *Reader) keep(w want, p *Page) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.recent[w] == nil {
		delete(l.recent, l.ring[l.at])
		l.ring[l.at] = w
		l.at = (l.at + 1) % keptPages
	}
	l.recent[w] = p
}

// newPage is what was seen of a log, as frames.
func newPage(l *engine.Look) (*Page, error) {
	p := &Page{Head: l.Head, Run: l.Run, upto: l.Upto(), ended: l.Ended(), gap: l.First()}
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

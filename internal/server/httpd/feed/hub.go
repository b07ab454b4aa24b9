package feed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/doorbell"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/fair"
)

// A Hub looks at the questions of all clients of a node.
type Hub struct {
	opt Options
	// Gate divides the looks among tenants. Tests take its units to hold looks up.
	Gate *fair.Gate

	mu    sync.Mutex
	loops map[perdure.TenantID]*loop

	looks atomic.Int64
}

// Options configure a hub.
type Options struct {
	Bell doorbell.Bell
	// Fallback is the interval at which questions are looked at without a ring.
	Fallback time.Duration
	// Go runs a loop in the background. It returns false if the server shuts down.
	Go     func(func()) bool
	Logger *slog.Logger
	// Closing is closed when the server shuts down.
	Closing <-chan struct{}
}

const (
	// LookEvery is the usual least time between two looks at a question.
	LookEvery = 250 * time.Millisecond
	// FollowEvery is that of a question about the logs of a few runs, or of one tree: people read them
	// while they are written.
	FollowEvery = 100 * time.Millisecond
	// lookRest is how long a question rests after a look, as a multiple of the look's time.
	lookRest = 5
	// A question with many clients and large messages is looked at less often: changes are merged.
	// fanOutRate is the bytes per second that it may send in all, and maxFanOutRest bounds the rest.
	fanOutRate    = 32 << 20
	maxFanOutRest = 250 * time.Millisecond
	// retryAfter is how long a question rests after the store could not be read.
	retryAfter = time.Second

	// MaxReads bounds the looks that are made at the same time, so that readers of the store are left
	// for other calls. A tenant has one of them while others want some.
	MaxReads = 2
	// MaxWatches bounds the watches of a client.
	MaxWatches = 16
	// maxQuestions bounds the different questions of a tenant.
	maxQuestions = 256
	// maxQueued bounds the bytes of the messages that wait for a client. One message always fits.
	maxQueued = 1 << 20
)

// NewHub makes a hub.
func NewHub(opt Options) *Hub {
	return &Hub{opt: opt, loops: make(map[perdure.TenantID]*loop),
		Gate: fair.NewGate(fair.Limits{Size: MaxReads, Share: MaxReads / 2})}
}

// Looks returns the number of looks that were made.
func (h *Hub) Looks() int64 { return h.looks.Load() }

// A Question is what a client watches.
type Question struct {
	// Tenant is the owner of the rows; kernel.AllTenants for those of all tenants.
	Tenant perdure.TenantID
	// Key identifies the question. Questions of a tenant with equal keys are one.
	Key string
	// Every is the least time between two looks. The default is LookEvery.
	Every time.Duration
	// Fallback is the interval without a ring, if it is shorter than that of the hub.
	Fallback time.Duration
	// New makes the looker of the question.
	New func() Looker
}

// A Looker compares the store with what the clients of a question know. Its methods are called one
// at a time.
type Looker interface {
	// Look returns the difference since the last look, or nil if there is none. With snapshot set,
	// it also returns a message with the whole state after it. more asks for another look.
	Look(ctx context.Context, snapshot bool) (news, whole *Message, more bool, err error)
}

// A question is a Question that clients watch. The loop's mutex guards its fields, but only the
// loop's goroutine uses looker.
type question struct {
	Question
	loop    *loop
	looker  Looker
	watches []*watch

	// due is set if the store may have changed since the last look.
	due bool
	// rests is the time before which the question is not looked at.
	rests time.Time
	// fallback is when it is looked at without a ring.
	fallback time.Time
}

// A watch is a client's interest in a question.
type watch struct {
	client *Client
	id     string
	plain  bool
	q      *question
	// behind is set if the client needs a snapshot, and asked if it is ready to read it.
	behind, asked bool
	// answered is set when the client has got its first snapshot.
	answered bool
}

// A loop looks at the questions of a tenant.
type loop struct {
	hub    *Hub
	tenant perdure.TenantID
	wake   chan struct{}

	mu        sync.Mutex
	questions map[string]*question
	// ended is set when the loop has ended, because it had no questions.
	ended bool
}

// ErrTooMany refuses a watch.
var ErrTooMany = perdure.Errorf(perdure.CodeTooMany, "a socket has at most %d watches", MaxWatches)

// A Client is a socket's end of the hub.
type Client struct {
	hub *Hub
	// ready is signalled when a message is queued.
	ready chan struct{}
	// changing is held while watches are added or removed. It is taken before mu and before the
	// locks of the hub and the loop.
	changing sync.Mutex

	mu      sync.Mutex
	watches map[string]*watch
	queue   []Delivery
	queued  int
	closed  bool
}

// A Delivery is a message for a client, or an error that ends one of its watches.
type Delivery struct {
	// ID is that of the watch, and Plain its form.
	ID      string
	Plain   bool
	Message *Message
	Err     error

	watch *watch
}

// Open makes a client. It has to be closed.
func (h *Hub) Open() *Client {
	return &Client{hub: h, ready: make(chan struct{}, 1), watches: make(map[string]*watch)}
}

// Ready is signalled when Next may have something.
func (c *Client) Ready() <-chan struct{} { return c.ready }

// Watch begins to watch a question. The first message is a snapshot. A watch with the same id is
// replaced; with an error nothing changes.
func (c *Client) Watch(id string, plain bool, q Question) error {
	c.changing.Lock()
	defer c.changing.Unlock()
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	old := c.watches[id]
	if old == nil && len(c.watches) >= MaxWatches {
		c.mu.Unlock()
		return ErrTooMany
	}
	w := &watch{client: c, id: id, plain: plain, behind: true, asked: true}
	c.watches[id] = w
	c.drop(old)
	c.mu.Unlock()
	if err := c.hub.join(w, q); err != nil {
		c.mu.Lock()
		delete(c.watches, id)
		if old != nil {
			c.watches[id] = old
			old.behind = true
		}
		c.mu.Unlock()
		return err
	}
	if old != nil {
		old.leave()
	}
	return nil
}

// Unwatch ends a watch. It tells whether there was one.
func (c *Client) Unwatch(id string) bool {
	c.changing.Lock()
	defer c.changing.Unlock()
	c.mu.Lock()
	w := c.watches[id]
	delete(c.watches, id)
	c.drop(w)
	c.mu.Unlock()
	if w == nil {
		return false
	}
	w.leave()
	return true
}

// Close ends all watches.
func (c *Client) Close() {
	c.changing.Lock()
	defer c.changing.Unlock()
	c.mu.Lock()
	list := c.watches
	c.watches, c.queue, c.queued, c.closed = nil, nil, 0, true
	c.mu.Unlock()
	for _, w := range list {
		w.leave()
	}
}

// Next returns the next message. If the client is behind with a watch, it asks for a snapshot.
func (c *Client) Next() (d Delivery, ok bool) {
	c.mu.Lock()
	if len(c.queue) > 0 {
		d, ok = c.queue[0], true
		c.queue[0] = Delivery{} // free the message
		if c.queue = c.queue[1:]; len(c.queue) == 0 {
			c.queue = nil
		}
		if d.Message != nil {
			c.queued -= d.Message.size
		}
		c.mu.Unlock()
		return d, ok
	}
	var ask []*watch
	for _, w := range c.watches {
		if w.behind && !w.asked {
			w.asked = true
			ask = append(ask, w)
		}
	}
	c.mu.Unlock()
	for _, w := range ask {
		w.ask()
	}
	return d, false
}

// drop removes what is queued for a watch. The caller holds c.mu.
func (c *Client) drop(w *watch) {
	if w == nil {
		return
	}
	c.queue = slices.DeleteFunc(c.queue, func(d Delivery) bool {
		if d.watch != w {
			return false
		}
		if d.Message != nil {
			c.queued -= d.Message.size
		}
		return true
	})
}

// push queues a message for a watch. A client with too much in its queue falls behind instead.
func (w *watch) push(m *Message, snapshot bool) {
	c := w.client
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.watches[w.id] != w:
		return // the watch has ended
	case snapshot != w.behind:
		return // the client has newer rows, or waits for a snapshot
	case c.queued > 0 && c.queued+m.size > maxQueued:
		c.drop(w)
		w.behind, w.asked = true, false
	default:
		w.behind, w.asked, w.answered = false, false, true
		c.queue = append(c.queue, Delivery{ID: w.id, Plain: w.plain, Message: m, watch: w})
		c.queued += m.size
	}
	c.signal()
}

// fail ends a watch that has got nothing yet, with an error.
func (w *watch) fail(err error) (ended bool) {
	c := w.client
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.answered || c.watches[w.id] != w {
		return false
	}
	delete(c.watches, w.id)
	c.queue = append(c.queue, Delivery{ID: w.id, Plain: w.plain, Err: err, watch: w})
	c.signal()
	return true
}

// signal wakes the socket. The caller holds c.mu.
func (c *Client) signal() {
	select {
	case c.ready <- struct{}{}:
	default:
	}
}

// join adds a watch to its question, and starts what does not run yet.
func (h *Hub) join(w *watch, q Question) error {
	for {
		h.mu.Lock()
		l := h.loops[q.Tenant]
		fresh := l == nil
		if fresh {
			l = &loop{hub: h, tenant: q.Tenant, wake: make(chan struct{}, 1), questions: make(map[string]*question)}
			h.loops[q.Tenant] = l
		}
		h.mu.Unlock()
		joined, err := l.add(w, q)
		if fresh && !h.opt.Go(l.run) {
			l.end()
			return perdure.Errorf(perdure.CodeUnavailable, "the server shuts down")
		}
		if joined || err != nil {
			return err
		}
		// The loop has ended meanwhile.
	}
}

// add adds a watch to a question of the loop.
func (l *loop) add(w *watch, asked Question) (joined bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return false, nil
	}
	q := l.questions[asked.Key]
	if q == nil {
		if len(l.questions) >= maxQuestions {
			return false, perdure.Errorf(perdure.CodeTooMany,
				"this tenant watches %d different lists on this node, as many as it may", maxQuestions)
		}
		if asked.Every == 0 {
			asked.Every = LookEvery
		}
		q = &question{Question: asked, loop: l, looker: asked.New()}
		l.questions[asked.Key] = q
	}
	w.q = q
	q.watches = append(q.watches, w)
	q.due = true
	l.signal()
	return true, nil
}

// leave removes a watch from its question, and the question if it was the last.
func (w *watch) leave() {
	l := w.q.loop
	l.mu.Lock()
	defer l.mu.Unlock()
	q := w.q
	if i := slices.Index(q.watches, w); i >= 0 {
		q.watches = slices.Delete(q.watches, i, i+1)
	}
	if len(q.watches) == 0 && l.questions[q.Key] == q {
		delete(l.questions, q.Key)
		l.signal()
	}
}

// ask has the question looked at, because the watch needs a snapshot.
func (w *watch) ask() {
	l := w.q.loop
	l.mu.Lock()
	defer l.mu.Unlock()
	w.q.due = true
	l.signal()
}

func (l *loop) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// end removes the loop from the hub, if it has no questions. It tells whether it did.
func (l *loop) end() bool {
	l.hub.mu.Lock() // before the lock of the loop
	defer l.hub.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.hub.opt.Closing:
	default:
		if len(l.questions) > 0 {
			return false
		}
	}
	l.ended = true
	if l.hub.loops[l.tenant] == l {
		delete(l.hub.loops, l.tenant)
	}
	return true
}

// run looks at the questions of a tenant until there are none, or the server shuts down.
func (l *loop) run() {
	ctx, cancel := context.WithCancel(fair.With(context.Background(), l.tenant))
	defer cancel()
	rung, stop := l.hub.opt.Bell.Listen(doorbell.Run(l.tenant, kernel.AnyRun))
	defer stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		q, wait, any := l.next(time.Now())
		switch {
		case !any:
			if l.end() {
				return
			}
			continue
		case q != nil:
			took := l.look(ctx, q)
			wait = took // the loop uses at most half of a reader
		}
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-rung:
			l.ring()
			if q != nil {
				<-timer.C
			}
		case <-l.wake:
			if q != nil {
				<-timer.C
			}
		case <-l.hub.opt.Closing:
			l.end()
			return
		}
	}
}

// ring makes all questions due.
func (l *loop) ring() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, q := range l.questions {
		q.due = true
	}
}

// next returns the question that is due for longest, or how long there is none. any is false if
// the loop has no questions.
func (l *loop) next(now time.Time) (next *question, wait time.Duration, any bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var at time.Time
	for _, q := range l.questions {
		t := q.rests
		if !q.due {
			t = q.fallback
		}
		if next == nil || t.Before(at) {
			next, at = q, t
		}
	}
	if wait = at.Sub(now); next == nil || wait > 0 {
		return nil, wait, next != nil
	}
	return next, 0, true
}

// look looks at a question and passes the result to its clients. It returns how long that took.
func (l *loop) look(ctx context.Context, q *question) (took time.Duration) {
	leave, err := l.hub.Gate.Enter(ctx, l.tenant, 1)
	if err != nil {
		return 0
	}
	began := time.Now()
	l.mu.Lock()
	q.due = false
	list := slices.Clone(q.watches)
	l.mu.Unlock()
	whole := slices.ContainsFunc(list, func(w *watch) bool {
		w.client.mu.Lock()
		defer w.client.mu.Unlock()
		return w.behind && w.asked
	})
	l.hub.looks.Add(1)
	news, snapshot, more, err := lookSafely(ctx, q.looker, whole)
	leave()
	took = time.Since(began)
	rest := max(q.Every, lookRest*took)
	if err != nil {
		rest = retryAfter
		l.failed(q, list, err)
	}
	for _, w := range list {
		if news != nil {
			w.push(news, false)
		}
		if snapshot != nil {
			w.push(snapshot, true)
		}
	}
	if news != nil {
		bytes := float64(news.size * len(list))
		rest += min(maxFanOutRest, time.Duration(bytes/fanOutRate*float64(time.Second)))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	fallback := l.hub.opt.Fallback
	if q.Fallback > 0 {
		fallback = min(fallback, q.Fallback)
	}
	q.rests, q.fallback = began.Add(rest), began.Add(max(rest, fallback))
	q.due = q.due || more
	return took
}

// lookSafely turns a panic of a look into an error, so that it ends no other question.
func lookSafely(ctx context.Context, l Looker, whole bool) (news, snapshot *Message, more bool, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return l.Look(ctx, whole)
}

// failed ends the watches that have got nothing yet. The others keep what they have, and the store
// is read again later.
func (l *loop) failed(q *question, list []*watch, err error) {
	var refused *perdure.Error
	if !errors.As(err, &refused) {
		l.hub.opt.Logger.Warn("a watched list can't be read", "tenant", l.tenant, "error", err)
	}
	for _, w := range list {
		if w.fail(err) {
			w.leave()
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	q.due = true
}

func quote(s string) []byte {
	b, _ := json.Marshal(s)
	return b
}

// Behind tells whether the client needs a snapshot of one of its watches. Tests use it.
func (c *Client) Behind() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.watches {
		if w.behind && w.answered {
			return true
		}
	}
	return false
}

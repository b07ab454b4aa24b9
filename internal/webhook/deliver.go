package webhook

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/engine"
	"github.com/perdure/perdure/internal/store"
)

// Options of a deliverer. The zero value is usable.
type Options struct {
	Sender      Sender // default: HTTP, to public addresses only
	Logger      *slog.Logger
	BaseURL     string        // what the URLs in a message begin with; empty: they begin with a slash
	Concurrency int           // how many messages are on their way at once; default 64
	PerEndpoint int           // how many of them to one endpoint; default 4
	Look        time.Duration // how often it looks for what other nodes left, and what nobody told it of; default 1 s
}

// Bounds of what is in memory and of what is asked for at once.
const (
	minHold = time.Second // how long an endpoint that failed is left alone, doubled each time …
	maxHold = time.Minute // … up to this
	grace   = time.Second // how long messages that are on their way have to arrive when the node stops
	page    = 2000        // endpoints that one look finds
)

// A Deliverer sends what is due. Any number of nodes do so at once: what one has taken nobody else sends, until a
// minute has passed without a word of it. So a message is sent at least once, and the order between messages is
// not kept.
//
// Every endpoint has a queue of its own. One that hangs, fails or has a hundred thousand messages before it takes no
// place from others: few of its messages are on their way at once, and only one until the first has arrived or while
// it fails. Endpoints that were not reached yet leave a quarter of the places to those that were, and those that
// fail have no more than a quarter. One that fails is left alone for a while, which is kept in memory: each node finds
// out by itself.
type Deliverer struct {
	engine *engine.Engine
	opt    Options
	log    *slog.Logger

	boxes   map[box]*queue
	looked  store.Mailbox // how far the last look came
	lookAt  perdure.Instant
	flying  [3]int           // messages on their way, by what their endpoint was known to be then
	landed  chan engine.Sent // what became of them
	results []engine.Sent    // and is not written down yet
}

// A box names an endpoint.
type box struct {
	tenant perdure.TenantID
	id     perdure.WebhookID
}

// A queue is what a node knows of an endpoint. It may be forgotten at any time.
type queue struct {
	due    perdure.Instant // when there is something to send, as far as is known; 0: nothing
	anew   bool            // somebody has changed the endpoint
	known  standing
	flying int             // of its messages
	flown  standing        // what it was known to be when they left
	hold   perdure.Instant // until when it is left alone
	fails  int             // how often it has failed in a row
	failed perdure.Instant // when it was last seen to
}

// What is known of an endpoint.
type standing int

const (
	untried standing = iota
	failing          // the last message did not arrive
	working          // it did
)

// New makes a deliverer for an engine.
func New(e *engine.Engine, opt Options) *Deliverer {
	if opt.Sender == nil {
		opt.Sender = NewHTTP(HTTPOptions{})
	}
	if opt.Concurrency < 1 {
		opt.Concurrency = 64
	}
	if opt.PerEndpoint < 1 {
		opt.PerEndpoint = 4
	}
	if opt.Look <= 0 {
		opt.Look = time.Second
	}
	d := &Deliverer{engine: e, opt: opt, log: opt.Logger, boxes: make(map[box]*queue), landed: make(chan engine.Sent, opt.Concurrency)}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	return d
}

// Run delivers until the context ends. What is on its way then has a moment to arrive; what does not is due again at
// once, for whoever is there.
func (d *Deliverer) Run(ctx context.Context) error {
	sending, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return d.drain(sending, stop)
		case s := <-d.landed:
			d.land(s)
		case <-d.engine.Posted():
		case <-timer.C:
		}
		pause, err := d.pass(ctx, sending)
		if err != nil && ctx.Err() == nil {
			d.log.Error("webhooks could not be looked after", "error", err)
		}
		timer.Reset(pause)
	}
}

// pass writes down what became of messages, takes what is due, and has it sent. It gives the time until there may be
// more to do.
func (d *Deliverer) pass(ctx, sending context.Context) (time.Duration, error) {
	for more := true; more; {
		select {
		case s := <-d.landed:
			d.land(s)
		default:
			more = false
		}
	}
	now := d.engine.Store().Now()
	for _, p := range d.engine.TakePosted() {
		q := d.queue(box{p.Tenant, p.Webhook})
		q.due = now
		if p.Anew {
			q.anew, q.hold, q.fails = true, 0, 0
		}
	}
	if now >= d.lookAt {
		if err := d.look(ctx, now); err != nil {
			return d.opt.Look, err
		}
	}
	op := &engine.Deliver{Sent: d.results, Want: d.wants(now)}
	if len(op.Sent)+len(op.Want) > 0 {
		if err := d.engine.Do(ctx, op); err != nil {
			return d.opt.Look, fmt.Errorf("take and settle: %w", err) // what became of messages is kept, and written down later
		}
		d.results = nil
		d.took(sending, op)
		if len(op.More) > 0 {
			return 0, nil
		}
	}
	return d.pause(now), nil
}

func (d *Deliverer) queue(b box) *queue {
	q := d.boxes[b]
	if q == nil {
		q = &queue{}
		d.boxes[b] = q
	}
	return q
}

// look asks the store which endpoints have something to send, and when.
func (d *Deliverer) look(ctx context.Context, now perdure.Instant) error {
	var list []store.Mailbox
	err := d.engine.Store().View(ctx, func(v *store.View) (err error) {
		list, err = v.Mailboxes(d.looked, page)
		return err
	})
	if err != nil {
		return fmt.Errorf("look for what is due: %w", err)
	}
	for _, m := range list {
		d.queue(box{m.Tenant, m.Webhook}).due = m.Due
	}
	d.looked, d.lookAt = store.Mailbox{}, now.Add(d.opt.Look)
	if len(list) == page {
		d.looked = list[page-1] // the others are looked at next time
		return nil
	}
	for b, q := range d.boxes { // of those with nothing to send little is remembered
		if q.due == 0 && q.flying == 0 && !q.anew && q.hold <= now && (q.known != working || len(d.boxes) > page) {
			delete(d.boxes, b)
		}
	}
	return nil
}

// wants says which messages there is a place for.
func (d *Deliverer) wants(now perdure.Instant) []engine.Want {
	var out []engine.Want
	all, quarter := d.opt.Concurrency, max(1, d.opt.Concurrency/4)
	flying := d.flying
	free := func(known standing) int {
		n := all - flying[untried] - flying[failing] - flying[working]
		switch known {
		case failing:
			n = min(n, quarter-flying[failing])
			fallthrough
		case untried:
			n = min(n, max(1, all-quarter)-flying[untried]-flying[failing])
		}
		return n
	}
	for b, q := range d.boxes {
		n, most := 0, d.opt.PerEndpoint
		if q.known != working {
			most = 1
		}
		if q.due != 0 && q.due <= now && q.hold <= now {
			n = max(0, min(free(q.known), most-q.flying))
		}
		if n == 0 && !q.anew {
			continue
		}
		flying[q.known] += n
		out = append(out, engine.Want{Tenant: b.tenant, Webhook: b.id, Most: n})
	}
	return out
}

// took has what was taken sent.
func (d *Deliverer) took(sending context.Context, op *engine.Deliver) {
	got := make(map[box]int)
	for _, o := range op.Taken {
		b := box{o.Tenant, o.Webhook}
		got[b]++
		q := d.queue(b)
		q.flying, q.flown = q.flying+1, q.known
		d.flying[q.known]++
		go func() { d.landed <- d.send(sending, &o) }()
	}
	for _, w := range op.Want {
		b := box{w.Tenant, w.Webhook}
		q := d.queue(b)
		if q.anew = slices.Contains(op.More, w); got[b] < w.Most && !q.anew {
			q.due = 0 // there is no more, until somebody says so
		}
	}
	for _, m := range op.Again {
		if q := d.queue(box{m.Tenant, m.Webhook}); q.due == 0 || m.Due < q.due {
			q.due = m.Due
		}
	}
}

// send makes one attempt.
func (d *Deliverer) send(ctx context.Context, o *engine.Outgoing) engine.Sent {
	s := engine.Sent{Notification: o.Notification, At: d.engine.Store().Now()}
	m, err := d.message(ctx, o)
	if err != nil {
		s.Error, s.Stopped = "the server could not read what to send", true
		if ctx.Err() == nil {
			d.log.Error("a message could not be made", "delivery", o.ID(), "run", o.RunID, "error", err)
		}
		return s
	}
	r := d.opt.Sender.Send(ctx, m)
	s.Took, s.Status, s.Error, s.Response, s.RetryAfter = r.Took, r.Status, r.Err, r.Response, r.RetryAfter
	s.Stopped = ctx.Err() != nil && r.Status == 0
	if s.Error == "" && !s.OK() {
		s.Error = fmt.Sprintf("the receiver answered %d", s.Status)
	}
	return s
}

// message makes a message out of what never changes, so that it is the same with every attempt.
func (d *Deliverer) message(ctx context.Context, o *engine.Outgoing) (Message, error) {
	l := &engine.Look{Tenant: o.Tenant, RunID: o.RunID, After: o.Seq - 1, Lines: 1, Bytes: math.MaxInt, Whole: true}
	if err := d.engine.Look(ctx, l); err != nil {
		return Message{}, err
	}
	if !l.Found || len(l.Log) == 0 || l.Log[0].Seq != o.Seq {
		return Message{}, fmt.Errorf("line %d of run %s is gone", o.Seq, o.RunID)
	}
	body, err := Body(d.opt.BaseURL, &l.Run, &l.Log[0])
	return Message{ID: o.ID(), URL: o.To.URL, Secrets: d.engine.WebhookSecrets(&o.To, d.engine.Store().Now()), Body: body}, err
}

// land notes what became of a message. It is written down with the next pass.
func (d *Deliverer) land(s engine.Sent) {
	d.results = append(d.results, s)
	now := d.engine.Store().Now()
	q := d.queue(box{s.Tenant, s.Webhook})
	q.flying--
	d.flying[q.flown]-- // all that are on their way left together: with another standing none leaves before they have landed
	switch {
	case s.Stopped:
		q.hold = max(q.hold, now.Add(minHold)) // it is the store that can't be read, or the end
	case s.OK():
		q.known, q.fails, q.hold = working, 0, 0
	default:
		q.known = failing
		if s.At >= q.failed { // those that were on their way together fail together
			q.fails++
		}
		q.failed = now
		q.hold = now.Add(max(min(minHold<<min(q.fails-1, 10), maxHold), min(s.RetryAfter, engine.MaxRetryAfter)))
	}
}

// pause is the time until there may be something to do of which nobody tells.
func (d *Deliverer) pause(now perdure.Instant) time.Duration {
	next := d.lookAt
	for _, q := range d.boxes {
		if at := max(q.due, q.hold); q.due != 0 && at > now { // what is due already waits for a place, and there is word when one is free
			next = min(next, at)
		}
	}
	return max(0, next.Sub(now))
}

// drain waits for what is on its way, though not for long, and writes down what became of it.
func (d *Deliverer) drain(sending context.Context, stop context.CancelFunc) error {
	late := time.AfterFunc(grace, stop)
	defer late.Stop()
	for d.flying != [3]int{} {
		d.land(<-d.landed)
	}
	if len(d.results) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(sending), 5*time.Second)
	defer cancel()
	return d.engine.Do(ctx, &engine.Deliver{Sent: d.results})
}

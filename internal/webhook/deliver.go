package webhook

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/engine"
	"github.com/perdure/perdure/internal/fair"
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
	minHold = time.Second     // how long an endpoint that failed is left alone, doubled each time …
	maxHold = time.Minute     // … up to this
	grace   = time.Second     // how long messages that are on their way have to arrive when the node stops
	lazy    = 2 * time.Second // an endpoint that takes longer to answer is slow

	page     = 500  // endpoints that one look visits
	idle     = 5    // looks that are left out when nothing is due
	maxBoxes = 4000 // endpoints that are known at once

	// rest is for how many times as long as a step took that fans events out, or gives messages up, the next one waits.
	rest = 3
	// builders is how many messages are made at once: each reads a whole line, which may have a large result in it.
	builders = 8
)

// A Deliverer sends what is due. Any number of nodes do so at once: what one has taken nobody else sends, until a
// minute has passed without a word of it. So a message is sent at least once, and the order between messages is
// not kept.
//
// Every endpoint has a queue of its own. One that hangs, fails or has a hundred thousand messages before it takes no
// place from others: few of its messages are on their way at once, and only one until the first was answered or while
// it fails. A share of the places is for endpoints that are known to be quick, and no tenant has more than half of
// them while there are others. One that fails is left alone for a while, which is kept in memory: each node finds out by
// itself.
type Deliverer struct {
	engine *engine.Engine
	opt    Options
	log    *slog.Logger

	boxes   map[box]*queue
	shares  map[perdure.TenantID]*share
	full    map[perdure.TenantID]bool // who has asked for more endpoints than can be known, in this pass
	looked  store.Mailbox             // how far the last look came
	deep    []store.Mailbox           // tenants with more endpoints than a look visits, each with how far it came there
	lookAt  perdure.Instant
	next    perdure.Instant // when something rings of what was looked at, or a look is due anyway
	around  bool            // everything was looked at once
	flying  places          // messages on their way, by what their endpoint was known to be then
	landed  chan landing    // what became of them
	results []engine.Sent   // and is not written down yet

	fanning  bool             // there are events that wait for their fan-out
	fanned   perdure.TenantID // the tenant whose turn it was last
	fanAt    perdure.Instant  // when the next step is
	building *fair.Gate       // places of messages that are being made
}

// A landing is what became of a message, and what its endpoint was known to be when it left.
type landing struct {
	engine.Sent
	as   standing
	late bool // the answer took long
}

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
	d := &Deliverer{engine: e, opt: opt, log: opt.Logger, boxes: make(map[box]*queue), shares: make(map[perdure.TenantID]*share),
		full: make(map[perdure.TenantID]bool), landed: make(chan landing, opt.Concurrency), building: fair.NewGate(fair.Limits{Size: builders, Share: builders / 2})}
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
	clear(d.full)
	for _, p := range d.engine.TakePosted() {
		if p.Webhook == "" {
			d.fanning = true
			continue
		}
		q := d.queue(box{p.Tenant, p.Webhook}, now)
		if q == nil {
			continue
		}
		if q.ring(now); p.Anew {
			q.anew, q.hold, q.fails = true, 0, 0
		}
	}
	if now >= d.lookAt {
		if err := d.look(ctx, now); err != nil {
			return d.opt.Look, err
		}
	}
	fanErr := d.fanOut(ctx, now) // what is due already is sent all the same
	op := &engine.Deliver{Sent: d.results, Want: d.wants(now)}
	if len(op.Sent)+len(op.Want) > 0 {
		began := time.Now()
		if err := d.engine.Do(ctx, op); err != nil {
			return d.opt.Look, fmt.Errorf("take and settle: %w", err) // what became of messages is kept, and written down later
		}
		d.results = nil
		if more := d.took(sending, op, now, now.Add(rest*time.Since(began))); more {
			return 0, fanErr
		}
	}
	return d.pause(now), fanErr
}

// fanOut makes notifications of events that wait for it, one step of many. Between steps the store is left to others.
func (d *Deliverer) fanOut(ctx context.Context, now perdure.Instant) error {
	if !d.fanning || now < d.fanAt {
		return nil
	}
	began := time.Now()
	op := &engine.FanOut{After: d.fanned}
	if err := d.engine.Do(ctx, op); err != nil {
		d.fanAt = now.Add(d.opt.Look)
		return fmt.Errorf("fan events out: %w", err)
	}
	d.fanned, d.fanning, d.fanAt = op.Last, op.More, now.Add(rest*time.Since(began))
	return nil
}

// look asks the store which endpoints have something to send, and when: of a page of them each time. Of those with nothing
// to send yet it remembers when to look again.
func (d *Deliverer) look(ctx context.Context, now perdure.Instant) error {
	var list, more []store.Mailbox
	err := d.engine.Store().View(ctx, func(v *store.View) (err error) {
		if !d.fanning {
			n, err := v.FanOutsWaiting(1)
			if err != nil {
				return err
			}
			d.fanning = n > 0
		}
		if list, err = v.Mailboxes(d.looked, page); err == nil && len(d.deep) > 0 {
			more, err = v.MailboxesOf(d.deep[0], page)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("look for what is due: %w", err)
	}
	if d.looked == (store.Mailbox{}) && len(d.deep) == 0 {
		d.next = now.Add(idle * d.opt.Look)
	}
	d.deepen(list, more)
	for _, m := range slices.Concat(list, more) {
		b := box{m.Tenant, m.Webhook}
		q := d.boxes[b]
		if m.Due <= now {
			q = d.queue(b, now)
		}
		if q != nil {
			q.ring(m.Due)
		} else {
			d.next = min(d.next, m.Due)
		}
	}
	d.looked, d.lookAt = store.Mailbox{}, max(d.next, now.Add(d.opt.Look))
	if len(list) == page {
		d.looked = list[page-1]
	}
	if len(list) == page || len(d.deep) > 0 { // the others are looked at next time, and at once if they never were
		if d.lookAt = now; d.around {
			d.lookAt = now.Add(d.opt.Look)
		}
		return nil
	}
	d.around = true
	for _, q := range d.boxes { // of those with nothing to send little is remembered
		if q.due == 0 && q.flying == 0 && !q.anew && q.hold <= now && q.known != quick {
			d.forget(q)
		}
	}
	return nil
}

// deepen notes the tenants of which a look has seen some endpoints and not the others. These have their turns one tenant after the
// other, a page each time: one with a hundred thousand endpoints delays no look at anybody else's.
func (d *Deliverer) deepen(list, more []store.Mailbox) {
	var done perdure.TenantID // it begins anew with a later look
	if len(d.deep) > 0 {
		done = d.deep[0].Tenant
		d.deep = slices.Delete(d.deep, 0, 1)
		if len(more) == page {
			d.deep = append(d.deep, more[page-1])
		}
	}
	each := 0
	for i, m := range list {
		if each++; i > 0 && list[i-1].Tenant != m.Tenant {
			each = 1
		}
		if each == store.MailboxesEach && m.Tenant != done && !slices.ContainsFunc(d.deep, func(x store.Mailbox) bool { return x.Tenant == m.Tenant }) {
			d.deep = append(d.deep, m)
		}
	}
}

// took has what was taken sent. It tells whether there is more to be had at once. Endpoints with more to give up have their next
// turn at an instant.
func (d *Deliverer) took(sending context.Context, op *engine.Deliver, now, turn perdure.Instant) (more bool) {
	got := make(map[box]int)
	for _, o := range op.Taken {
		b := box{o.Tenant, o.Webhook}
		got[b]++
		q := d.boxes[b]
		as := q.known
		q.flying, q.served = q.flying+1, now
		q.of.flying[as]++
		d.flying[as]++
		go func() { d.landed <- d.send(sending, &o, as) }()
	}
	for _, w := range op.Want {
		b := box{w.Tenant, w.Webhook}
		q := d.boxes[b]
		if q.anew = slices.Contains(op.More, w); q.anew {
			q.turn = turn
			q.ring(now)
			more = more || turn <= now
		} else if got[b] < w.Most {
			q.due = 0 // there is no more, until somebody says so
		}
	}
	for _, m := range op.Again {
		if q := d.boxes[box{m.Tenant, m.Webhook}]; q != nil {
			q.ring(m.Due)
			more = more || q.ready(now)
		}
	}
	return more
}

// send makes one attempt.
func (d *Deliverer) send(ctx context.Context, o *engine.Outgoing, as standing) landing {
	s := landing{Sent: engine.Sent{Notification: o.Notification, At: d.engine.Store().Now()}, as: as}
	m, err := d.build(ctx, o)
	if err != nil {
		s.Unsent, s.Stopped, s.Error = true, ctx.Err() != nil, "the server could not read what to send"
		if s.Gone = errors.Is(err, errGone) && !s.Stopped; s.Gone {
			s.Error = errGone.Error()
		}
		if !s.Stopped {
			d.log.Error("a message could not be made", "delivery", o.ID(), "run", o.RunID, "error", err)
		}
		return s
	}
	began := time.Now()
	r := d.opt.Sender.Send(ctx, m)
	s.late = time.Since(began) > lazy
	s.Took, s.Status, s.Error, s.Response, s.RetryAfter = r.Took, r.Status, r.Err, r.Response, r.RetryAfter
	s.Stopped = ctx.Err() != nil && r.Status == 0
	if s.Error == "" && !s.OK() {
		s.Error = fmt.Sprintf("the receiver answered %d", s.Status)
	}
	return s
}

// build makes a message when there is a place for it: what was read is let go of before it is sent.
func (d *Deliverer) build(ctx context.Context, o *engine.Outgoing) (Message, error) {
	leave, err := d.building.Enter(ctx, o.Tenant, 1)
	if err != nil {
		return Message{}, err
	}
	defer leave()
	return d.message(fair.With(ctx, o.Tenant), o)
}

var errGone = errors.New("the event is no longer there")

// message makes a message out of what never changes, so that it is the same with every attempt.
func (d *Deliverer) message(ctx context.Context, o *engine.Outgoing) (Message, error) {
	l := &engine.Look{Tenant: o.Tenant, RunID: o.RunID, After: o.Seq - 1, Lines: 1, Bytes: math.MaxInt, Whole: true}
	if err := d.engine.Look(ctx, l); err != nil {
		return Message{}, err
	}
	if !l.Found || len(l.Log) == 0 || l.Log[0].Seq != o.Seq {
		return Message{}, errGone
	}
	body, err := Body(d.opt.BaseURL, &l.Run, &l.Log[0])
	return Message{ID: o.ID(), URL: o.To.URL, Secrets: d.engine.WebhookSecrets(&o.To, d.engine.Store().Now()), Body: body}, err
}

// land notes what became of a message. It is written down with the next pass.
func (d *Deliverer) land(s landing) {
	d.results = append(d.results, s.Sent)
	now := d.engine.Store().Now()
	q := d.boxes[box{s.Tenant, s.Webhook}]
	q.flying--
	q.of.flying[s.as]--
	d.flying[s.as]--
	switch {
	case s.Stopped:
		q.hold = max(q.hold, now.Add(minHold)) // it is the end
	case s.Gone: // that is between the message and the store
	case s.Unsent:
		q.backOff(s.At, now, 0)
	case s.Down():
		q.known = failing
		q.backOff(s.At, now, s.RetryAfter)
	default: // it was answered: whether it was taken is about this message alone
		q.known, q.fails, q.hold = quick, 0, 0
		if s.late {
			q.known = slow
		}
	}
}

// pause is the time until there may be something to do of which nobody tells.
func (d *Deliverer) pause(now perdure.Instant) time.Duration {
	next := d.lookAt
	if d.fanning {
		next = min(next, d.fanAt)
	}
	for _, q := range d.boxes {
		if q.anew && q.turn > now {
			next = min(next, q.turn)
		}
		if at := max(q.due, q.hold, q.turn); q.due != 0 && at > now { // what is due already waits for a place, and there is word when one is free
			next = min(next, at)
		}
	}
	return max(0, next.Sub(now))
}

// drain waits for what is on its way, though not for long, and writes down what became of it.
func (d *Deliverer) drain(sending context.Context, stop context.CancelFunc) error {
	late := time.AfterFunc(grace, stop)
	defer late.Stop()
	for d.flying.all() > 0 {
		d.land(<-d.landed)
	}
	if len(d.results) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(sending), 5*time.Second)
	defer cancel()
	return d.engine.Do(ctx, &engine.Deliver{Sent: d.results})
}

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
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/engine/outbox"
	"github.com/perdure/perdure/internal/server/engine/reads"
	"github.com/perdure/perdure/internal/server/fair"
	"github.com/perdure/perdure/internal/server/store"
)

// A Deliverer sends messages that are due. Any number of nodes can run one. A message that one node
// has claimed is not sent by another one, unless a minute passes without a result. So a message is
// sent at least once, and the order between messages is not kept.
//
// Every endpoint has its own queue. An endpoint that hangs, fails or has very many messages does
// not delay others: few of its messages are in flight at once, and only one until the first answer
// and while it fails. A part of the concurrency is reserved for endpoints that are known to be
// quick. A tenant has at most half of it while there are others. An endpoint that fails gets
// nothing for a while; this is kept in memory, and each node finds out by itself.
//
// One goroutine, Run, owns all fields. Attempts run in goroutines of their own and report to
// finished.
type Deliverer struct {
	engine *engine.Engine
	opt    Options
	log    *slog.Logger

	endpoints map[endpoint]*queue
	shares    map[perdure.TenantID]*share
	full      map[perdure.TenantID]bool // tenants for which no more endpoints can be known, in this pass

	looked      store.Mailbox   // the last endpoint of the last look
	unfinished  []store.Mailbox // tenants with more endpoints than a look reads, each with the last one read
	lookAt      perdure.Instant // when the next look is
	next        perdure.Instant // the next alarm that the looks have found, or the next fallback look
	lookedAtAll bool            // all endpoints were read at least once

	inFlight places             // messages in flight, by the health of their endpoint when they were sent
	finished chan attemptResult // results of attempts
	results  []outbox.Sent      // results that are not stored yet

	fanning  bool             // there are events that wait for their fan-out
	fanned   perdure.TenantID // the tenant of the last fan-out step
	fanAt    perdure.Instant  // when the next step is
	building *fair.Gate       // limits the messages that are being built
}

// Options of a deliverer. The zero value is usable.
type Options struct {
	// Sender is HTTP to public addresses by default.
	Sender Sender
	Logger *slog.Logger
	// BaseURL is the beginning of the URLs in a message. If it is empty, they begin with a slash.
	BaseURL string
	// Formats make the bodies of webhooks with a format of their own.
	Formats map[perdure.WebhookFormat]Format
	// Concurrency limits the messages in flight, 64 by default. PerEndpoint limits those to one
	// endpoint, 4 by default.
	Concurrency, PerEndpoint int
	// Look is the fallback polling interval, 1 s by default. A look finds messages that other nodes
	// left behind, and those of which no signal came.
	Look time.Duration
}

// Durations and limits that are not options.
const (
	// An endpoint that failed gets nothing for minHold, doubled with each failure up to maxHold.
	minHold = time.Second
	maxHold = time.Minute

	// grace is the time that messages in flight have when the node stops.
	grace = time.Second
	// slowAfter is the time of an answer from which on an endpoint counts as slow.
	slowAfter = 2 * time.Second

	page         = 500  // endpoints that one look reads
	idleLooks    = 5    // with nothing due, a look comes after this many intervals
	maxEndpoints = 4000 // endpoints that are known at once

	// stepPause is the pause after a step that fans events out or gives messages up, in multiples
	// of the time that the step took. It leaves the store to other work.
	stepPause = 9
	// builders limits the messages that are built at once. Each reads a whole line, with a large
	// result perhaps.
	builders = 8
)

// An attemptResult is the result of an attempt, with the health of the endpoint when it was sent.
type attemptResult struct {
	outbox.Sent
	as   health
	late bool // the answer took longer than slowAfter
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
	d := &Deliverer{
		engine: e, opt: opt, log: opt.Logger,
		endpoints: make(map[endpoint]*queue), shares: make(map[perdure.TenantID]*share),
		full: make(map[perdure.TenantID]bool), finished: make(chan attemptResult, opt.Concurrency),
		building: fair.NewGate(fair.Limits{Size: builders, Share: builders / 2}),
	}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	return d
}

// Run delivers until the context ends. Messages in flight then have grace to arrive. Those that do
// not are due again at once, for any node.
func (d *Deliverer) Run(ctx context.Context) error {
	sending, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return d.drain(sending, stop)
		case s := <-d.finished:
			d.finish(s)
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

// pass stores results, claims due messages and starts their attempts. It returns the time until
// there may be more to do.
func (d *Deliverer) pass(ctx, sending context.Context) (time.Duration, error) {
	for more := true; more; {
		select {
		case s := <-d.finished:
			d.finish(s)
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
		q := d.queue(endpoint{p.Tenant, p.Webhook}, now)
		if q == nil {
			continue
		}
		if q.ring(now); p.Anew {
			q.changed, q.hold, q.fails = true, 0, 0
		}
	}
	if now >= d.lookAt {
		if err := d.look(ctx, now); err != nil {
			return d.opt.Look, err
		}
	}
	fanErr := d.fanOut(ctx, now) // an error does not keep due messages from being sent
	op := &outbox.Deliver{Sent: d.results, Want: d.wants(now)}
	if len(op.Sent)+len(op.Want) > 0 {
		began := time.Now()
		if err := d.engine.Do(ctx, op); err != nil {
			return d.opt.Look, fmt.Errorf("take and settle: %w", err) // the results are kept for the next pass
		}
		d.results = nil
		if more := d.took(sending, op, now, now.Add(stepPause*time.Since(began))); more {
			return 0, fanErr
		}
	}
	return d.pause(now), fanErr
}

// fanOut does one step of the fan-out: it makes notifications of events that have several webhooks.
// Steps are separated by pauses.
func (d *Deliverer) fanOut(ctx context.Context, now perdure.Instant) error {
	if !d.fanning || now < d.fanAt {
		return nil
	}
	began := time.Now()
	op := &outbox.FanOut{After: d.fanned}
	if err := d.engine.Do(ctx, op); err != nil {
		d.fanAt = now.Add(d.opt.Look)
		return fmt.Errorf("fan events out: %w", err)
	}
	d.fanned, d.fanning, d.fanAt = op.Last, op.More, now.Add(stepPause*time.Since(began))
	return nil
}

// look reads a page of endpoints with pending messages and their next alarms from the store. For
// endpoints that are not due yet it only remembers the earliest alarm.
func (d *Deliverer) look(ctx context.Context, now perdure.Instant) error {
	var list, more []store.Mailbox
	err := d.engine.Store().View(ctx, func(v *store.View) (err error) {
		if !d.fanning {
			n, err := v.FanOuts.Count(1)
			if err != nil {
				return err
			}
			d.fanning = n > 0
		}
		if list, err = v.Outbox.Mailboxes(d.looked, page); err == nil && len(d.unfinished) > 0 {
			more, err = v.Outbox.MailboxesOf(d.unfinished[0], page)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("look for what is due: %w", err)
	}
	if d.looked == (store.Mailbox{}) && len(d.unfinished) == 0 {
		d.next = now.Add(idleLooks * d.opt.Look)
	}
	d.noteUnfinished(list, more)
	for _, m := range slices.Concat(list, more) {
		b := endpoint{m.Tenant, m.Webhook}
		q := d.endpoints[b]
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
	// The other endpoints are read by the next look, which follows at once until all were read.
	if len(list) == page || len(d.unfinished) > 0 {
		if d.lookAt = now; d.lookedAtAll {
			d.lookAt = now.Add(d.opt.Look)
		}
		return nil
	}
	d.lookedAtAll = true
	for _, q := range d.endpoints { // forget idle endpoints that are not known to be quick
		if q.due == 0 && q.inFlight == 0 && !q.changed && q.hold <= now && q.known != quick {
			d.forget(q)
		}
	}
	return nil
}

// noteUnfinished records tenants whose endpoints a look has read only in part. Their pages are read
// in turns, one tenant per look, so that a tenant with a hundred thousand endpoints does not delay
// the others.
func (d *Deliverer) noteUnfinished(list, more []store.Mailbox) {
	var done perdure.TenantID // begins again with a later look
	if len(d.unfinished) > 0 {
		done = d.unfinished[0].Tenant
		d.unfinished = slices.Delete(d.unfinished, 0, 1)
		if len(more) == page {
			d.unfinished = append(d.unfinished, more[page-1])
		}
	}
	each := 0
	for i, m := range list {
		if each++; i > 0 && list[i-1].Tenant != m.Tenant {
			each = 1
		}
		known := slices.ContainsFunc(d.unfinished, func(x store.Mailbox) bool { return x.Tenant == m.Tenant })
		if each == store.MailboxesEach && m.Tenant != done && !known {
			d.unfinished = append(d.unfinished, m)
		}
	}
}

// took starts the attempts of claimed messages, and tells whether more can be claimed at once. turn
// is the next time for endpoints that have more messages to give up.
func (d *Deliverer) took(sending context.Context, op *outbox.Deliver, now, turn perdure.Instant) (more bool) {
	got := make(map[endpoint]int)
	for _, o := range op.Taken {
		b := endpoint{o.Tenant, o.Webhook}
		got[b]++
		q := d.endpoints[b]
		as := q.known
		q.inFlight, q.served = q.inFlight+1, now
		q.of.inFlight[as]++
		d.inFlight[as]++
		go func() { d.finished <- d.send(sending, &o, as) }()
	}
	for _, w := range op.Want {
		b := endpoint{w.Tenant, w.Webhook}
		q := d.endpoints[b]
		if q.changed = slices.Contains(op.More, w); q.changed {
			q.turn = turn
			q.ring(now)
			more = more || turn <= now
		} else if got[b] < w.Most {
			q.due = 0 // nothing more, until a signal or a look says otherwise
		}
	}
	for _, m := range op.Again {
		if q := d.endpoints[endpoint{m.Tenant, m.Webhook}]; q != nil {
			q.ring(m.Due)
			more = more || q.ready(now)
		}
	}
	return more
}

// send builds a message and makes one attempt.
func (d *Deliverer) send(ctx context.Context, o *outbox.Outgoing, as health) attemptResult {
	s := attemptResult{Sent: outbox.Sent{Notification: o.Notification, At: d.engine.Store().Now()}, as: as}
	m, err := d.build(ctx, o)
	if err != nil {
		s.Unsent, s.Stopped, s.Error = true, ctx.Err() != nil, "the server could not read what to send"
		if s.Silent = errors.Is(err, errSilent); s.Silent {
			s.Error = errSilent.Error()
			return s
		}
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
	s.late = time.Since(began) > slowAfter
	s.Took, s.Status, s.Error, s.Response, s.RetryAfter = r.Took, r.Status, r.Err, r.Response, r.RetryAfter
	s.Stopped = ctx.Err() != nil && r.Status == 0
	if s.Error == "" && !s.OK() {
		s.Error = fmt.Sprintf("the receiver answered %d", s.Status)
	}
	return s
}

// build makes a message, within the limit of builders. The line that it reads is released before
// the message is sent.
func (d *Deliverer) build(ctx context.Context, o *outbox.Outgoing) (Message, error) {
	leave, err := d.building.Enter(ctx, o.Tenant, 1)
	if err != nil {
		return Message{}, err
	}
	defer leave()
	return d.message(fair.With(ctx, o.Tenant), o)
}

var (
	errGone   = errors.New("the event is no longer there")
	errSilent = errors.New("the format has nothing to tell of the event")
)

// message makes a message from data that never changes, so that every attempt is the same.
func (d *Deliverer) message(ctx context.Context, o *outbox.Outgoing) (Message, error) {
	l := &reads.Look{Tenant: o.Tenant, RunID: o.RunID, After: o.Seq - 1, Lines: 1, Bytes: math.MaxInt, Whole: true}
	if err := d.engine.Runs.Look(ctx, l); err != nil {
		return Message{}, err
	}
	if !l.Found || len(l.Log) == 0 || l.Log[0].Seq != o.Seq {
		return Message{}, errGone
	}
	body, err := d.body(ctx, o, &l.Run, &l.Log[0])
	secrets := d.engine.Webhooks.Secrets(&o.To, d.engine.Store().Now())
	return Message{ID: o.ID(), URL: o.To.URL, Secrets: secrets, Body: body}, err
}

// finish records the result of an attempt. The next pass stores it.
func (d *Deliverer) finish(s attemptResult) {
	d.results = append(d.results, s.Sent)
	now := d.engine.Store().Now()
	q := d.endpoints[endpoint{s.Tenant, s.Webhook}]
	q.inFlight--
	q.of.inFlight[s.as]--
	d.inFlight[s.as]--
	switch {
	case s.Stopped:
		q.hold = max(q.hold, now.Add(minHold)) // the node stops
	case s.Gone, s.Silent: // says nothing about the endpoint
	case s.Unsent:
		q.backOff(s.At, now, 0)
	case s.Down():
		q.known = failing
		q.backOff(s.At, now, s.RetryAfter)
	default: // the endpoint answers; a refusal is about this message only
		q.known, q.fails, q.hold = quick, 0, 0
		if s.late {
			q.known = slow
		}
	}
}

// pause returns the time until the next alarm. Signals and results wake Run earlier.
func (d *Deliverer) pause(now perdure.Instant) time.Duration {
	next := d.lookAt
	if d.fanning {
		next = min(next, d.fanAt)
	}
	for _, q := range d.endpoints {
		if q.changed && q.turn > now {
			next = min(next, q.turn)
		}
		// A message that is due already waits for a result, which wakes Run.
		if at := max(q.due, q.hold, q.turn); q.due != 0 && at > now {
			next = min(next, at)
		}
	}
	return max(0, next.Sub(now))
}

// drain waits for messages in flight, up to grace, and stores their results.
func (d *Deliverer) drain(sending context.Context, stop context.CancelFunc) error {
	late := time.AfterFunc(grace, stop)
	defer late.Stop()
	for d.inFlight.all() > 0 {
		d.finish(<-d.finished)
	}
	if len(d.results) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(sending), 5*time.Second)
	defer cancel()
	return d.engine.Do(ctx, &outbox.Deliver{Sent: d.results})
}

package webhook

import (
	"cmp"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/outbox"
)

// This file chooses which messages are sent next. Concurrency is a number of places. Each pass
// gives free places one by one: to the tenant with the fewest, there to the endpoint with the
// fewest, and among these to the one that has waited longest. Limits by the endpoint's health keep
// places free for endpoints that answer quickly; see fits.

// An endpoint identifies a webhook.
type endpoint struct {
	tenant perdure.TenantID
	id     perdure.WebhookID
}

// A queue is the state of an endpoint on this node. It can be forgotten whenever none of its
// messages is in flight; a later look finds the endpoint again.
type queue struct {
	endpoint
	of       *share
	due      perdure.Instant // the next alarm that is known; 0 if there is none
	changed  bool            // the webhook was changed, and its messages may have to be given up
	known    health
	inFlight int             // messages in flight
	want     int             // places that this pass has given to it
	served   perdure.Instant // when it last got a place
	hold     perdure.Instant // it gets nothing before this
	turn     perdure.Instant // when the next part of its messages is given up
	fails    int             // failures in a row
	failed   perdure.Instant // when the last failure was recorded
}

// A share counts the places of a tenant's endpoints.
type share struct {
	endpoints      int // known endpoints
	inFlight, want places
}

// places counts places by the health of their endpoints when they were given.
type places [healthCount]int

// unsure counts the places of endpoints that are not quick.
func (p places) unsure() int { return p[untried] + p[failing] + p[slow] }

func (p places) all() int { return p.unsure() + p[quick] }

// A health is what is known of an endpoint.
type health int

const (
	untried health = iota
	failing        // not reachable, or refuses messages for now
	slow           // answers late
	quick          // answers soon

	healthCount = iota
)

// ready tells whether a message could be sent now.
func (q *queue) ready(now perdure.Instant) bool {
	return q.due != 0 && max(q.due, q.hold, q.turn) <= now
}

// ring records that a message is due at an instant.
func (q *queue) ring(at perdure.Instant) {
	if q.due == 0 || at < q.due {
		q.due = at
	}
}

// backOff doubles the time for which the endpoint gets nothing. Messages that were in flight
// together count as one failure.
func (q *queue) backOff(sent, now perdure.Instant, atLeast time.Duration) {
	if sent >= q.failed {
		q.fails++
	}
	q.failed = now
	q.hold = now.Add(max(min(minHold<<min(max(q.fails-1, 0), 10), maxHold), atLeast))
}

// queue returns the state of an endpoint, and creates it if needed. It returns nil if there are too
// many; a later look finds the endpoint again.
func (d *Deliverer) queue(b endpoint, now perdure.Instant) *queue {
	if q := d.endpoints[b]; q != nil {
		return q
	}
	if len(d.endpoints) >= maxEndpoints && !d.makeRoom(b.tenant, now) {
		return nil
	}
	of := d.shares[b.tenant]
	if of == nil {
		of = &share{}
		d.shares[b.tenant] = of
	}
	of.endpoints++
	q := &queue{endpoint: b, of: of}
	d.endpoints[b] = q
	return q
}

// makeRoom forgets an endpoint of the tenant that has the most. It prefers endpoints that are not
// quick, and those with nothing to send now. If the new endpoint is of the same tenant, two rules
// are stricter. An endpoint with something to send is never forgotten, and a quick one only if most
// known endpoints are quick.
func (d *Deliverer) makeRoom(who perdure.TenantID, now perdure.Instant) bool {
	if d.full[who] {
		return false
	}
	most := who
	for t, s := range d.shares {
		if d.shares[most] == nil || s.endpoints > d.shares[most].endpoints {
			most = t
		}
	}
	var victims [4]*queue
	quicks := 0
	for _, q := range d.endpoints {
		if q.tenant != most || q.inFlight > 0 || q.changed || (q.ready(now) && most == who) {
			continue
		}
		cost := 0
		if q.known == quick {
			cost += 2
			quicks++
		}
		if q.ready(now) {
			cost++
		}
		if victims[cost] = q; cost == 0 {
			break
		}
	}
	if most == who && quicks <= maxEndpoints/2 {
		victims[2] = nil
	}
	victim := cmp.Or(victims[:]...)
	if victim == nil {
		d.full[who] = true // until the next pass, so that thousands of requests need no search
		return false
	}
	d.forget(victim)
	return true
}

func (d *Deliverer) forget(q *queue) {
	delete(d.endpoints, q.endpoint)
	if q.of.endpoints--; q.of.endpoints == 0 {
		delete(d.shares, q.tenant)
	}
}

// wants gives the free places and returns how many messages to claim for each endpoint. It also
// returns changed endpoints without a place, whose messages may have to be given up.
func (d *Deliverer) wants(now perdure.Instant) []outbox.Want {
	var ready []*queue
	for _, s := range d.shares {
		s.want = places{}
	}
	for _, q := range d.endpoints {
		if q.want = 0; q.ready(now) {
			ready = append(ready, q)
		}
	}
	var asked []*queue
	inFlight := d.inFlight
	for {
		best := -1
		for i := 0; i < len(ready); {
			if !d.fits(&inFlight, ready[i]) { // nor will it in this pass: places are only taken
				ready[i] = ready[len(ready)-1]
				ready = ready[:len(ready)-1]
				continue
			}
			if best < 0 || ready[i].before(ready[best]) {
				best = i
			}
			i++
		}
		if best < 0 {
			break
		}
		q := ready[best]
		if q.want == 0 {
			asked = append(asked, q)
		}
		q.want++
		q.of.want[q.known]++
		inFlight[q.known]++
	}
	var out []outbox.Want
	for _, q := range asked {
		out = append(out, outbox.Want{Tenant: q.tenant, Webhook: q.id, Most: q.want})
	}
	for b, q := range d.endpoints {
		if q.changed && q.want == 0 && q.turn <= now {
			out = append(out, outbox.Want{Tenant: b.tenant, Webhook: b.id})
		}
	}
	return out
}

// before tells whether an endpoint gets a place before another one.
func (q *queue) before(p *queue) bool {
	return cmp.Or(
		cmp.Compare(q.of.inFlight.all()+q.of.want.all(), p.of.inFlight.all()+p.of.want.all()),
		cmp.Compare(q.inFlight+q.want, p.inFlight+p.want),
		cmp.Compare(max(q.due, q.hold, q.served), max(p.due, p.hold, p.served)),
	) < 0
}

// fits tells whether there is a place for a message of an endpoint. The limits are:
//
//   - one message at a time to an endpoint that is untried or fails, PerEndpoint to the others;
//   - three quarters of the places for endpoints that are not quick, so that a quarter is left for
//     quick ones;
//   - half for endpoints that are slow or fail, and a quarter for those that fail;
//   - half of all places for one tenant, if there are several, and half of those that are not for
//     quick endpoints.
func (d *Deliverer) fits(inFlight *places, q *queue) bool {
	all, most := d.opt.Concurrency, d.opt.PerEndpoint
	half, quarter := max(1, all/2), max(1, all/4)
	if q.known == untried || q.known == failing {
		most = 1
	}
	if q.inFlight+q.want >= most || inFlight.all() >= all ||
		(len(d.shares) > 1 && q.of.inFlight.all()+q.of.want.all() >= half) {
		return false
	}
	if q.known == quick {
		return true
	}
	spare := max(1, all-quarter)
	if inFlight.unsure() >= spare || (len(d.shares) > 1 &&
		q.of.inFlight.unsure()+q.of.want.unsure() >= max(1, spare/2)) {
		return false
	}
	return q.known == untried || (inFlight[failing]+inFlight[slow] < half &&
		(q.known == slow || inFlight[failing] < quarter))
}

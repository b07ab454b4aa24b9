package webhook

import (
	"cmp"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/engine"
)

// A box names an endpoint.
type box struct {
	tenant perdure.TenantID
	id     perdure.WebhookID
}

// A queue is what a node knows of an endpoint. It may be forgotten at any time when none of its messages is on its way.
type queue struct {
	box
	of     *share
	due    perdure.Instant // when there is something to send, as far as is known; 0: nothing
	anew   bool            // somebody has changed the endpoint
	known  standing
	flying int             // messages on their way
	want   int             // and those for which a place was found just now
	served perdure.Instant // when it last had a place
	hold   perdure.Instant // until when it is left alone
	turn   perdure.Instant // when the next portion of what is to be given up has its turn
	fails  int             // how often it has failed in a row
	failed perdure.Instant // when it was last seen to
}

// A share is what the endpoints of a tenant have of the places.
type share struct {
	boxes        int // endpoints that are known
	flying, want places
}

// places are counted by what the endpoints that have them were known to be then.
type places [standings]int

// unsure are those that are not with quick ones.
func (p places) unsure() int { return p[untried] + p[failing] + p[slow] }

func (p places) all() int { return p.unsure() + p[quick] }

// What is known of an endpoint.
type standing int

const (
	untried   standing = iota
	failing            // it was not reached, or takes nothing for now
	slow               // it answers, and late
	quick              // it answers soon
	standings = iota
)

// ready tells whether there is something that could be sent.
func (q *queue) ready(now perdure.Instant) bool {
	return q.due != 0 && max(q.due, q.hold, q.turn) <= now
}

// ring notes that there is something to send at an instant.
func (q *queue) ring(at perdure.Instant) {
	if q.due == 0 || at < q.due {
		q.due = at
	}
}

// backOff has the endpoint left alone for twice as long as the last time. Those that were on their way together fail together.
func (q *queue) backOff(sent, now perdure.Instant, atLeast time.Duration) {
	if sent >= q.failed {
		q.fails++
	}
	q.failed = now
	q.hold = now.Add(max(min(minHold<<min(max(q.fails-1, 0), 10), maxHold), atLeast))
}

// queue gives what is known of an endpoint, or nil if no more can be known now: a later look finds it.
func (d *Deliverer) queue(b box, now perdure.Instant) *queue {
	if q := d.boxes[b]; q != nil {
		return q
	}
	if len(d.boxes) >= maxBoxes && !d.makeRoom(b.tenant, now) {
		return nil
	}
	of := d.shares[b.tenant]
	if of == nil {
		of = &share{}
		d.shares[b.tenant] = of
	}
	of.boxes++
	q := &queue{box: b, of: of}
	d.boxes[b] = q
	return q
}

// makeRoom forgets an endpoint of the tenant with the most, rather none that is known to be quick, and rather one that has
// nothing to send now. For another one of the same tenant none makes way that has something to send, and no quick one, unless
// they are most of what is known.
func (d *Deliverer) makeRoom(who perdure.TenantID, now perdure.Instant) bool {
	if d.full[who] {
		return false
	}
	most := who
	for t, s := range d.shares {
		if d.shares[most] == nil || s.boxes > d.shares[most].boxes {
			most = t
		}
	}
	var victims [4]*queue
	quicks := 0
	for _, q := range d.boxes {
		if q.tenant != most || q.flying > 0 || q.anew || (q.ready(now) && most == who) {
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
	if most == who && quicks <= maxBoxes/2 {
		victims[2] = nil
	}
	victim := cmp.Or(victims[:]...)
	if victim == nil {
		d.full[who] = true // until the next pass: there may be thousands that ask
		return false
	}
	d.forget(victim)
	return true
}

func (d *Deliverer) forget(q *queue) {
	delete(d.boxes, q.box)
	if q.of.boxes--; q.of.boxes == 0 {
		delete(d.shares, q.tenant)
	}
}

// wants says which messages there is a place for. Places are given one by one: to the tenant who has the fewest, there to
// the endpoint that has the fewest, and among those to the one that waits longest.
func (d *Deliverer) wants(now perdure.Instant) []engine.Want {
	var ready []*queue
	for _, s := range d.shares {
		s.want = places{}
	}
	for _, q := range d.boxes {
		if q.want = 0; q.ready(now) {
			ready = append(ready, q)
		}
	}
	var asked []*queue
	flying := d.flying
	for {
		best := -1
		for i := 0; i < len(ready); {
			if !d.fits(&flying, ready[i]) { // nor will it: here places are taken, and none is given back
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
		flying[q.known]++
	}
	var out []engine.Want
	for _, q := range asked {
		out = append(out, engine.Want{Tenant: q.tenant, Webhook: q.id, Most: q.want})
	}
	for b, q := range d.boxes {
		if q.anew && q.want == 0 && q.turn <= now {
			out = append(out, engine.Want{Tenant: b.tenant, Webhook: b.id})
		}
	}
	return out
}

func (q *queue) before(p *queue) bool {
	return cmp.Or(cmp.Compare(q.of.flying.all()+q.of.want.all(), p.of.flying.all()+p.of.want.all()), cmp.Compare(q.flying+q.want, p.flying+p.want),
		cmp.Compare(max(q.due, q.hold, q.served), max(p.due, p.hold, p.served))) < 0
}

// fits tells whether there is a place for a message of an endpoint. A quarter of them is for those that are known to be
// quick; those that are known not to be have half, and those that fail a quarter. A tenant who is not the only one has half
// of the places, and half of those that are not for the quick.
func (d *Deliverer) fits(flying *places, q *queue) bool {
	all, most := d.opt.Concurrency, d.opt.PerEndpoint
	half, quarter := max(1, all/2), max(1, all/4)
	if q.known == untried || q.known == failing {
		most = 1
	}
	if q.flying+q.want >= most || flying.all() >= all || (len(d.shares) > 1 && q.of.flying.all()+q.of.want.all() >= half) {
		return false
	}
	if q.known == quick {
		return true
	}
	spare := max(1, all-quarter)
	if flying.unsure() >= spare || (len(d.shares) > 1 && q.of.flying.unsure()+q.of.want.unsure() >= max(1, spare/2)) {
		return false
	}
	return q.known == untried || (flying[failing]+flying[slow] < half && (q.known == slow || flying[failing] < quarter))
}

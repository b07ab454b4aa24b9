package sim

import (
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/rules"
	"github.com/perdure/perdure/internal/server/store"
)

// Paused queues.
//
// In some seeds an operator pauses and resumes queues: at any time, through either node, and between the
// decision and the write of the other node. The model has the pauses as they were last committed. A node
// that committed one knows it from its answer on, and a node that starts knows all of them. Another node
// may use the pauses that it has read for pauseLag. Everything is drawn from a stream of its own. A seed
// without pauses has the history that it always had.

// pauseLag is how long a node uses the pauses that it has read. Steps take no time here, so that no
// decision ages until it is written.
const pauseLag = rules.PauseDelay - store.MaxAge

// pauses is everything about paused queues of one simulation.
type pauses struct {
	s    *sim
	dice stream
	// meddle is the probability that a queue is paused or resumed when the other node interferes.
	meddle float64
	known  map[string]*queuePause // by queue
	keys   map[string]bool        // keys of pauses that were committed
	latest perdure.Instant        // the latest instant of a batch of any node
}

// A queuePause is the pause of a queue, or its last one.
type queuePause struct {
	perdure.QueuePause
	// from is the instant from which on every node has to know of it.
	from perdure.Instant
	// told are the nodes that have acknowledged it, and starts counts their starts when it was committed.
	told   [2]bool
	starts [2]int
}

// addPauses adds pauses to some seeds.
func (s *sim) addPauses() {
	dice := newStream(s.seed, "pauses")
	if !dice.chance(0.4) {
		return
	}
	s.pauses = &pauses{s: s, dice: dice, meddle: dice.share(0.05, 0.5), known: make(map[string]*queuePause),
		keys: make(map[string]bool)}
	s.after(dice.between(0, 4*s.cfg.tempo), s.pauses.act)
}

// pausedQueues are the queues that are paused.
var pausedQueues = []string{"default", "other", processQueue}

// act pauses or resumes a queue.
func (p *pauses) act() {
	s := p.s
	if s.faultsStopped {
		return
	}
	s.after(p.dice.between(s.cfg.tempo/2, 8*s.cfg.tempo), p.act)
	if !s.reachable() {
		return
	}
	if s.cfg.hostile && p.dice.chance(0.2) {
		// Nobody resumes the queues of the hostile tenant, and no other tenant may notice.
		queue, reason := pick(p.dice, pausedQueues...), s.name("z")
		s.sendOnce(func() kernel.Op { return &rules.PauseQueue{Tenant: hostile, Queue: queue, Reason: reason} })
		return
	}
	queue, make := p.change()
	if p.dice.chance(0.3) {
		s.sendOnce(make)
	} else {
		s.sendUntilAnswered(make, nil)
	}
	s.after(p.dice.scaled(s.cfg.tempo/8, 6*s.cfg.tempo), func() {
		if !s.faultsStopped {
			s.sendOnce(func() kernel.Op { return &rules.ResumeQueue{Tenant: tenant, Queue: queue} })
		}
	})
}

// change gives the next change of a queue: mostly a pause.
func (p *pauses) change() (queue string, make func() kernel.Op) {
	queue = pick(p.dice, pausedQueues...)
	key, length, reason := "", time.Duration(0), ""
	if p.dice.chance(0.7) {
		key = p.s.name("z")
	}
	if p.dice.chance(0.4) {
		length = p.dice.scaled(time.Second, 4*p.s.cfg.tempo+time.Second)
	}
	if p.dice.chance(0.5) {
		reason = p.s.name("why")
	}
	if p.dice.chance(0.2) {
		return queue, func() kernel.Op { return &rules.ResumeQueue{Tenant: tenant, Queue: queue, Key: key} }
	}
	return queue, func() kernel.Op {
		return &rules.PauseQueue{Tenant: tenant, Queue: queue, Reason: reason, For: length, Key: key}
	}
}

// interfere may have a node change a pause while the other one decides or writes.
func (p *pauses) interfere(n *node) bool {
	if p == nil || !p.dice.chance(p.meddle) {
		return false
	}
	p.s.sometimes("a pause was changed while the other node was deciding")
	_, make := p.change()
	n.step(make())
	n.restartIfFailed()
	return true
}

// about tells whether a batch has operations on pauses, and whether one of them may change a pause. A
// pause whose key was committed before may not.
func (p *pauses) about(ops []kernel.Op) (any, change bool) {
	for _, op := range ops {
		switch x := op.(type) {
		case *rules.PauseQueue:
			any, change = true, change || x.Tenant == tenant && !p.keys[x.Key]
		case *rules.ResumeQueue:
			any, change = true, true
		}
	}
	return any, change
}

// observe reads the pauses that a batch has committed. Without operations it can be any batch.
func (p *pauses) observe(v *store.View, ops []kernel.Op) error {
	if p == nil {
		return nil
	}
	s := p.s
	any, change := p.about(ops)
	if len(ops) > 0 && !any {
		return nil
	}
	for _, queue := range pausedQueues {
		row, ok, err := v.Pauses.Get(tenant, queue)
		if err != nil {
			return err
		}
		if last := p.known[queue]; !ok || last != nil && last.QueuePause == row.QueuePause {
			continue
		}
		if len(ops) > 0 && !change {
			s.violate("S3", "queue %s was paused again by a key that had paused it before", queue)
		}
		x := &queuePause{QueuePause: row.QueuePause, from: p.latest.Add(pauseLag)}
		for i, n := range s.nodes {
			x.starts[i] = n.gen
		}
		if p.known[queue] = x; !x.Holds(p.latest) {
			s.sometimes("a queue was resumed")
			continue
		}
		s.sometimes("a queue was paused")
		s.meetAll()
		if slices.ContainsFunc(s.model.order, func(id perdure.RunID) bool {
			r := s.model.rows[id]
			return r.Queue == queue && r.Ready
		}) {
			s.sometimes("a queue with claimable runs was paused")
		}
	}
	return nil
}

// judge checks an acknowledged change. The node that acknowledged a pause knows it.
func (p *pauses) judge(n *node, op *rules.PauseQueue, stored bool) {
	if !stored {
		return
	}
	if x := p.known[op.Queue]; x != nil && x.QueuePause == op.Paused {
		x.told[slices.Index(p.s.nodes, n)] = true
	}
	if op.Key == "" {
		return
	}
	if p.keys[op.Key] {
		p.s.sometimes("a pause was asked for again")
	}
	p.keys[op.Key] = true
}

// checkOrder checks that a claim grants nothing from a queue that an earlier operation of its batch has
// paused. A batch that a fault has cut is not one decision.
func (p *pauses) checkOrder(n *node, ops []kernel.Op, errs []error) {
	if p == nil || n.sess.hurt > 0 {
		return
	}
	paused := make(map[string]bool)
	for i, op := range ops {
		switch x := op.(type) {
		case *rules.PauseQueue:
			paused[x.Queue] = paused[x.Queue] || errs[i] == nil && x.Tenant == tenant && x.Paused.Holds(p.latest)
		case *rules.ResumeQueue:
			delete(paused, x.Queue)
		case *dispatch.Claim:
			for _, g := range x.Grants {
				if errs[i] == nil && paused[g.Run.Queue] {
					p.s.violate("Q1", "%s was granted by the batch that paused its queue %s before", p.s.nameOf(&g.Run),
						g.Run.Queue)
				}
			}
		}
	}
}

// knows tells whether a node has to know of a pause in a batch of an instant.
func (x *queuePause) knows(s *sim, n *node, at perdure.Instant) bool {
	i := slices.Index(s.nodes, n)
	return at >= x.from || x.told[i] || x.starts[i] != n.gen
}

// checkGrant checks that a node grants nothing from a queue of whose pause it knows.
func (p *pauses) checkGrant(n *node, r *perdure.Run, l perdure.Line) {
	if p == nil || n == nil || l.Type != perdure.LineDispatched {
		return
	}
	x := p.known[r.Queue]
	switch {
	case x == nil:
	case !x.Holds(l.At):
		if x.At != 0 && r.ReadyAt < x.Until {
			p.s.sometimes("a run was granted after a pause")
		}
	case r.Cancel.RequestedAt != 0:
		p.s.sometimes("a run of a paused queue was granted for its clean-up")
	case r.Former != 0: // a process that has outlived a restore is found, whatever its queue
	case x.knows(p.s, n, l.At):
		p.s.violate("Q1", "%s was granted by node %s at %s, and its queue %s is paused since %s", p.s.nameOf(r),
			n.name, l.At, r.Queue, x.At)
	default:
		p.s.sometimes("a node granted before it knew of a pause")
	}
}

// checkAlert checks that nobody is alerted about a run that waits because its queue is paused.
func (p *pauses) checkAlert(n *node, r *row) {
	if p == nil || r == nil {
		return
	}
	if x := p.known[r.Queue]; x != nil && x.Holds(p.latest) && x.knows(p.s, n, p.latest) {
		p.s.violate("Q2", "%s waits in queue %s, which is paused since %s, and an alert says so", p.s.nameOf(&r.Run),
			r.Queue, x.At)
	}
}

// since gives the instant from which on a claimable run can be taken, or false while its queue is paused.
func (p *pauses) since(r *row, now perdure.Instant) (perdure.Instant, bool) {
	if p == nil || p.known[r.Queue] == nil {
		return r.ReadyAt, true
	}
	x := p.known[r.Queue]
	return max(r.ReadyAt, x.Until), !x.Holds(now)
}

// resumeAll resumes all queues, again and again: a pause may still be on its way.
func (p *pauses) resumeAll() {
	if p == nil {
		return
	}
	s := p.s
	for _, queue := range pausedQueues {
		if x := p.known[queue]; x != nil && x.Holds(s.clock()) {
			s.sendOnce(func() kernel.Op { return &rules.ResumeQueue{Tenant: tenant, Queue: queue} })
		}
	}
	s.after(2*time.Second, p.resumeAll)
}

// any tells whether a queue is paused.
func (p *pauses) any() bool {
	if p == nil {
		return false
	}
	for _, x := range p.known {
		if x.Holds(p.s.clock()) {
			return true
		}
	}
	return false
}

// checkEnd checks that the store has no pause left.
func (p *pauses) checkEnd() {
	if p == nil {
		return
	}
	p.s.view(func(v *store.View) error {
		list, err := v.Pauses.Of(tenant)
		for _, x := range list {
			p.s.violate("Q3", "queue %s was resumed and is paused since %s", x.Queue, x.At)
		}
		return err
	})
}

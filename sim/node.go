package sim

import (
	"log/slog"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/doorbell"
	"github.com/perdure/perdure/internal/server/engine"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/server/watchdog"
)

// A node is a server: a store, an engine and a watchdog on the shared database.
type node struct {
	s    *sim
	name string
	gen  int // rises with every start, so that events from before are ignored
	up   bool
	st   *store.Store
	e    *engine.Engine
	w    *watchdog.Watchdog
	sess *session

	waiting  []*flight // requests for the next batch
	flushing bool
	ops      []kernel.Op // of the current batch
	sweepAt  perdure.Instant
	between  int // batches of the other node inside of the current one
	decided  int // how often the current batch was decided
}

// open starts the server. A failed start is repeated later.
func (n *node) open() {
	s := n.s
	n.gen++
	n.sess = nil
	log := slog.New(alarms{s, n})
	at := s.where
	at.Logger, at.Hooks.BeforeWrite, at.Hooks.Written = log, n.beforeWrite, n.written
	at.Hooks.Wrap = func(inner store.Conn) store.Conn {
		if n.sess != nil {
			return inner // of another lane; batches here use the first
		}
		n.sess = &session{Conn: inner, s: s, n: n}
		return n.sess
	}
	st, err := store.Open(at)
	if err != nil {
		s.violate("start", "node %s does not start: %v", n.name, err)
		return
	}
	n.st, n.ops = st, nil
	e, err := engine.New(st,
		engine.Options{Policy: &s.cfg.policy, Bell: bell{s}, Logger: log, Entropy: s.ids, Roll: s.dice.Float64,
			Signer: s.beside.signs()})
	if err != nil {
		if n.sess.hurt == 0 {
			s.violate("start", "node %s does not start: %v", n.name, err)
		}
		n.crash("while starting")
		n.openIn(time.Second)
		return
	}
	n.e, n.w, n.up = e, watchdog.New(e, log), true
	s.say("%s up", n.name)
	n.sweepSoon(s.now)
}

// crash ends the server. Requests that it has not answered are lost.
func (n *node) crash(why string) {
	s := n.s
	s.say("%s down: %s", n.name, why)
	n.up = false
	n.gen++
	if n.sess != nil && !n.sess.dead {
		_ = n.sess.die()
	}
	n.st.Close()
	n.e, n.w = nil, nil
	for _, f := range n.waiting {
		f.lost()
	}
	n.waiting, n.flushing = nil, false
}

// down crashes the server and starts it again after a while.
func (n *node) down(why string, away time.Duration) {
	if !n.up {
		return
	}
	n.crash(why)
	n.openIn(away)
}

func (n *node) openIn(d time.Duration) {
	gen := n.gen
	n.s.after(d, func() {
		if !n.up && n.gen == gen {
			n.open()
		}
	})
}

// receive adds a request to the next batch.
func (n *node) receive(f *flight) {
	if !n.up {
		for _, x := range f.all() {
			x.answer(x.make(), perdure.Errorf(perdure.CodeUnavailable, "connection refused"))
		}
		return
	}
	n.waiting = append(n.waiting, f.all()...)
	if n.flushing {
		return
	}
	n.flushing = true
	gen := n.gen
	n.s.after(n.s.net.between(0, n.s.cfg.gather), func() {
		if n.gen == gen {
			n.flush()
		}
	})
}

// flush decides the collected requests in one batch.
func (n *node) flush() {
	n.flushing = false
	batch := n.waiting
	n.waiting = nil
	if len(batch) == 0 {
		return
	}
	ops := make([]kernel.Op, len(batch))
	for i, f := range batch {
		ops[i] = f.make()
	}
	if len(ops) > 1 {
		n.s.sometimes("several operations shared a batch")
	}
	errs := n.step(ops...)
	for i, f := range batch {
		if n.sess.dead {
			f.lost()
		} else {
			f.answer(ops[i], errs[i])
		}
	}
	n.restartIfFailed()
}

// step decides a batch and checks every answer.
func (n *node) step(ops ...kernel.Op) []error {
	s := n.s
	s.steps++
	n.ops, n.between, n.decided = ops, 0, 0
	n.sess.hurt, n.sess.kept, n.sess.last = 0, false, ""
	before := s.epochs(ops)
	if s.pauses != nil {
		s.pauses.latest = max(s.pauses.latest, s.clock())
	}
	errs := n.e.Step(s.clock(), ops...)
	s.say("%s %s", n.name, s.describe(ops, errs))
	if n.sess.kept {
		s.sometimes("a commit was kept and its caller told otherwise")
		s.observeAll()
	}
	for i, op := range ops {
		if !ofHostile(op) {
			s.judge(n, op, errs[i], before)
		}
	}
	s.pauses.checkOrder(n, ops, errs)
	s.handedOver(n)
	n.ops = nil
	if s.steps%100 == 0 && s.nested == 0 {
		s.checkAll()
	}
	return errs
}

// restartIfFailed restarts a server that has died, or whose store takes no more writes.
func (n *node) restartIfFailed() {
	if !n.up {
		return
	}
	if n.sess.dead {
		n.down("died", n.s.fault.scaled(100*time.Millisecond, 20*time.Second))
	} else if err := n.st.Err(); err != nil {
		n.down("store in doubt", n.s.fault.scaled(100*time.Millisecond, 5*time.Second))
	}
}

// sweepSoon schedules a sweep at an instant, unless there is an earlier one.
func (n *node) sweepSoon(at perdure.Instant) {
	at = max(at, n.s.now)
	if n.s.faultsStopped && n != n.s.nodes[0] {
		return // without faults one node is enough
	}
	if n.sweepAt > n.s.now && n.sweepAt <= at {
		return
	}
	n.sweepAt = at
	gen := n.gen
	n.s.at(at, func() {
		if n.gen == gen && n.up && n.sweepAt == at {
			n.sweep()
		}
	})
}

// sweep makes one sweep, and schedules the next.
func (n *node) sweep() {
	s := n.s
	n.sweepAt = 0
	op := n.w.Pass()
	err := n.step(op)[0]
	s.afterSweep(n, op, err)
	if n.restartIfFailed(); !n.up {
		return
	}
	next := s.now.Add(s.cfg.policy.WatchdogInterval)
	if err == nil {
		if at := s.model.nextAlarm(); at != 0 {
			next = min(next, at.Add(-s.offset))
		}
	}
	if op.More {
		next = s.now
	}
	n.sweepSoon(max(next, s.now+1))
}

// written checks what a batch has committed, before anything else happens.
func (n *node) written(ids []perdure.RunID) {
	s := n.s
	s.observe(n, ids)
	if n.decided > 1 && n.sess.hurt == 0 {
		s.sometimes("a batch was decided again after a conflict")
	}
	if !n.up {
		return
	}
	for _, id := range ids {
		if r := s.model.rows[id]; r != nil && r.AlarmAt != 0 {
			n.sweepSoon(r.AlarmAt.Add(-s.offset))
		}
	}
}

// beforeWrite may run a batch of the other node between the decision and the write of this one.
func (n *node) beforeWrite() {
	n.decided++
	n.interleave(n.s.cfg.faults.interleave, "other node in between")
}

// afterRead may run a batch of the other node between two reads of this one, so the reads see
// different states.
func (n *node) afterRead() { n.interleave(n.s.cfg.faults.interleave/8, "other node between two reads") }

// interleave runs a batch of the other node in the middle of this one, with probability p.
func (n *node) interleave(p float64, what string) {
	s := n.s
	if s.faultsStopped || s.nested > 0 || !n.up || n.ops == nil || n.between >= 3 || !s.fault.chance(p) {
		return
	}
	o := s.nodes[0]
	if o == n {
		o = s.nodes[1]
	}
	if !o.up {
		return
	}
	n.between++
	s.nested++
	defer func() { s.nested-- }()
	s.injected(what)
	s.meddle(o, n.concerns())
}

// concerns returns the runs of the current batch, with their parents, children and neighbours on a
// thread. Changes of these are the most likely to conflict.
func (n *node) concerns() []perdure.RunID {
	m := n.s.model
	var out []perdure.RunID
	for _, op := range n.ops {
		for _, ref := range op.Needs() {
			out = append(out, ref.Run)
			if r := m.rows[ref.Run]; r != nil && r.ParentID != "" {
				out = append(out, r.ParentID)
			}
			for _, id := range m.order {
				if m.rows[id].ParentID == ref.Run && m.rows[id].State.Live() {
					out = append(out, id)
				}
			}
		}
		switch x := op.(type) {
		case *watchdog.Sweep, *dispatch.Claim:
			for _, id := range m.order {
				if r := m.rows[id]; r.Ready || (r.AlarmAt != 0 && r.AlarmAt <= n.s.clock()) {
					out = append(out, id)
				}
			}
		case *life.Submit:
			for _, id := range m.order {
				if r := m.rows[id]; r.Turn == perdure.TurnActive && r.ThreadID == x.Submission.ThreadID {
					out = append(out, id)
				}
			}
		}
	}
	return out
}

// A bell rings at one worker. Rings may be lost or doubled.
type bell struct{ s *sim }

func (b bell) Ring(t doorbell.Topic) {
	s := b.s
	if t.Queue == "" || len(s.workers) == 0 {
		return
	}
	if !s.faultsStopped && s.net.chance(s.cfg.faults.bellLost) {
		s.injected("doorbell lost")
		return
	}
	n := 1
	if !s.faultsStopped && s.net.chance(s.cfg.faults.bellTwice) {
		s.injected("doorbell twice")
		n = 2
	}
	for range n {
		pick(s.net, s.workers...).pollSoon(s.net.between(0, s.cfg.latency))
	}
}

// describe returns a line of the trace: each operation and its result.
func (s *sim) describe(ops []kernel.Op, errs []error) string {
	var b strings.Builder
	for i, op := range ops {
		if i > 0 {
			b.WriteString(" | ")
		}
		b.WriteString(s.summary(op))
		if errs[i] != nil {
			b.WriteString(" -> " + string(perdure.CodeOf(errs[i])))
		}
	}
	return b.String()
}

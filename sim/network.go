package sim

import (
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
)

// A reply is what a caller gets: an answer, an error, or nothing.
type reply struct {
	op   kernel.Op
	err  error
	lost bool // no answer: the operation may have been done or not
}

// unsure tells whether the caller has to repeat the request to find out.
func (r reply) unsure() bool {
	return r.lost || perdure.CodeOf(r.err) == perdure.CodeUnknown || perdure.CodeOf(r.err) == perdure.CodeUnavailable
}

// A flight is a request on its way. make returns a new operation each time, because a request may
// arrive twice.
type flight struct {
	s       *sim
	to      *node
	make    func() kernel.Op
	then    func(reply) // nil for the second copy of a request
	arrived bool
	// with are requests of the same call: they arrive with this one and share its batch.
	with []*flight
}

// send sends a request to a node, and calls then with the reply.
func (s *sim) send(make func() kernel.Op, then func(reply)) {
	s.sendTogether([]func() kernel.Op{make}, []func(reply){then})
}

// sendTogether sends the requests of one call. They are lost together, or share a batch.
func (s *sim) sendTogether(make []func() kernel.Op, then []func(reply)) {
	f := &s.cfg.faults
	to := pick(s.net, s.nodes...)
	if !to.up { // callers use the other node
		for _, n := range s.nodes {
			if n.up {
				to = n
			}
		}
	}
	fl, again := &flight{s: s, to: to, make: make[0], then: then[0]}, &flight{s: s, make: make[0]}
	for i := 1; i < len(make); i++ {
		fl.with = append(fl.with, &flight{s: s, make: make[i], then: then[i]})
		again.with = append(again.with, &flight{s: s, make: make[i]})
	}
	if !s.faultsStopped && s.net.chance(f.requestLost) {
		s.injected("request lost")
		for _, x := range fl.all() {
			x.lost()
		}
		return
	}
	s.fly(fl)
	if !s.faultsStopped && s.net.chance(f.twice) {
		s.injected("request twice")
		again.to = pick(s.net, s.nodes...)
		s.fly(again)
	}
}

// all returns a request and those of the same call.
func (f *flight) all() []*flight { return append([]*flight{f}, f.with...) }

func (s *sim) fly(f *flight) {
	s.flights = append(s.flights, f)
	s.after(s.net.between(time.Millisecond, s.cfg.latency), func() {
		if !f.arrived {
			f.arrive()
		}
	})
}

// arrive gives a request to its node.
func (f *flight) arrive() {
	f.land()
	f.to.receive(f)
}

// land removes a request from the list of those on their way.
func (f *flight) land() {
	f.arrived = true
	for i, x := range f.s.flights {
		if x == f {
			f.s.flights = append(f.s.flights[:i:i], f.s.flights[i+1:]...)
			return
		}
	}
}

// lost gives the caller a timeout instead of an answer.
func (f *flight) lost() {
	if f.then == nil {
		return
	}
	then := f.then
	f.s.after(2*f.s.cfg.latency+time.Second, func() { then(reply{lost: true}) })
}

// answer sends the answer back.
func (f *flight) answer(op kernel.Op, err error) {
	s := f.s
	if f.then == nil {
		return
	}
	if !s.faultsStopped && s.net.chance(s.cfg.faults.replyLost) {
		s.injected("reply lost")
		f.lost()
		return
	}
	then := f.then
	s.after(s.net.between(time.Millisecond, s.cfg.latency), func() { then(reply{op: op, err: err}) })
}

// meddle makes a node do something that is likely to conflict. That is a request on its way, a
// sweep, or an operation on the runs that the other node has just decided.
func (s *sim) meddle(n *node, about []perdure.RunID) {
	if s.pauses.interfere(n) {
		return
	}
	if len(s.flights) > 0 && s.fault.chance(0.4) {
		for range min(len(s.flights), s.fault.IntN(3)+1) {
			f := pick(s.fault, s.flights...)
			f.land()
			f.to = n
			n.waiting = append(n.waiting, f.all()...)
		}
		n.flush()
		return
	}
	if len(about) == 0 || s.fault.chance(0.25) {
		n.sweep()
		return
	}
	id := pick(s.fault, about...)
	if t := s.holder(id); t != nil && s.fault.chance(0.6) {
		if f := t.nextMessage(n); f != nil {
			n.waiting = append(n.waiting, f)
			n.flush()
		}
		return
	}
	if op := s.interference(id); op != nil {
		n.step(op)
		n.restartIfFailed()
	}
}

// startFaults schedules the faults that occur at random times: crashes, absences, forged rings,
// clock jumps.
func (s *sim) startFaults() {
	f := &s.cfg.faults
	s.every(f.nodeCrash, func() {
		if n := pick(s.fault, s.nodes...); n.up {
			s.injected("node crashed")
			n.down("killed", s.fault.scaled(100*time.Millisecond, 5*time.Minute))
		}
	})
	s.every(f.absence, func() {
		if !s.reachable() {
			return
		}
		s.injected("all nodes away")
		away := s.fault.scaled(time.Minute, 3*hour)
		for _, n := range s.nodes {
			if !n.up { // its start is delayed as well
				n.gen++
				n.openIn(away)
			}
			n.down("away for "+away.String(), away)
		}
	})
	s.every(f.bellForged, func() {
		s.injected("doorbell forged")
		pick(s.fault, s.workers...).pollSoon(0)
	})
	s.every(f.jumped, func() {
		d := s.fault.scaled(10*time.Millisecond, 5*time.Minute)
		if s.fault.chance(0.4) {
			d = -min(d, 3*time.Second)
		}
		s.injected("clock jumped")
		s.say("the store's clock jumps by %s", d)
		s.offset += d
	})
}

// reachable tells whether any node is up.
func (s *sim) reachable() bool { return s.nodes[0].up || s.nodes[1].up }

// every calls a function at random intervals around d, until the faults stop.
func (s *sim) every(d time.Duration, do func()) {
	if d == 0 {
		return
	}
	var again func()
	again = func() {
		if s.faultsStopped {
			return
		}
		do()
		s.after(s.fault.scaled(d/3, d*3), again)
	}
	s.after(s.fault.scaled(d/3, d*3), again)
}

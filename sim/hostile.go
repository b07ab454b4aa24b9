package sim

import (
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/rules"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/server/watchdog"
)

// hostile is the hostile tenant.
const hostile perdure.TenantID = "mallory"

// mallory is a client of the hostile tenant. With ordinary calls it creates what is expensive to
// end. Examples are chains of groups that cancel their losers, threads with many waiting runs, and
// inboxes full of signals. No worker takes its runs. They end by a cancel, by a group, or by their
// deadline.
type mallory struct {
	s    *sim
	dice stream

	runs []perdure.RunID
	made int
}

// Limits of mallory's runs, in one simulation and at once.
const (
	malloryRuns  = 90
	malloryBurst = 30
)

func (m *mallory) act() {
	s := m.s
	if s.faultsStopped {
		return
	}
	s.after(m.dice.between(s.cfg.tempo/2, 4*s.cfg.tempo), m.act)
	if !s.reachable() {
		return
	}
	switch x := m.dice.Float64(); {
	case m.made < malloryRuns && (x < 0.4 || len(m.runs) < 2):
		m.burst()
	case len(m.runs) < 2:
	case x < 0.6:
		m.chain()
	case x < 0.75:
		for range m.dice.IntN(20) + 1 {
			id, name := pick(m.dice, m.runs...), s.name("m")
			s.sendOnce(func() kernel.Op { return &life.Signal{Tenant: hostile, RunID: id, Name: name} })
		}
	case x < 0.85:
		s.sendOnce(func() kernel.Op { return &life.CreateThread{Tenant: hostile} })
	default:
		id := pick(m.dice, m.runs...)
		s.sendOnce(func() kernel.Op { return &life.Cancel{Tenant: hostile, RunID: id, Reason: "all of them"} })
	}
}

// burst submits many runs at once, half of the time all of them on one thread.
func (m *mallory) burst() {
	s := m.s
	sub := perdure.Submission{Kind: "bomb", Timeout: perdure.Duration(m.dice.between(s.cfg.tempo, 30*s.cfg.tempo))}
	send := func() {
		for range m.dice.IntN(malloryBurst) + 2 {
			m.made++
			s.send(func() kernel.Op { return &life.Submit{Tenant: hostile, Submission: sub} }, func(r reply) {
				if !r.lost && r.err == nil {
					m.runs = append(m.runs, r.op.(*life.Submit).Run.ID)
				}
			})
		}
	}
	if m.dice.chance(0.5) {
		send()
		return
	}
	s.send(func() kernel.Op { return &life.CreateThread{Tenant: hostile} }, func(r reply) {
		if !r.lost && r.err == nil {
			sub.ThreadID = r.op.(*life.CreateThread).Thread.ID
			send()
		}
	})
}

// chain groups each run with the next one, so that the end of one ends the other.
func (m *mallory) chain() {
	s := m.s
	for i := range m.runs[1:] {
		pair := []perdure.RunID{m.runs[i], m.runs[i+1]}
		s.sendOnce(func() kernel.Op {
			return &life.CreateGroup{Tenant: hostile, Mode: perdure.ModeAny, RunIDs: pair, OnLosers: "cancel"}
		})
	}
}

// ofHostile tells whether an operation is of the hostile tenant. The model does not contain these.
// They are checked by the invariants of the store, by the budget and by their deadlines.
func ofHostile(op kernel.Op) bool {
	switch x := op.(type) {
	case *life.Submit:
		return x.Tenant == hostile
	case *life.CreateGroup:
		return x.Tenant == hostile
	case *life.CreateThread:
		return x.Tenant == hostile
	case *life.Signal:
		return x.Tenant == hostile
	case *life.Cancel:
		return x.Tenant == hostile
	case *rules.PauseQueue:
		return x.Tenant == hostile
	}
	return false
}

// ownRows is how many rows an operation may write beyond its budget: those of the call itself, and
// of the last end that it began.
const ownRows = 400

// spent checks the budget of every operation and every sweep.
func (s *sim) spent(op store.Op, c store.Cost) {
	if c.Written > s.cfg.opRows+ownRows || c.Read > store.MostRead {
		s.violate("B1", "an operation read %d rows and wrote %d; %d were allowed: %s", c.Read, c.Written,
			s.cfg.opRows, what(op))
	}
	if c.Written > s.cfg.opRows {
		s.sometimes("an operation spent its budget")
	}
}

func what(op store.Op) string {
	if n, ok := op.(interface{ Name() string }); ok {
		return n.Name()
	}
	return fmt.Sprintf("%T", op)
}

// overdueHostile checks that no run of the hostile tenant is live two sweeps after its deadline.
func (s *sim) overdueHostile(op *watchdog.Sweep) {
	if !s.cfg.hostile || op.More {
		return
	}
	before := s.clock().Add(-3*s.cfg.policy.WatchdogInterval - s.cfg.policy.GapSpare - 2*time.Second)
	s.view(func(v *store.View) error {
		return v.Rows("SELECT id FROM runs WHERE tenant=? AND alarm_at IS NOT NULL AND deadline_at<=? LIMIT 1",
			[]any{string(hostile), int64(before)},
			func(scan func(...any) error) error {
				var id string
				err := scan(&id)
				s.violate("L1", "%s of the hostile tenant lives on long after its deadline", id)
				return err
			})
	})
}

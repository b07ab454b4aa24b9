package sim

import (
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/watchdog"
)

// afterSweep checks a sweep. Rules that repair a transaction never have to act, and no run outlives
// its deadline. After the faults have stopped, every run has to progress within its bounds.
func (s *sim) afterSweep(n *node, op *watchdog.Sweep, err error) {
	if err != nil && !(n.sess.kept && perdure.CodeOf(err) == perdure.CodeUnknown) {
		return
	}
	now := s.clock()
	p := &s.cfg.policy
	if s.model.gap(now, p) {
		s.sometimes("a gap began")
	}
	if op.Postponed > 0 {
		s.sometimes("a gap held the watchdog back")
	}
	for _, a := range op.Actions {
		s.sometimes("rule " + a.Rule + " " + a.Name)
		r := s.model.rows[a.Run]
		switch {
		case a.Rule == "W9" && r != nil && r.State.Terminal():
		case a.Rule == "W11":
			s.pauses.checkAlert(n, r)
		case a.Rule == "W9" && a.Tenant == hostile && strings.HasSuffix(a.What, " skipped"):
			// A signal to a run that has ended.
		case a.Rule == "W1" || a.Rule == "W3" || a.Rule == "W9" || a.Rule == "W10":
			s.violate("net", "%s had to act on %s: a transaction has left something undone", a.Rule, s.short(a.Run))
		}
	}
	if op.More {
		return
	}
	if s.faultsStopped {
		s.overdueHostile(op)
	}
	live := 0
	for _, id := range s.model.order {
		r := s.model.rows[id]
		if !r.State.Live() {
			continue
		}
		live++
		if r.DeadlineAt > now || (r.State.Leased() && now < s.model.spareUntil) {
			r.overdue = 0
		} else if r.overdue++; r.overdue > 2 {
			s.violate("L1", "%s is still %s, %s and two sweeps after its deadline", s.short(id), r.State,
				now.Sub(r.DeadlineAt))
		}
		if !r.OnHold() || r.State != perdure.Queued || r.Cancel.RequestedAt != 0 || now < r.Hold.Until {
			r.overlong = 0
		} else if r.overlong++; r.overlong > 2 {
			s.violate("H3", "%s is on hold, %s and two sweeps after the end of its hold", s.short(id),
				now.Sub(r.Hold.Until))
		}
		if s.faultsStopped {
			s.checkBounds(r, now)
		}
	}
	if s.faultsStopped && live == 0 && !s.pauses.any() && s.now.Sub(s.stoppedAt) > p.WatchdogInterval {
		s.done = true
	}
	if s.faultsStopped && s.steps > 40*s.cfg.budget {
		s.violate("L10", "%d runs are live after %d steps and do not come to rest", live, s.steps)
	}
}

// slack returns the extra time that every bound allows, for messages, batches and two sweeps.
func (s *sim) slack() time.Duration {
	return 2*time.Second + 4*s.cfg.latency + 2*s.cfg.gather + 2*s.cfg.policy.WatchdogInterval
}

// checkBounds checks the progress of a live run, after the faults have stopped.
func (s *sim) checkBounds(r *row, now perdure.Instant) {
	p, e := &s.cfg.policy, s.slack()
	healed := max(s.stoppedAt.Add(s.offset), s.model.healedAt)
	late := func(since perdure.Instant, d time.Duration) bool { return now.Sub(max(since, healed)) > d+e }
	claimable, open := s.pauses.since(r, now)
	s.flow.checkBounds(r, late)
	if r.State.Leased() && now >= r.DeadlineAt {
		return // after its deadline only its end remains, which L1 checks; a gap may postpone it
	}
	switch {
	case r.Cancel.RequestedAt != 0 && r.Cancel.AckedAt == 0 && late(r.Cancel.RequestedAt, p.CancelGrace):
		s.violate("L5", "%s was asked to stop at %s and is %s", s.short(r.ID), r.Cancel.RequestedAt, r.State)
	case r.Cancel.AckedAt != 0 && late(r.Cancel.AckedAt, p.CleanupGrace):
		s.violate("L5", "%s knows since %s that it is to stop and is %s", s.short(r.ID), r.Cancel.AckedAt, r.State)
	case r.State == perdure.Queued && r.Ready && open && late(max(claimable, r.Cancel.RequestedAt), s.cfg.poll):
		s.violate("L2", "%s is claimable since %s, workers are free, and nobody has it", s.short(r.ID), claimable)
	case r.State == perdure.Queued && !r.Ready && !r.AtLimit() && r.Turn <= perdure.TurnActive && late(r.ReadyAt, 0):
		s.violate("L4", "%s is due since %s and not claimable", s.short(r.ID), r.ReadyAt)
	case r.State.Leased() && !r.HolderSeen && late(r.FirstGrantAt, p.DispatchedTimeout):
		s.violate("L2", "%s was granted at %s, nobody was heard from, and it is %s", s.short(r.ID), r.GrantedAt,
			r.State)
	case r.State == perdure.Running && r.HolderSeen && !r.Options.Process && late(r.LeaseUntil, 0):
		s.violate("L3", "%s is held by %s although its lease was over at %s", s.short(r.ID), r.Worker, r.LeaseUntil)
	case r.State == perdure.Running && r.HolderSeen && r.Options.Process && now > r.WatchUntil.Add(e) &&
		late(r.SeenAt, p.DeadAfter):
		s.violate("L3", "the process %s gave no sign of life since %s", s.short(r.ID), r.SeenAt)
	case r.State == perdure.Running && now > r.WatchUntil.Add(e) && late(r.SeenAt, p.ActiveReap):
		s.violate("L3", "%s gave no sign of life since %s", s.short(r.ID), r.SeenAt)
	case r.State == perdure.Suspended && r.WaitAt != 0 && late(r.WaitAt, 0):
		s.violate("L4", "%s sleeps although a wait timed out at %s", s.short(r.ID), r.WaitAt)
	}
}

// stopFaults stops the faults. Both nodes start, the clock stops jumping, and there are enough
// workers, which do what they are asked.
func (s *sim) stopFaults() {
	if s.faultsStopped {
		return
	}
	s.faultsStopped, s.stoppedAt = true, s.now
	s.say("the faults stop")
	if s.count.Faults() == 0 {
		s.sometimes("a seed without a fault")
	}
	for _, n := range s.nodes {
		if !n.up {
			n.open()
		}
	}
	s.nodes[0].sweepSoon(s.now)
	s.pace = min(s.pace, 2*time.Second)
	for len(s.workers) < 2 {
		s.addWorker()
	}
	for _, w := range s.workers {
		w.slots, w.asleep = 1000, 0
		for _, t := range append([]*task(nil), w.tasks...) {
			if t.hung {
				t.drop()
			}
		}
		w.pollSoon(0)
		w.beatSoon(0)
	}
	s.processes.faultsStop()
	s.beside.faultsStop()
	s.flow.faultsStop()
	s.pauses.resumeAll()
	if s.cfg.release {
		for i := range 60 {
			s.after(time.Duration(i)*5*time.Second, s.answerAllWaits)
		}
	}
}

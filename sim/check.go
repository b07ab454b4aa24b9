package sim

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
	"github.com/perdure/perdure/internal/server/watchdog"
)

// observe compares every run that a batch has changed with what it was before. It checks the
// invariants that concern the change of one run.
func (s *sim) observe(n *node, ids []perdure.RunID) {
	var sweep *watchdog.Sweep
	var ops []kernel.Op
	if n != nil {
		ops = n.ops
	}
	if len(ops) == 1 {
		sweep, _ = ops[0].(*watchdog.Sweep)
	}
	s.view(func(v *store.View) error {
		if err := s.pauses.observe(v, ops); err != nil {
			return err
		}
		for _, id := range ids {
			next, ok, err := v.Runs.Get(tenant, id)
			if err != nil {
				return err
			}
			if !ok && s.cfg.hostile {
				r, theirs, err := v.Runs.Get(hostile, id)
				if err == nil && theirs && r.State.Live() && r.AlarmAt == 0 {
					s.violate("S12", "%s of the hostile tenant is %s and nobody watches it", id, r.State)
				}
				if err != nil || theirs {
					if err != nil {
						return err
					}
					continue
				}
			}
			if !ok && s.anews.deleted(id) {
				continue
			}
			if !ok {
				s.violate("S1", "%s is written and not there", id)
				return nil
			}
			prev := s.model.rows[id]
			fresh := prev == nil
			if fresh {
				prev = &row{nth: len(s.model.order) + 1}
				s.model.rows[id] = prev
				s.model.order = append(s.model.order, id)
			}
			var lines []perdure.Line
			if next.Seq != prev.Seq {
				if lines, err = v.Events.After(tenant, id, prev.Seq, 10000); err != nil {
					return err
				}
			}
			for _, l := range lines {
				s.pauses.checkGrant(n, &next, l)
			}
			s.compare(prev, &next, lines, sweep, n == nil)
			if next.WaitsOpen > 0 || next.InboxSeq > 0 {
				b, err := read(v, id)
				if err != nil {
					return err
				}
				s.compareWaitsAndItems(&next, b)
			}
			if err := s.anews.note(v, prev.State, &next); err != nil {
				return err
			}
			s.flow.note(prev, &next, fresh)
			prev.Run = next
			if err := s.meet(v, n, prev); err != nil {
				return err
			}
		}
		return s.flow.check(v)
	})
}

// observeAll finds changed runs after a batch that was committed although it reported an error.
func (s *sim) observeAll() {
	var changed []perdure.RunID
	s.view(func(v *store.View) error {
		return v.Rows("SELECT id, version FROM runs ORDER BY id", nil, func(scan func(...any) error) error {
			var id perdure.RunID
			var version int64
			err := scan(&id, &version)
			if r := s.model.rows[id]; r == nil || r.Version != version {
				changed = append(changed, id)
			}
			return err
		})
	})
	s.observe(nil, changed)
}

// sameDeadline tells whether a run keeps its deadline. A grant that settles an open class may shorten it.
func sameDeadline(prev, next *perdure.Run) bool {
	if prev.Options.Open && !next.Options.Open {
		return next.DeadlineAt <= prev.DeadlineAt
	}
	return next.DeadlineAt == prev.DeadlineAt && next.Class == prev.Class
}

// compare checks the change of one run.
func (s *sim) compare(prev *row, next *perdure.Run, lines []perdure.Line, sweep *watchdog.Sweep, blind bool) {
	p := &s.cfg.policy
	fail := func(id, what string, args ...any) {
		s.violate(id, "%s: "+what, append([]any{s.nameOf(next)}, args...)...)
	}
	was := prev.State
	switch {
	case next.Version <= prev.Version:
		fail("S31", "version went from %d to %d", prev.Version, next.Version)
	case next.Epoch < prev.Epoch:
		fail("S6", "epoch went from %d to %d", prev.Epoch, next.Epoch)
	case was != "" && (!sameDeadline(&prev.Run, next) || next.CreatedAt != prev.CreatedAt ||
		next.MaxAttempts != prev.MaxAttempts):
		fail("S13", "what nothing may change was changed: deadline %s to %s", prev.DeadlineAt, next.DeadlineAt)
	case was.Terminal() && (next.State != was || next.FinishedAt != prev.FinishedAt || next.Epoch != prev.Epoch):
		fail("S5", "ended as %s and is %s now", was, next.State)
	case next.State.Live() && next.AlarmAt == 0:
		fail("S12", "is %s and nobody watches it", next.State)
	case next.State.Live() && sweep == nil && !blind && next.AlarmAt != p.Alarm(next):
		fail("S12", "is %s, its first clock rings at %s and its alarm at %s", next.State, p.Alarm(next), next.AlarmAt)
	case next.State.Live() &&
		next.AlarmAt > max(next.DeadlineAt, s.clock().Add(p.Lease), s.clock().Add(p.GapSpare)).Add(hour):
		fail("S12", "is watched much too late, at %s", next.AlarmAt)
	case next.Strikes > next.MaxAttempts || (next.State.Live() && next.Strikes >= next.MaxAttempts):
		fail("S19", "lost %d attempts in a row and may lose %d", next.Strikes, next.MaxAttempts)
	case next.State == perdure.TimedOut && next.Failure.Code == perdure.CodeDeadline &&
		next.FinishedAt < next.DeadlineAt:
		fail("S11", "ran out of time %s early", next.DeadlineAt.Sub(next.FinishedAt))
	case next.State.Leased() != (next.LeaseUntil != 0) || (next.State.Leased() && next.Epoch < 1):
		fail("P1", "is %s, epoch %d, lease %s", next.State, next.Epoch, next.LeaseUntil)
	case next.Ready && (!(next.State == perdure.Queued || next.State.Leased()) || next.HolderSeen ||
		next.Turn > perdure.TurnActive):
		fail("P12", "is claimable: %s, heard %v, turn %d", next.State, next.HolderSeen, next.Turn)
	case int64(len(lines)) != next.Seq-prev.Seq:
		fail("S14", "its log has %d new lines and counts %d", len(lines), next.Seq-prev.Seq)
	}
	for _, l := range lines {
		s.follow(prev, next, l)
	}
	if prev.fold != next.State {
		fail("S4", "is %s and its history says %s", next.State, prev.fold)
	}
	if prev.attempt != next.Attempt {
		fail("S19", "is at attempt %d and its history says %d", next.Attempt, prev.attempt)
	}
	if sweep != nil {
		s.checkRank(prev, next, sweep)
	}
	s.countSituations(prev, next, sweep)
}

// follow checks one line of a run's log against the lines before.
func (s *sim) follow(prev *row, next *perdure.Run, l perdure.Line) {
	p := &s.cfg.policy
	fail := func(id, what string, args ...any) {
		s.violate(id, "%s: "+what, append([]any{s.nameOf(next)}, args...)...)
	}
	if l.Epoch < prev.epoch {
		fail("S8", "line %d, %s, bears epoch %d after %d", l.Seq, l.Type, l.Epoch, prev.epoch)
	}
	prev.epoch = l.Epoch
	state, ok := fold(prev.fold, l)
	if !ok {
		fail("S4", "%s can't follow when it is %s", l.Type, prev.fold)
	}
	before := prev.fold
	prev.fold = state
	s.closeExecution(l, l.Type == perdure.LineHeld ||
		l.Type == perdure.LineReclaimed && strings.Contains(string(l.Data), `"held"`), next)
	switch l.Type {
	case perdure.LineCreated:
		prev.attempt = 1
	case perdure.LineDispatched:
		if l.Epoch <= prev.granted {
			fail("S7", "granted under epoch %d after %d", l.Epoch, prev.granted)
		}
		prev.granted = l.Epoch
		if before.Leased() && prev.State.Leased() && prev.Epoch == l.Epoch-1 {
			s.sometimes("a lost dispatch was granted again")
			if prev.HolderSeen {
				fail("S10", "granted again under epoch %d while its holder was heard from", l.Epoch)
			}
			if due := prev.GrantedAt.Add(p.RegrantAfter(prev.Grants)); l.At < due {
				fail("S10", "granted again %s early", due.Sub(l.At))
			}
		}
		s.checkTry(prev, next, l)
	case perdure.LineProcessReattached:
		s.sometimes("a process outlived the server")
	case perdure.LineHeld:
		s.sometimes("a run was held")
		s.checkHeld(prev, next)
	case perdure.LineRetrying:
		prev.attempt++
		s.sometimes("an attempt was retried")
	case perdure.LineReclaimed:
		switch {
		case strings.Contains(string(l.Data), `"lease_lost"`):
			s.sometimes("a lost worker's run was taken back")
			s.checkLeaseOver(prev, next, l)
		case strings.Contains(string(l.Data), `"heartbeat_lost"`):
			s.checkProcessDead(prev, next, l)
		case strings.Contains(string(l.Data), `"held"`):
			s.sometimes("a run was held again by the same build")
			s.checkHeld(prev, next)
		case strings.Contains(string(l.Data), `"not_started"`):
			s.sometimes("a dispatch that nobody spoke of went back to the queue")
			if s.model.postponed(l.At, p) {
				fail("gap", "taken back as not started at %s, while a gap holds that back", l.At)
			}
		}
	case perdure.LineWaitClosed:
		if strings.Contains(string(l.Data), `"returned"`) {
			s.sometimes("a closed wait gave back what had come for it")
		}
	case perdure.LineDeadLettered:
		prev.letter = true
	case perdure.LineLateResult:
		prev.adopted = prev.adopted || strings.Contains(string(l.Data), `"adopted":true`)
	case perdure.LineCompleted:
		prev.adopted = prev.adopted || strings.Contains(string(l.Data), `"adopted":`)
	case perdure.LineFailed:
		switch {
		case next.Failure == nil:
		case next.Failure.Code == perdure.CodeAttemptsExhausted:
			s.checkLeaseOver(prev, next, l)
		case next.Failure.Code == perdure.CodeHeartbeatLost:
			s.checkProcessDead(prev, next, l)
		case next.Failure.Code == perdure.CodeOutcomeUnknown && next.Epoch > prev.Epoch:
			s.checkLeaseOver(prev, next, l)
		}
	}
	if before.Live() && state.Terminal() {
		prev.end = l.Seq
	}
	if l.Attempt != prev.attempt {
		fail("S19", "line %d, %s, counts attempt %d where the log has %d", l.Seq, l.Type, l.Attempt, prev.attempt)
	}
}

// checkHeld checks that a defect costs no attempt, and that the hold ends by the deadline.
func (s *sim) checkHeld(prev *row, next *perdure.Run) {
	if next.Strikes > prev.Strikes {
		s.violate("H1", "%s: a defect was counted as a lost attempt: %d after %d", s.nameOf(next), next.Strikes,
			prev.Strikes)
	}
	if next.OnHold() && next.Hold.Until > next.DeadlineAt {
		s.violate("H1", "%s is on hold until %s, after its deadline", s.nameOf(next), next.Hold.Until)
	}
}

// checkTry checks that a held run was granted during its backoff only to a build that had not held it.
func (s *sim) checkTry(prev *row, next *perdure.Run, l perdure.Line) {
	released := next.Hold == nil || len(next.Hold.Builds) == 0 || next.Cancel.RequestedAt != 0 // in the same batch
	if !prev.HeldBack() || l.At >= prev.ReadyAt || released {
		return
	}
	var granted struct{ Build string }
	_ = json.Unmarshal([]byte(l.Data), &granted) // a line without a build names none
	if granted.Build == "" || slices.Contains(prev.Hold.Builds, granted.Build) {
		s.violate("H2", "%s was granted to build %q during the backoff of its hold by %q", s.nameOf(next),
			granted.Build,
			prev.Hold.Builds)
	}
	s.sometimes("another build tried a held run")
}

// checkLeaseOver checks that a run was not taken from its holder before the end of the lease, nor
// during a gap.
func (s *sim) checkLeaseOver(prev *row, next *perdure.Run, l perdure.Line) {
	if l.At < prev.LeaseUntil {
		s.violate("S10", "%s was taken from its holder %s before the end of the lease", s.nameOf(next),
			prev.LeaseUntil.Sub(l.At))
	}
	if s.model.postponed(l.At, &s.cfg.policy) {
		s.violate("gap", "%s was taken from its holder at %s although nobody could be heard until %s", s.nameOf(next),
			l.At, s.model.holdUntil)
	}
}

// checkProcessDead checks that a process was not given up before it was silent for dead_after, nor
// during a gap.
func (s *sim) checkProcessDead(prev *row, next *perdure.Run, l perdure.Line) {
	if s.processes.gone(prev) {
		s.sometimes("a process that was gone was given up")
		return
	}
	if l.At < prev.WatchUntil {
		s.violate("S10", "%s was given up %s before the end of its watch", s.nameOf(next), prev.WatchUntil.Sub(l.At))
	}
	if !next.Options.Process || l.At < prev.SeenAt.Add(s.cfg.policy.DeadAfter) {
		s.violate("S10", "%s was given up %s after its last sign of life", s.nameOf(next), l.At.Sub(prev.SeenAt))
	}
	if s.model.postponed(l.At, &s.cfg.policy) {
		s.violate("gap", "%s was given up at %s although nobody could be heard until %s", s.nameOf(next), l.At,
			s.model.holdUntil)
	}
}

// fold is perdure.Fold for one more line.
func fold(s perdure.State, l perdure.Line) (perdure.State, bool) {
	return perdure.Fold(append(slices.Clip(shortest[s]), l))
}

// shortest is the shortest history that leads to a state.
var shortest = func() map[perdure.State][]perdure.Line {
	m := make(map[perdure.State][]perdure.Line)
	var log []perdure.Line
	for _, typ := range []perdure.LineType{perdure.LineCreated, perdure.LineDispatched, perdure.LineStarted,
		perdure.LineSuspended} {
		log = append(slices.Clip(log), perdure.Line{Type: typ})
		state, _ := perdure.Fold(log)
		m[state] = log
	}
	for _, state := range perdure.States {
		if state.Terminal() {
			m[state] = []perdure.Line{{Type: perdure.LineCreated}, {Type: perdure.TerminalLine(state)}}
		}
	}
	return m
}()

// checkRank checks S13: each forceful action of a sweep lowers the rank of the run.
func (s *sim) checkRank(prev *row, next *perdure.Run, sweep *watchdog.Sweep) {
	for _, a := range sweep.Actions {
		if a.Run != next.ID {
			continue
		}
		switch a.Name {
		case "deadline", "cancel-grace", "lost-worker", "dispatch-timeout", "reap":
			before, after := prev.Rank(&s.cfg.policy), next.Rank(&s.cfg.policy)
			if next.State.Live() && slices.Compare(after[:], before[:]) >= 0 {
				s.violate("S13", "%s: %s of %s left it at rank %v after %v", a.Rule, a.Name, s.nameOf(next), after,
					before)
			}
			if next.State.Live() && (a.Name == "deadline" || a.Name == "cancel-grace" || a.Name == "reap") {
				s.violate("S13", "%s did not end %s", a.Name, s.nameOf(next))
			}
		}
	}
}

// compareWaitsAndItems checks a run's waits and inbox.
func (s *sim) compareWaitsAndItems(r *perdure.Run, b waitsAndItems) {
	fail := func(id, what string, args ...any) { s.violate(id, "%s: "+what, append([]any{s.nameOf(r)}, args...)...) }
	open, named := 0, 0
	for _, w := range b.waits {
		if w.State == perdure.WaitOpen {
			open++
			if w.Named {
				named++
			}
		} else if w.Named && w.State != perdure.WaitClosed && r.State == perdure.Suspended {
			fail("P2", "sleeps on %s, which is %s", w.ID, w.State)
		}
	}
	switch {
	case open != r.WaitsOpen:
		fail("P5", "has %d open waits and counts %d", open, r.WaitsOpen)
	case r.State == perdure.Suspended && named == 0:
		fail("P3", "sleeps on nothing")
	case r.State.Terminal() && open > 0:
		fail("P4", "has ended with %d open waits", open)
	case int64(len(b.items)) != r.InboxSeq-r.InboxFrom:
		fail("P5", "has %d inbox items and counts %d", len(b.items), r.InboxSeq-r.InboxFrom)
	}
	unread := 0
	told := make(map[string]bool)
	for _, i := range b.items {
		if i.Status == perdure.ItemPending || i.Status == perdure.ItemProcessing {
			unread++
		}
		if i.Epoch > r.Epoch || i.Status == perdure.ItemProcessing && i.Epoch < 1 {
			fail("P6", "item %d is %s under epoch %d, and the run has epoch %d", i.Seq, i.Status, i.Epoch, r.Epoch)
		}
		if i.WaitID != "" {
			if told[i.WaitID] {
				fail("P15", "two items end wait %s", i.WaitID)
			}
			told[i.WaitID] = true
		}
	}
	if unread != r.InboxOpen {
		fail("P5", "has %d unread items and counts %d", unread, r.InboxOpen)
	}
}

// checkAll checks the invariants of the whole store.
func (s *sim) checkAll() {
	s.view(func(v *store.View) error {
		found, err := v.Check(nil)
		for _, x := range found {
			s.violate(x.ID, "%s: %s", x.Statement, x.Row)
		}
		return err
	})
}

func (s *sim) nameOf(r *perdure.Run) string { return s.short(r.ID) + " (" + string(r.State) + ")" }

package watchdog

import (
	"errors"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/dispatch"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/store"
)

// singleRun acts on the one run of a single-run sweep, if its alarm is due or its worker is gone.
func (s *Sweep) singleRun(tx *kernel.Tx, g *gap) error {
	r, ok, err := tx.DB.Runs.Get(s.single.Tenant, s.single.Run)
	switch {
	case err != nil || !ok:
		return err
	case s.gone != "":
		return s.take(tx, &r)
	case !alarmDue(&r, tx.Now):
		return nil
	}
	return s.act(tx, g, &r)
}

// runs acts on the runs whose alarm is due, the oldest alarms first. If there are too many for one
// sweep, it takes some of each tenant in turn, so that one tenant can't delay the others.
func (s *Sweep) runs(tx *kernel.Tx, g *gap) error {
	limit := min(s.limit(tx), s.w.runRows+tx.DB.LockedRows()+s.w.aside.count(tx.Now))
	due, err := tx.DB.Runs.Ringing(limit)
	if err == nil && len(due) == limit {
		s.More = true
		due, err = tx.DB.Runs.RingingRound(s.w.lastTenant["runs"], limit)
	}
	if err != nil {
		return err
	}
	return eachInTurn(s, tx, "runs", due, runKey,
		func(r *perdure.Run) error { return s.run(tx, g, r.Tenant, r.ID) })
}

// runKey names a run in a part of a sweep.
func runKey(r *perdure.Run) (perdure.TenantID, string) { return r.Tenant, string(r.ID) }

// run acts on one due run, unless it has to be skipped. If its rule refuses, the run's alarm is
// moved, so that it does not hide other runs.
func (s *Sweep) run(tx *kernel.Tx, g *gap, t perdure.TenantID, id perdure.RunID) error {
	ref := store.Ref{Tenant: t, Run: id}
	switch {
	case tx.DB.RunContended(t, id):
		s.Contended = append(s.Contended, ref)
		s.notActed()
		return nil
	case tx.DB.RunLocked(t, id):
		s.Locked++
		s.notActed()
		return nil
	}
	r, ok, err := tx.DB.Runs.Get(t, id) // an earlier action of this sweep may have changed it
	if err != nil || !ok || !alarmDue(&r, tx.Now) {
		return err
	}
	acted := len(s.Actions)
	err = tx.Try(func() error { return s.act(tx, g, &r) })
	var refused *perdure.Error
	if !errors.As(err, &refused) {
		return err
	}
	s.Actions = s.Actions[:acted]
	retryAt := tx.Now.Add(setAsideFor)
	switch {
	case store.HeldUp(err) && tx.DB.Contended(): // the contended row is its parent or its thread
		s.Contended = append(s.Contended, ref)
		return nil
	case store.HeldUp(err):
		s.Locked++
		retryAt = tx.Now.Add(lockedFor)
	default:
		s.w.log.Error("a rule could not act", "run", id, "state", r.State, "error", err)
	}
	if r, _, err = tx.DB.Runs.Get(t, id); err != nil { // the row without the rule's discarded changes
		return err
	}
	return tx.Apply(&r, perdure.Rearmed{Until: retryAt})
}

// alarmDue tells whether a run has an alarm that is due.
func alarmDue(r *perdure.Run, now perdure.Instant) bool { return r.AlarmAt != 0 && r.AlarmAt <= now }

// act applies the first rule whose clock is due and that a gap does not postpone. If there is none,
// it sets the alarm to the earliest instant at which there may be one.
func (s *Sweep) act(tx *kernel.Tx, g *gap, r *perdure.Run) error {
	if r.Damage != nil { // the clocks of a damaged row can't be trusted
		t, id := r.Tenant, r.ID
		did, err := life.EndDamaged(tx, r)
		return s.recordRepair(tx, t, id, did, err)
	}
	var next perdure.Instant
	inGap := false
	for i := range perdure.Clocks {
		c := &perdure.Clocks[i]
		at := c.At(tx.Policy(), r)
		if at == 0 {
			continue
		}
		if at <= tx.Now {
			rule := byClock[c.Name]
			until := g.postponedUntil(rule, r)
			inGap = inGap || until > tx.Now
			if rule.Name == ruleQueuedLong || rule.Name == ruleUnclaimed {
				paused, err := pausedUntil(tx, r, at.Sub(waitsSince(r)))
				if err != nil {
					return err
				}
				until = max(until, paused)
			}
			if rule.Name == ruleCopy {
				until = max(until, s.w.copies.turn(r, at, tx.Now))
			}
			if until <= tx.Now {
				return s.apply(tx, rule, r, at)
			}
			at = until
			if c.Name == "deadline" {
				// The run ends when the postponement is over. No other rule need act on it before.
				next = until
				break
			}
		}
		if next == 0 || at < next {
			next = at
		}
	}
	if inGap {
		s.Postponed++
	}
	return tx.Apply(r, perdure.Rearmed{Until: next})
}

// waitsSince gives since when a queued run waits: for a worker, or at a limit.
func waitsSince(r *perdure.Run) perdure.Instant {
	if r.AtLimit() {
		return r.Limited.Since
	}
	return r.ReadyAt
}

// pausedLook is how long the alert about a run that nobody takes waits while its queue or kind is paused
// without an end. Then the pause is looked at again.
const pausedLook = time.Hour

// pausedUntil returns until when the rule about a queued run has to wait because its queue or kind
// is paused, or zero. A pause is no defect: somebody wants its runs to wait. The rule's time begins again with
// the end of the pause.
func pausedUntil(tx *kernel.Tx, r *perdure.Run, patience time.Duration) (perdure.Instant, error) {
	p, _, err := dispatch.PauseOf(tx, r)
	switch {
	case err != nil || p == nil:
		return 0, err
	case p.Until == 0 || p.Until > tx.Now.Add(pausedLook):
		return tx.Now.Add(pausedLook), nil
	}
	return p.Until.Add(patience), nil
}

// apply applies a rule whose clock was due at an instant, and records the action.
func (s *Sweep) apply(tx *kernel.Tx, rule *Rule, r *perdure.Run, due perdure.Instant) error {
	before := *r
	if err := rule.act(tx, r); err != nil {
		return err
	}
	if r.State.Live() && r.Copying() {
		return nil // one entry in the log for all parts of a journal
	}
	what := outcome(tx.Policy(), rule, &before, r, tx.Now)
	s.record(tx, rule.Name, r.Tenant, r.ID, what, because(rule.Clock, &before, due, tx.Now))
	return nil
}

package watchdog

import (
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/life"
	"github.com/perdure/perdure/internal/server/engine/upkeep"
	"github.com/perdure/perdure/internal/server/store"
)

// This file has the parts of a sweep that are about rows other than runs with a due alarm. Each
// part reads a bounded number of rows, skips those that are set aside, and stops when the sweep has
// used its budget.

// cascadeRows bounds the ended runs whose children one sweep asks to stop. Each may have many.
const cascadeRows = 16

// cascades asks children of ended runs to stop, if they may not outlive their parent.
func (s *Sweep) cascades(tx *kernel.Tx, _ *gap) error {
	limit := min(s.limit(tx), cascadeRows+s.w.aside.count(tx.Now))
	ended, err := tx.DB.Runs.Cascading(s.w.lastTenant["cascades"], limit)
	if err != nil {
		return err
	}
	s.More = s.More || len(ended) == limit
	return eachInTurn(s, tx, "cascades", ended, runKey, func(r *perdure.Run) error {
		t, id := r.Tenant, r.ID
		return s.tryRow(tx, ruleCascade, t, id, func() error { return s.cascade(tx, t, id) }, nil)
	})
}

// cascade asks a portion of an ended run's children to stop.
func (s *Sweep) cascade(tx *kernel.Tx, t perdure.TenantID, id perdure.RunID) error {
	r, _, err := tx.DB.Runs.Get(t, id)
	if err != nil {
		return err
	}
	stopped, err := life.StopChildren(tx, &r)
	if err != nil {
		return err
	}
	if stopped > 0 {
		s.record(tx, ruleCascade, t, id, fmt.Sprintf("%d children asked to stop", stopped),
			"it is "+string(r.State)+" and had live children that may not outlive it")
	}
	s.More = s.More || r.Cascade
	return nil
}

// items reclaims and skips inbox items, and wakes runs whose wait is satisfied by one.
func (s *Sweep) items(tx *kernel.Tx, g *gap) error {
	limit := s.limit(tx)
	due, err := tx.DB.Inbox.Ringing(limit)
	if err != nil {
		return err
	}
	s.More = s.More || len(due) == limit
	return eachInTurn(s, tx, "items", due, func(i *perdure.Item) (perdure.TenantID, string) {
		return i.Tenant, string(i.RunID)
	}, func(i *perdure.Item) error {
		return s.tryRow(tx, "inbox", i.Tenant, i.RunID, func() error {
			did, err := upkeep.HandleItemAlarm(tx, *i, tx.Now < g.HoldUntil)
			return s.recordRepair(tx, i.Tenant, i.RunID, did, err)
		}, func(until perdure.Instant) error { return upkeep.PostponeItemAlarm(tx, *i, until) })
	})
}

// groups ends groups whose deadline has passed, and continues chords and ended groups that have
// work left.
func (s *Sweep) groups(tx *kernel.Tx, _ *gap) error {
	limit := s.limit(tx)
	due, err := tx.DB.Groups.Ringing(limit)
	if err != nil {
		return err
	}
	s.More = s.More || len(due) == limit
	return eachInTurn(s, tx, "groups", due, func(g *perdure.Gathering) (perdure.TenantID, string) {
		return g.Tenant, string(g.ID)
	}, func(g *perdure.Gathering) error {
		return s.tryRow(tx, ruleGroupDeadline, g.Tenant, perdure.RunID(g.ID), func() error {
			return s.group(tx, g)
		}, nil)
	})
}

// group acts on a chord or group whose alarm is due. For an open group of a caller the alarm is its
// deadline. In any other case work is left, and the action is not recorded.
func (s *Sweep) group(tx *kernel.Tx, g *perdure.Gathering) error {
	due := g.AlarmAt
	timedOut := g.State == perdure.GatheringOpen && g.Kind == perdure.GatheringGroup
	if err := life.HandleGroupAlarm(tx, g); err != nil {
		return err
	}
	if !timedOut {
		s.More = s.More || g.AlarmAt != 0
		return nil
	}
	s.record(tx, ruleGroupDeadline, g.Tenant, perdure.RunID(g.ID), "the group "+string(g.ID)+" is "+string(g.State),
		fmt.Sprintf("its deadline passed %s ago; %d of its %d runs have ended", span(tx.Now.Sub(due)), g.Ended,
			g.Total))
	return nil
}

// waiters removes expired waiters. A foreground run that has no other waiter is deferred.
func (s *Sweep) waiters(tx *kernel.Tx, _ *gap) error {
	limit := s.limit(tx)
	expired, err := tx.DB.Waiters.Expired(limit)
	if err != nil {
		return err
	}
	s.More = s.More || len(expired) == limit
	return eachInTurn(s, tx, "waiters", expired, func(x *store.WaiterRow) (perdure.TenantID, string) {
		return x.Tenant, string(x.RunID)
	}, func(x *store.WaiterRow) error {
		return s.tryRow(tx, ruleWaiterExpiry, x.Tenant, x.RunID, func() error {
			deferred, err := life.ExpireWaiter(tx, *x)
			if err == nil && deferred {
				s.record(tx, ruleWaiterExpiry, x.Tenant, x.RunID, "deferred; the work goes on",
					expiredWaiter(*x, tx.Now))
			}
			return err
		}, func(until perdure.Instant) error {
			x.ExpiresAt = until
			tx.DB.Waiters.Put(*x)
			return nil
		})
	})
}

// expiredWaiter says why a waiter expired. A row without a node stands for a follower that was
// announced and never attached.
func expiredWaiter(x store.WaiterRow, now perdure.Instant) string {
	ago := span(now.Sub(x.ExpiresAt))
	if x.Node == "" {
		return fmt.Sprintf("nobody attached to follow it: the time for that passed %s ago", ago)
	}
	return fmt.Sprintf("nobody waits for it any more: the waiter of node %s expired %s ago", x.Node, ago)
}

// workers marks workers without a sign of life as offline. After a gap it waits, as all rules that
// judge by silence do.
func (s *Sweep) workers(tx *kernel.Tx, g *gap) error {
	if tx.Now < g.HoldUntil {
		return nil
	}
	silent, err := tx.DB.Workers.Silent(tx.Now.Add(-tx.Policy().WorkerOffline), sweepRows+s.w.aside.count(tx.Now))
	if err != nil {
		return err
	}
	return eachInTurn(s, tx, "workers", silent, func(x *perdure.Worker) (perdure.TenantID, string) {
		return x.Tenant, x.ID
	}, func(x *perdure.Worker) error {
		return s.tryRow(tx, ruleWorkerOffline, x.Tenant, "", func() error {
			tx.DB.Workers.SetOffline(*x)
			s.record(tx, ruleWorkerOffline, x.Tenant, "", "worker "+x.ID+" is shown as offline",
				"no sign of life for "+span(tx.Now.Sub(x.SeenAt)))
			return nil
		}, nil)
	})
}

// schedules starts the runs of schedules whose instant has come.
func (s *Sweep) schedules(tx *kernel.Tx, _ *gap) error {
	limit := s.limit(tx)
	due, err := tx.DB.Schedules.Ringing(s.w.lastTenant["schedules"], limit)
	if err != nil {
		return err
	}
	s.More = s.More || len(due) == limit
	return eachInTurn(s, tx, "schedules", due, func(x *store.ScheduleRow) (perdure.TenantID, string) {
		return x.Tenant, x.Name
	}, func(x *store.ScheduleRow) error {
		return s.tryRow(tx, ruleSchedule, x.Tenant, "", func() error {
			did, err := life.Fire(tx, x)
			if err == nil && did.What != "" {
				s.record(tx, ruleSchedule, x.Tenant, "", "schedule "+x.Name+": "+did.What, did.Why)
			}
			s.More = s.More || x.AlarmAt != 0 && x.AlarmAt <= tx.Now
			return err
		}, func(until perdure.Instant) error { return life.PutOffSchedule(tx, x, until) })
	})
}

// limits offers the room of limits that runs wait at.
func (s *Sweep) limits(tx *kernel.Tx, _ *gap) error {
	limit := s.limit(tx)
	changed, err := tx.DB.Limits.Ringing(limit)
	if err != nil {
		return err
	}
	for i := range changed {
		l := &changed[i]
		err := s.tryRow(tx, ruleLimit, l.Tenant, "", func() error { return life.RingLimit(tx, l) }, nil)
		if err != nil {
			return err
		}
	}
	due, err := tx.DB.LimitKeys.Ringing(s.w.lastTenant["limits"], limit)
	if err != nil {
		return err
	}
	s.More = s.More || len(changed) > 0 || len(due) == limit
	return eachInTurn(s, tx, "limits", due, func(x *store.LimitKeyRow) (perdure.TenantID, string) {
		return x.Tenant, x.Name + "\x1f" + x.Key
	}, func(x *store.LimitKeyRow) error {
		return s.tryRow(tx, ruleLimit, x.Tenant, "", func() error {
			passed, err := life.RingLimitKey(tx, x)
			if err == nil && passed > 0 {
				s.record(tx, ruleLimit, x.Tenant, "",
					fmt.Sprintf("limit %s lets others through beside %d runs", x.Name, passed),
					"nobody has claimed them for 1s")
			}
			return err
		}, func(until perdure.Instant) error { return life.PutOffLimitKey(tx, x, until) })
	})
}

// expire removes dead letters and idempotency keys after their time to live.
func (s *Sweep) expire(tx *kernel.Tx, _ *gap) error {
	due, err := tx.DB.Removals.Expired(store.MaxExpired + s.w.aside.count(tx.Now))
	if err != nil {
		return err
	}
	var over []store.Expired
	err = eachInTurn(s, tx, "expire", due, func(x *store.Expired) (perdure.TenantID, string) {
		return x.Tenant, x.ID
	}, func(x *store.Expired) error { over = append(over, *x); return nil })
	if err != nil || len(over) == 0 {
		return err
	}
	letters, keys, err := tx.DB.Removals.Expire(over)
	if err == nil && letters+keys > 0 {
		s.record(tx, ruleTTLExpiry, "", "",
			fmt.Sprintf("%d dead letters and %d idempotency keys removed", letters, keys), "their time is over")
	}
	return err
}

// recordRepair records what the engine repaired, if anything.
func (s *Sweep) recordRepair(
	tx *kernel.Tx, t perdure.TenantID, run perdure.RunID, did life.Repair, err error,
) error {
	if err == nil && did.Rule != "" {
		s.record(tx, did.Rule, t, run, did.What, did.Why)
	}
	return err
}

package store

import (
	"encoding/json"
	"time"

	"github.com/perdure/perdure"
)

// A Census is what there is at a moment, all tenants together.
type Census struct {
	Queues       map[string]QueueLoad
	States       map[perdure.State]int // live ones
	Deferred     int
	Tiers        map[string]int
	PastDeadline int             // live, and their deadline passed longer than PastGrace ago
	DeadLetters  map[string]int  // by cause
	Online       int             // workers
	Offline      int             // at most maxOffline of them are counted
	Quietest     perdure.Instant // when the online worker that is silent for longest was heard from
	SweptAt      perdure.Instant // when a watchdog last said that it sweeps
	FanOuts      int             // events that wait to become notifications; at most maxFanOutsCounted of them are counted
}

// A QueueLoad is what waits in a queue.
type QueueLoad struct {
	Claimable int
	Since     perdure.Instant // the one that waits longest
}

const (
	// PastGrace is by how much a deadline may have passed before the watchdog has let a run down.
	pastGrace  = 2 * time.Second
	maxOffline = 10_000
)

// live are the rows of runs that have not ended, by the index of their alarms: what has ended is not looked at, however much it is.
const live = "runs WHERE alarm_at IS NOT NULL AND alarm_at>=0"

// pastDeadline chooses the live runs that should have ended. After a gap, what was leased is spared for a while; that is no
// failure. Its arguments are those of pastArgs.
const pastDeadline = "deadline_at<? AND (?=0 OR state NOT IN ('dispatched','running'))"

func (v *View) pastArgs() ([]any, error) {
	_, spared, err := v.lastSweep()
	return []any{int64(v.Now.Add(-pastGrace)), toBit(v.Now < spared.Add(pastGrace))}, err
}

// lastSweep gives when a watchdog last said that it sweeps, and until when runs that were leased are spared after a gap.
func (v *View) lastSweep() (at, spared perdure.Instant, err error) {
	var sweep struct {
		SweptAt    perdure.Instant `json:"swept_at"`
		SpareUntil perdure.Instant `json:"spare_until"`
	}
	err = v.sess.Query("SELECT value FROM meta WHERE name='sweep'", nil, func(scan func(...any) error) error {
		var text string
		if err := scan(&text); err != nil {
			return err
		}
		_ = json.Unmarshal([]byte(text), &sweep) // one that can't be read is as none
		return nil
	})
	return sweep.SweptAt, sweep.SpareUntil, err
}

// PastDeadline counts live runs whose deadline passed more than PastGrace ago, and names the first. It must find none.
func (v *View) PastDeadline(limit int) (n int, first []perdure.RunID, err error) {
	args, err := v.pastArgs()
	if err != nil {
		return 0, nil, err
	}
	err = v.sess.Query("SELECT id FROM "+live+" AND "+pastDeadline+" ORDER BY deadline_at, tenant, id", args, func(scan func(...any) error) error {
		var id perdure.RunID
		if err := scan(&id); err != nil {
			return err
		}
		if n++; len(first) < limit {
			first = append(first, id)
		}
		return nil
	})
	return n, first, err
}

// Census counts. It reads what lives, and not what has ended.
func (v *View) Census(p *perdure.Policy) (*Census, error) {
	c := &Census{Queues: make(map[string]QueueLoad), States: make(map[perdure.State]int), Tiers: make(map[string]int), DeadLetters: make(map[string]int)}
	for _, count := range []func(*Census, *perdure.Policy) error{v.countRuns, v.countTiers, v.countLetters, v.countWorkers} {
		if err := count(c, p); err != nil {
			return nil, err
		}
	}
	var err error
	if c.FanOuts, err = v.FanOuts.Count(maxFanOutsCounted); err != nil {
		return nil, err
	}
	c.SweptAt, _, err = v.lastSweep()
	return c, err
}

func (v *View) countRuns(c *Census, _ *perdure.Policy) error {
	args, err := v.pastArgs()
	if err != nil {
		return err
	}
	return v.sess.Query("SELECT queue, state, count(*), sum(ready), coalesce(min(CASE WHEN ready=1 THEN ready_at END),0), "+
		"sum(CASE WHEN deferred_at>0 THEN 1 ELSE 0 END), sum(CASE WHEN "+pastDeadline+" THEN 1 ELSE 0 END) FROM "+live+" GROUP BY queue, state", args,
		func(scan func(...any) error) error {
			var queue string
			var state perdure.State
			var n, ready, deferred, past int
			var since perdure.Instant
			if err := scan(&queue, &state, &n, &ready, &since, &deferred, &past); err != nil {
				return err
			}
			c.States[state] += n
			c.Deferred += deferred
			c.PastDeadline += past
			load := c.Queues[queue]
			if load.Claimable += ready; since != 0 && (load.Since == 0 || since < load.Since) {
				load.Since = since
			}
			c.Queues[queue] = load
			return nil
		})
}

func (v *View) countTiers(c *Census, p *perdure.Policy) error {
	return v.sess.Query("SELECT kind, activity, state, seen_at FROM "+live+" AND state IN ('dispatched','running')", nil, func(scan func(...any) error) error {
		var r perdure.Run
		if err := scan(&r.Kind, &r.Activity, &r.State, &r.SeenAt); err != nil {
			return err
		}
		c.Tiers[p.Tier(&r, v.Now)]++
		return nil
	})
}

func (v *View) countLetters(c *Census, _ *perdure.Policy) error {
	return v.sess.Query("SELECT cause, count(*) FROM dead_letters GROUP BY cause", nil, func(scan func(...any) error) error {
		var cause string
		var n int
		err := scan(&cause, &n)
		c.DeadLetters[cause] = n
		return err
	})
}

func (v *View) countWorkers(c *Census, _ *perdure.Policy) error {
	err := v.sess.Query("SELECT count(*), coalesce(min(seen_at),0) FROM workers WHERE offline=0 AND seen_at>=0", nil,
		func(scan func(...any) error) error { return scan(&c.Online, &c.Quietest) })
	if err != nil {
		return err
	}
	return v.sess.Query("SELECT count(*) FROM (SELECT 1 FROM workers WHERE offline=1"+atMost+") AS offline", []any{int64(maxOffline)},
		func(scan func(...any) error) error { return scan(&c.Offline) })
}

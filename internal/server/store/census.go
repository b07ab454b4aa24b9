package store

import (
	"encoding/json"
	"time"

	"github.com/perdure/perdure"
)

// A Census counts the contents of the store at a moment, over all tenants.
type Census struct {
	Queues       map[string]QueueLoad
	States       map[perdure.State]int // live runs only
	Deferred     int
	Held         int // runs that wait for the backoff of a hold
	Tiers        map[string]int
	PastDeadline int            // live runs whose deadline passed longer than pastGrace ago
	DeadLetters  map[string]int // by cause
	Online       int            // workers
	Offline      int            // counted up to maxOffline
	// Quietest is when the online worker that has been silent for longest was last seen.
	Quietest perdure.Instant
	// SweptAt is when a watchdog last recorded a sweep.
	SweptAt perdure.Instant
	// FanOuts are events that wait to become notifications, counted up to maxFanOutsCounted.
	FanOuts int
}

// A QueueLoad is the waiting work of a queue.
type QueueLoad struct {
	Claimable int
	Since     perdure.Instant // since when the first of them has been waiting
}

const (
	// pastGrace is the time after a deadline within which the watchdog has to end a run.
	pastGrace  = 2 * time.Second
	maxOffline = 10_000
)

// live selects the runs that have not ended, by the index of alarms. Ended runs are not read,
// however many there are.
const live = "runs WHERE alarm_at IS NOT NULL AND alarm_at>=0"

// pastDeadline selects live runs that should have ended. After a gap without a watchdog, leased
// runs are spared for a while, which is no failure. pastArgs gives its arguments.
const pastDeadline = "deadline_at<? AND (?=0 OR state NOT IN ('dispatched','running'))"

// pastArgs gives the arguments of pastDeadline.
func (v *View) pastArgs() ([]any, error) {
	_, spared, err := v.lastSweep()
	return []any{int64(v.Now.Add(-pastGrace)), toBit(v.Now < spared.Add(pastGrace))}, err
}

// lastSweep gives when a watchdog last recorded a sweep, and until when leased runs are spared
// after a gap.
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
		_ = json.Unmarshal([]byte(text), &sweep) // a text that can't be read counts as none
		return nil
	})
	return sweep.SweptAt, sweep.SpareUntil, err
}

// PastDeadline counts live runs whose deadline passed more than pastGrace ago, and gives the first
// ones. There should be none.
func (v *View) PastDeadline(limit int) (n int, first []perdure.RunID, err error) {
	args, err := v.pastArgs()
	if err != nil {
		return 0, nil, err
	}
	err = v.sess.Query("SELECT id FROM "+live+" AND "+pastDeadline+" ORDER BY deadline_at, tenant, id", args,
		func(scan func(...any) error) error {
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

// Census counts live runs, dead letters and workers. It does not read ended runs.
func (v *View) Census(p *perdure.Policy) (*Census, error) {
	c := &Census{Queues: make(map[string]QueueLoad), States: make(map[perdure.State]int), Tiers: make(map[string]int),
		DeadLetters: make(map[string]int)}
	for _, count := range []func(*Census, *perdure.Policy) error{v.countRuns, v.countTiers, v.countLetters,
		v.countWorkers} {
		if err := count(c, p); err != nil {
			return nil, err
		}
	}
	err := v.sess.Query("SELECT count(*) FROM runs WHERE held_by<>'' AND held_by<>'"+heldForCleanup+"'", nil,
		func(scan func(...any) error) error { return scan(&c.Held) })
	if err != nil {
		return nil, err
	}
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
	return v.sess.Query("SELECT queue, state, count(*), sum(ready), coalesce(min(CASE WHEN ready=1 THEN ready_at "+
		"END),0), "+
		"sum(CASE WHEN deferred_at>0 THEN 1 ELSE 0 END), sum(CASE WHEN "+pastDeadline+" THEN 1 ELSE 0 END) FROM "+live+
		" GROUP BY queue, state", args,
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
	return v.sess.Query("SELECT kind, activity, state, seen_at FROM "+live+" AND state IN ('dispatched','running')",
		nil, func(scan func(...any) error) error {
			var r perdure.Run
			if err := scan(&r.Kind, &r.Activity, &r.State, &r.SeenAt); err != nil {
				return err
			}
			c.Tiers[p.Tier(&r, v.Now)]++
			return nil
		})
}

func (v *View) countLetters(c *Census, _ *perdure.Policy) error {
	return v.sess.Query("SELECT cause, count(*) FROM dead_letters GROUP BY cause", nil,
		func(scan func(...any) error) error {
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
	return v.sess.Query("SELECT count(*) FROM (SELECT 1 FROM workers WHERE offline=1"+atMost+") AS offline",
		[]any{int64(maxOffline)}, func(scan func(...any) error) error { return scan(&c.Offline) })
}

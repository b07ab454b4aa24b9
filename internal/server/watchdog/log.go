package watchdog

import (
	"fmt"
	"hash/fnv"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/store"
)

// An Action is an entry of the watchdog's log: something that a rule did.
type Action = perdure.WatchdogAction

const (
	// LogEntries is how many entries the log keeps.
	LogEntries = 10_000
	// LogAge is the greatest age of an entry.
	LogAge = 7 * 24 * time.Hour

	// trimAfter is the number of new entries after which the log is trimmed.
	trimAfter = 500
	// trimEvery is how often it is trimmed if there are fewer.
	trimEvery = time.Hour
	// trimRows bounds the entries that one sweep removes.
	trimRows = 2 * sweepRows
)

// record adds an action to the sweep's list, with its reason. Both texts may contain names and
// numbers, and no other text from callers or workers, so that no secret gets into the log.
func (s *Sweep) record(tx *kernel.Tx, rule string, t perdure.TenantID, run perdure.RunID, what, why string) {
	s.Actions = append(s.Actions, s.w.newAction(tx.Now, rule, t, run, what, why))
}

// newAction returns an entry of the log. Its id sorts by time first, then by a counter of this
// process. The hash at its end keeps the ids of several nodes apart. At one instant they can't both
// have applied the same rule to the same run.
func (w *Watchdog) newAction(
	now perdure.Instant, rule string, t perdure.TenantID, run perdure.RunID, what, why string,
) Action {
	h := fnv.New32a()
	h.Write([]byte(string(t) + "\x00" + string(run) + "\x00" + rule))
	id := logIDPrefix(now) + fmt.Sprintf("-%08x-%08x", w.actionCount.Add(1), h.Sum32())
	return Action{ID: id, At: now, Rule: byName[rule].ID, Name: rule, Tenant: t, Run: run, What: what, Why: why}
}

// logIDPrefix returns the first part of the ids of an instant's entries.
func logIDPrefix(at perdure.Instant) string { return fmt.Sprintf("%014x", max(0, int64(at))) }

// writeLog trims the log if it is time, and writes the sweep's actions to it.
func (s *Sweep) writeLog(tx *kernel.Tx) error {
	acted := len(s.Actions)
	err := tx.Try(func() error { return s.trimLog(tx) })
	if store.HeldUp(err) { // an old entry is locked: it is removed later
		s.Actions, err = s.Actions[:acted], nil
	}
	if err != nil {
		return err
	}
	return s.w.writeActions(tx, s.Actions)
}

// writeActions writes actions to the log. After they are durable it reports them. While another session
// has the log's table locked they are in the server's log alone: no deadline waits for a log.
func (w *Watchdog) writeActions(tx *kernel.Tx, actions []Action) error {
	if len(actions) == 0 {
		return nil
	}
	err := tx.Try(func() error {
		tx.DB.WatchLog.Add(actions...)
		return nil
	})
	if err != nil && !store.HeldUp(err) {
		return err
	}
	tx.DB.After(func() {
		w.untrimmed.Add(int64(len(actions)))
		for i := range actions {
			a := &actions[i]
			w.log.Info("watchdog", "rule", a.Rule, "name", a.Name, "full_name", byName[a.Name].fullName(),
				"tenant", a.Tenant, "run", a.Run, "what", a.What, "why", a.Why)
		}
		if w.OnActions != nil {
			w.OnActions(actions)
		}
	})
	return nil
}

// trimLog removes a portion of the entries that are too many or too old, if it is time.
func (s *Sweep) trimLog(tx *kernel.Tx) error {
	if tx.Now < s.w.trimAt && s.w.untrimmed.Load() < trimAfter {
		return nil
	}
	n, err := tx.DB.WatchLog.Trim(logIDPrefix(tx.Now.Add(-LogAge)), LogEntries, trimRows)
	if err != nil {
		return err
	}
	more := n == trimRows
	if n > 0 {
		s.record(tx, ruleLogTrim, "", "", fmt.Sprintf("%d entries of this log removed", n),
			fmt.Sprintf("beyond the newest %d, or older than %s", LogEntries, LogAge))
		s.More = s.More || more
	}
	tx.DB.After(func() {
		if s.w.trimAt = tx.Now.Add(trimEvery); more {
			s.w.trimAt = tx.Now
		}
		s.w.untrimmed.Store(0)
	})
	return nil
}

package watchdog

import (
	"fmt"
	"hash/fnv"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/engine"
)

// An Action is something that a rule did.
type Action = perdure.WatchdogAction

// The log of what was done holds so many entries, none older than this. It is trimmed after trimAfter new ones, and from time to
// time, a batch in a sweep.
const (
	LogEntries = 10_000
	LogAge     = 7 * 24 * time.Hour

	trimAfter = 500
	trimEvery = time.Hour
	trimBatch = 2 * batch
)

// byName finds a rule by its name.
var byName = func() map[string]*Rule {
	m := make(map[string]*Rule)
	for i := range Rules {
		m[Rules[i].Name] = &Rules[i]
	}
	return m
}()

// did notes what a rule has done, and why: for the log, which is written with it. Neither text holds anything that a caller or a
// worker wrote but names, so that no secret gets into it.
func (s *Sweep) did(tx *engine.Tx, rule string, t perdure.TenantID, run perdure.RunID, what, why string) {
	s.Actions = append(s.Actions, s.w.action(tx.Now, rule, t, run, what, why))
}

// action is an entry of the log.
func (w *Watchdog) action(now perdure.Instant, rule string, t perdure.TenantID, run perdure.RunID, what, why string) Action {
	h := fnv.New32a()
	h.Write([]byte(string(t) + "\x00" + string(run) + "\x00" + rule))
	// By time first, then in the order of this process; what several nodes do at once differs in what it is about.
	id := logID(now) + fmt.Sprintf("-%08x-%08x", w.acts.Add(1), h.Sum32())
	return Action{ID: id, At: now, Rule: byName[rule].ID, Name: rule, Tenant: t, Run: run, What: what, Why: why}
}

// logID is what the ids of an instant's entries begin with.
func logID(at perdure.Instant) string { return fmt.Sprintf("%014x", max(0, int64(at))) }

// keep writes down what was done, and keeps the log short.
func (s *Sweep) keep(tx *engine.Tx) error {
	if err := s.trim(tx); err != nil {
		return err
	}
	s.w.note(tx, s.Actions)
	return nil
}

// note writes down what was done, and has it told once that is durable.
func (w *Watchdog) note(tx *engine.Tx, done []Action) {
	if len(done) == 0 {
		return
	}
	tx.AddWatched(done...)
	tx.After(func() {
		w.untrimmed.Add(int64(len(done)))
		for i := range done {
			a := &done[i]
			w.log.Info("watchdog", "rule", a.Rule, "name", a.Name, "tenant", a.Tenant, "run", a.Run, "what", a.What, "why", a.Why)
		}
		if w.Told != nil {
			w.Told(done)
		}
	})
}

// trim keeps the log short.
func (s *Sweep) trim(tx *engine.Tx) error {
	if tx.Now < s.w.trimAt && s.w.untrimmed.Load() < trimAfter {
		return nil
	}
	n, err := tx.TrimWatched(logID(tx.Now.Add(-LogAge)), LogEntries, trimBatch)
	if err != nil {
		return err
	}
	more := n == trimBatch
	if n > 0 {
		s.did(tx, "log", "", "", fmt.Sprintf("%d entries of this log removed", n), fmt.Sprintf("beyond the newest %d, or older than %s", LogEntries, LogAge))
		s.More = s.More || more
	}
	tx.After(func() {
		if s.w.trimAt = tx.Now.Add(trimEvery); more {
			s.w.trimAt = tx.Now
		}
		s.w.untrimmed.Store(0)
	})
	return nil
}

// outcome says what a rule has made of a run.
func outcome(p *perdure.Policy, rule *Rule, before, after *perdure.Run, now perdure.Instant) string {
	switch queued := after.State == perdure.Queued; {
	case after.State.Terminal():
		text := string(after.State)
		if after.Failure != nil {
			text += "/" + string(after.Failure.Code)
		}
		if after.State != perdure.Cancelled && (rule.Clock == "lease" || rule.Clock == "dead" || rule.Clock == "undelivered") {
			text += ", a dead letter"
		}
		return text
	case queued && after.Attempt > before.Attempt:
		return fmt.Sprintf("queued again, attempt %d, in %s; %d of %d lost in a row", after.Attempt, span(after.ReadyAt.Sub(now)), after.Strikes, after.MaxAttempts)
	case queued && before.State.Leased():
		return fmt.Sprintf("back to queued, claimable in %s; %d of %d deliveries, no attempt spent", span(after.ReadyAt.Sub(now)), before.Deliveries, p.MaxDeliveries)
	case queued && before.State == perdure.Suspended:
		return "the wait is over, queued"
	case before.State == perdure.Suspended:
		return "the wait is over; it sleeps on others"
	case after.Said&^before.Said == perdure.SaidStale:
		return perdure.LineStale
	case after.Said != before.Said:
		return perdure.LineSlow
	case after.Ready:
		return "claimable"
	case after.Turn == perdure.TurnWaiting:
		return "waits for its turn on its thread"
	}
	return "looked at"
}

// because says why the rule of a clock acted on a run: what was so, in figures.
func because(clock string, r *perdure.Run, at, now perdure.Instant) string {
	ago := func(from perdure.Instant) string { return span(now.Sub(from)) }
	late := ago(at)
	switch clock {
	case "deadline":
		text := fmt.Sprintf("its deadline passed %s ago; %s", late, r.State)
		if r.State.Leased() {
			text += ", last sign of life " + ago(r.SeenAt) + " ago"
		}
		return text
	case "cancel-grace":
		if r.Cancel.AckedAt != 0 {
			return fmt.Sprintf("it acknowledged the request to stop %s ago and has not stopped", ago(r.Cancel.AckedAt))
		}
		return fmt.Sprintf("it was asked to stop %s ago and has not acknowledged that", ago(r.Cancel.RequestedAt))
	case "lease":
		return fmt.Sprintf("the lease of worker %s expired %s ago; last sign of life %s ago", r.Worker, late, ago(r.SeenAt))
	case "undelivered":
		return fmt.Sprintf("first granted %s ago and not heard from; %d deliveries, the last to worker %s", ago(r.FirstGrantAt), r.Deliveries, r.Worker)
	case "redeliver":
		return fmt.Sprintf("granted to worker %s %s ago and not heard from; delivery %d", r.Worker, ago(r.GrantedAt), r.Deliveries)
	case "wait":
		return fmt.Sprintf("the time of a wait passed %s ago; %d open", late, r.WaitsOpen)
	case "due":
		return fmt.Sprintf("its delay or backoff ended %s ago", late)
	case "queued-long":
		return fmt.Sprintf("claimable for %s, and nobody takes it", ago(r.ReadyAt))
	case "no-progress":
		return fmt.Sprintf("no change of activity, event or journal for %s; last sign of life %s ago", ago(r.MovedAt), ago(r.SeenAt))
	}
	return fmt.Sprintf("no sign of life for %s; %s, worker %s", ago(r.SeenAt), r.State, r.Worker)
}

// span is a duration as a person reads it.
func span(d time.Duration) string {
	switch d = max(0, d); {
	case d < 10*time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	case d < 10*time.Second:
		return d.Round(time.Millisecond).String()
	}
	return d.Round(100 * time.Millisecond).String()
}

package watchdog

import (
	"fmt"
	"time"

	"github.com/perdure/perdure"
)

// outcome says in words what a rule has changed about a run.
func outcome(p *perdure.Policy, rule *Rule, before, after *perdure.Run, now perdure.Instant) string {
	switch queued := after.State == perdure.Queued; {
	case after.State.Terminal():
		text := string(after.State)
		if after.Failure != nil {
			text += "/" + string(after.Failure.Code)
		}
		deadLetters := rule.Clock == "lease" || rule.Clock == "dead" || rule.Clock == "undelivered" ||
			rule.Clock == "unclaimed" || rule.Clock == "hold"
		if after.State != perdure.Cancelled && deadLetters {
			text += ", a dead letter"
		}
		return text
	case queued && after.Attempt > before.Attempt:
		return fmt.Sprintf("queued again, attempt %d, in %s; %d of %d lost in a row",
			after.Attempt, span(after.ReadyAt.Sub(now)), after.Strikes, after.MaxAttempts)
	case queued && before.State.Leased():
		return fmt.Sprintf("back to queued, claimable in %s; %d of %d deliveries, no attempt spent",
			span(after.ReadyAt.Sub(now)), before.Grants, p.MaxGrants)
	case queued && before.State == perdure.Suspended:
		return "the wait is over, queued"
	case before.State == perdure.Suspended:
		return "the wait is over; it sleeps on others"
	case after.AlertsSent&^before.AlertsSent == perdure.AlertStale:
		return string(perdure.LineStale)
	case after.AlertsSent != before.AlertsSent:
		return string(perdure.LineSlow)
	case before.Copying() && !after.Copying():
		return fmt.Sprintf("all %d entries of the journal are copied", after.CopyTo)
	case after.Ready:
		return "claimable"
	case after.Turn == perdure.TurnWaiting:
		return "waits for its turn on its thread"
	}
	return "looked at"
}

// because says in figures why the rule of a clock acted on a run. The clock was due at an instant.
func because(clock string, r *perdure.Run, due, now perdure.Instant) string {
	ago := func(from perdure.Instant) string { return span(now.Sub(from)) }
	switch clock {
	case "deadline":
		text := fmt.Sprintf("its deadline passed %s ago; %s", ago(due), r.State)
		if r.State.Leased() {
			text += ", last sign of life " + ago(r.SeenAt) + " ago"
		}
		return text
	case "hold":
		return fmt.Sprintf("on hold for %s after %d defects; the last: %s", ago(r.Hold.Since), r.Hold.Count,
			r.Hold.Failure.Code)
	case "cancel-grace":
		if r.Cancel.AckedAt != 0 {
			return fmt.Sprintf("it acknowledged the request to stop %s ago and has not stopped", ago(r.Cancel.AckedAt))
		}
		return fmt.Sprintf("it was asked to stop %s ago and has not acknowledged that", ago(r.Cancel.RequestedAt))
	case "lease":
		return fmt.Sprintf("the lease of worker %s expired %s ago; last sign of life %s ago",
			r.Worker, ago(due), ago(r.SeenAt))
	case "undelivered":
		return fmt.Sprintf("first granted %s ago and not heard from; %d deliveries, the last to worker %s",
			ago(r.FirstGrantAt), r.Grants, r.Worker)
	case "redeliver":
		return fmt.Sprintf("granted to worker %s %s ago and not heard from; delivery %d",
			r.Worker, ago(r.GrantedAt), r.Grants)
	case "wait":
		return fmt.Sprintf("the time of a wait passed %s ago; %d open", ago(due), r.WaitsOpen)
	case "copy":
		return "it begins with the journal of run " + string(r.RetryOf)
	case "due":
		return fmt.Sprintf("its delay or backoff ended %s ago", ago(due))
	case "unclaimed":
		return fmt.Sprintf("claimable for %s, and its runner does not take it", ago(r.ReadyAt))
	case "queued-long":
		if r.AtLimit() {
			return "blocked by " + limitName(r.Limited.At) + " for " + ago(r.Limited.Since)
		}
		return fmt.Sprintf("claimable for %s, and nobody takes it", ago(r.ReadyAt))
	case "no-progress":
		if r.State == perdure.Queued {
			return fmt.Sprintf("on hold for %s after %d defects; the last: %s", ago(r.Hold.Since), r.Hold.Count,
				r.Hold.Failure.Code)
		}
		return fmt.Sprintf("no change of activity, event or journal for %s; last sign of life %s ago",
			ago(r.MovedAt), ago(r.SeenAt))
	}
	return fmt.Sprintf("no sign of life for %s; %s, worker %s", ago(r.SeenAt), r.State, r.Worker)
}

// span formats a duration with as many digits as a person needs.
func span(d time.Duration) string {
	switch d = max(0, d); {
	case d < 10*time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	case d < 10*time.Second:
		return d.Round(time.Millisecond).String()
	}
	return d.Round(100 * time.Millisecond).String()
}

// limitName names a limit, and its key.
func limitName(at perdure.LimitRef) string {
	if at.Key == "" {
		return "limit " + at.Limit
	}
	return "limit " + at.Limit + " (key " + at.Key + ")"
}

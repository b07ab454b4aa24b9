package kernel

import "github.com/perdure/perdure"

// A Change is something that happened to a run, for metrics. It holds no payload.
type Change struct {
	// The type of the log line, or WebhookAttempt.
	What perdure.LineType
	// Reason is that of an alert or a deferral, or the outcome of a webhook attempt.
	Reason string

	// State and the fields below are those of the run after the change.
	State       perdure.State
	Queue, Kind string
	// Code says why the run ended without a result.
	Code       perdure.Code
	CreatedAt  perdure.Instant
	DeadlineAt perdure.Instant
	FinishedAt perdure.Instant
	// CancelAt is when the run was asked to stop.
	CancelAt perdure.Instant
}

// WebhookAttempt is a Change without a log line: a notification was sent, or could not be.
const WebhookAttempt = "webhook:attempt"

// An Observer receives changes once they are durable. It is called before the caller gets its
// answer, so it must be quick and must not block.
type Observer interface{ Observe([]Change) }

// Try calls f as an operation inside of the operation, as the store's Try does. If f fails, the
// rows that it staged, its observed changes and what the wings remember of it are discarded.
func (tx *Tx) Try(f func() error) error {
	tally, saved := len(tx.observed), tx.saveScratch()
	err := tx.DB.Try(f)
	if err != nil {
		tx.observed = tx.observed[:tally]
		tx.restoreScratch(&saved)
	}
	return err
}

// observe collects the changes that the observer counts. Lines that workers write are most of the
// log, and are not counted.
func (tx *Tx) observe(r *perdure.Run, ev perdure.Event, lines []perdure.Line) {
	for i := range lines {
		c := Change{What: lines[i].Type, State: r.State, Queue: r.Queue, Kind: r.Kind}
		switch c.What {
		case perdure.LineCreated, perdure.LineStale, perdure.LineHeld:
		case perdure.LineLateResult:
			if _, kept := ev.(perdure.LateResultKept); !kept {
				// It was counted when it was kept.
				continue
			}
		case perdure.LineSlow:
			if slow, ok := ev.(perdure.Slow); ok {
				c.Reason = slow.Reason
			}
		case perdure.LineDeferred:
			if went, ok := ev.(perdure.WentDeferred); ok {
				c.Reason = went.Reason
			}
		case perdure.LineDeadLettered, perdure.LineCompleted, perdure.LineFailed, perdure.LineTimedOut,
			perdure.LineCancelled:
			if r.Failure != nil {
				c.Code = r.Failure.Code
			}
			c.CreatedAt, c.DeadlineAt, c.FinishedAt, c.CancelAt = r.CreatedAt, r.DeadlineAt, r.FinishedAt,
				r.Cancel.RequestedAt
		default:
			continue
		}
		tx.observed = append(tx.observed, c)
	}
}

// Count collects a change that has no log line, if there is an observer.
func (tx *Tx) Count(c Change) {
	if tx.Engine.observer != nil {
		tx.observed = append(tx.observed, c)
	}
}

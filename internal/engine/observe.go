package engine

import "github.com/perdure/perdure"

// A Change is something that happened to a run and that somebody may count: what it was, not what was said.
type Change struct {
	What   string // the type of its line, or WebhookAttempt
	Reason string // of an alert or a deferral; the outcome of an attempt

	State       perdure.State // as it is afterwards, like the rest
	Queue, Kind string
	Code        perdure.Code // why it ended without a result
	CreatedAt   perdure.Instant
	DeadlineAt  perdure.Instant
	FinishedAt  perdure.Instant
	CancelAt    perdure.Instant // when it was asked to stop
}

// WebhookAttempt is a Change that no line tells of: a message was sent, or could not be.
const WebhookAttempt = "webhook:attempt"

// An Observer is told of changes once they are durable. It is called before the caller has its answer: it is quick, and blocks on
// nothing.
type Observer interface{ Observe([]Change) }

// Try calls f as an operation of its own inside the operation, as the store's does. Of an f that fails nothing is
// counted, and what follows from its ends is forgotten.
func (tx *Tx) Try(f func() error) error {
	tally, todo, ending, settling := len(tx.observed), len(tx.followUps), tx.ending, tx.inFollowUps
	err := tx.DB.Try(f)
	if err != nil {
		tx.observed, tx.followUps, tx.ending, tx.inFollowUps = tx.observed[:tally], tx.followUps[:min(todo, len(tx.followUps))], ending, settling
	}
	return err
}

// note has the lines counted that count. Those of workers, which are the most, don't.
func (tx *Tx) note(r *perdure.Run, ev perdure.Event, lines []perdure.Line) {
	for i := range lines {
		c := Change{What: lines[i].Type, State: r.State, Queue: r.Queue, Kind: r.Kind}
		switch c.What {
		case perdure.LineCreated, perdure.LineStale:
		case perdure.LineLateResult:
			if _, kept := ev.(perdure.LateResultKept); !kept {
				continue // somebody decided about one that was counted when it came
			}
		case perdure.LineSlow:
			if slow, ok := ev.(perdure.Slow); ok {
				c.Reason = slow.Reason
			}
		case perdure.LineDeferred:
			if went, ok := ev.(perdure.WentDeferred); ok {
				c.Reason = went.Reason
			}
		case perdure.LineDeadLettered, perdure.LineCompleted, perdure.LineFailed, perdure.LineTimedOut, perdure.LineCancelled:
			if r.Failure != nil {
				c.Code = r.Failure.Code
			}
			c.CreatedAt, c.DeadlineAt, c.FinishedAt, c.CancelAt = r.CreatedAt, r.DeadlineAt, r.FinishedAt, r.Cancel.RequestedAt
		default:
			continue
		}
		tx.observed = append(tx.observed, c)
	}
}

// countAttempt has an attempt to send a message counted.
func countAttempt(tx *Tx, s *Sent) {
	c := Change{What: WebhookAttempt, Reason: "refused"}
	switch {
	case s.Stopped:
		c.Reason = "stopped"
	case s.OK():
		c.Reason = "delivered"
	case s.Status == 0:
		c.Reason = "unreachable"
	}
	tx.observed = append(tx.observed, c)
}

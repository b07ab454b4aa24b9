package perdure

// A Line is one immutable line of a run's log. Lines are numbered from 1 without gaps. The API
// calls a line an event.
type Line struct {
	Seq     int64   `json:"seq"`
	Type    string  `json:"type"`
	At      Instant `json:"at"`
	Attempt int     `json:"attempt"`
	Epoch   int64   `json:"-"`
	Data    Value   `json:"data"`
}

// The types of lines.
const (
	LineCreated         = "run:created"
	LineDispatched      = "run:dispatched"
	LineStarted         = "run:started"
	LineHeartbeat       = "run:heartbeat"
	LineProgress        = "run:progress"
	LineSlow            = "run:slow"
	LineStale           = "run:stale"
	LineSuspended       = "run:suspended"
	LineResumed         = "run:resumed"
	LineDeferred        = "run:deferred"
	LineReattached      = "run:reattached"
	LineHeld            = "run:held"
	LineRetrying        = "run:retrying"
	LineReclaimed       = "run:reclaimed"
	LineCancelRequested = "run:cancel_requested"
	LineCompleted       = "run:completed"
	LineFailed          = "run:failed"
	LineTimedOut        = "run:timed_out"
	LineCancelled       = "run:cancelled"
	LineDeadLettered    = "run:dead_lettered"
	LineLateResult      = "run:late_result"
	LineContinued       = "run:continued"
	// LineProcessReattached tells of the first sign of life of a process after the server's restart.
	LineProcessReattached = "run:process_reattached"

	// These three tell of a child. They are on the parent's log, while the parent is live.
	LineWorkerSpawned   = "worker:spawned"
	LineWorkerStarted   = "worker:started"
	LineWorkerCompleted = "worker:completed"

	LineToolStarted   = "worker:tool_started"
	LineToolCompleted = "worker:tool_completed"
	LineToolFailed    = "worker:tool_failed"

	LineWaitOpened    = "wait:opened"
	LineWaitSatisfied = "wait:satisfied"
	LineWaitTimedOut  = "wait:timed_out"
	LineWaitClosed    = "wait:closed"

	LineMessage = "message:appended"
	LineDelta   = "llm:delta"
)

// LineTypes lists all types except those that users define, "x:…".
var LineTypes = []string{
	LineCreated, LineDispatched, LineStarted, LineHeartbeat, LineProgress, LineSlow, LineStale,
	LineSuspended, LineResumed, LineDeferred, LineHeld, LineReattached, LineRetrying, LineReclaimed,
	LineCancelRequested, LineCompleted, LineFailed, LineTimedOut, LineCancelled, LineDeadLettered,
	LineLateResult, LineContinued, LineProcessReattached,
	LineWorkerSpawned, LineWorkerStarted, LineWorkerCompleted, LineToolStarted, LineToolCompleted, LineToolFailed,
	LineWaitOpened, LineWaitSatisfied, LineWaitTimedOut, LineWaitClosed, LineMessage, LineDelta,
}

// TerminalLine returns the type of the line that ends a run in a terminal state.
func TerminalLine(s State) string {
	switch s {
	case Completed:
		return LineCompleted
	case Failed:
		return LineFailed
	case TimedOut:
		return LineTimedOut
	case Cancelled:
		return LineCancelled
	}
	return ""
}

// Fold computes the state of a run from its log. It must equal the state in the row. ok is false
// for a log that Transitions does not allow.
func Fold(lines []Line) (s State, ok bool) {
	ok = true
	for _, l := range lines {
		next := s
		switch l.Type {
		case LineCreated:
			ok = ok && s == ""
			next = Queued
		case LineDispatched:
			ok = ok && (s == Queued || s == Dispatched || s == Running)
			if s == Queued {
				next = Dispatched
			}
		case LineStarted:
			ok = ok && s == Dispatched
			next = Running
		case LineSuspended:
			ok = ok && s == Running
			next = Suspended
		case LineResumed:
			ok = ok && s == Suspended
			next = Queued
		case LineReclaimed:
			ok = ok && s.Leased()
			next = Queued
		case LineHeld:
			ok = ok && s == Running
			next = Queued
		case LineRetrying:
			ok = ok && (s == Running || s == Queued)
			next = Queued
		case LineCompleted:
			next = Completed
		case LineFailed:
			next = Failed
		case LineTimedOut:
			next = TimedOut
		case LineCancelled:
			next = Cancelled
		}
		if next != s && s.Terminal() {
			ok = false
		}
		s = next
	}
	return s, ok && s != ""
}

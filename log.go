package perdure

// A Line is one immutable line of a run's log. Lines are numbered from 1 without gaps. The API
// calls a line an event.
type Line struct {
	Seq     int64    `json:"seq"`
	Type    LineType `json:"type"`
	At      Instant  `json:"at"`
	Attempt int      `json:"attempt"`
	Epoch   int64    `json:"-"`
	Data    Value    `json:"data"`
}

// A LineType is the type of a line, such as "run:completed". Types that begin with "x:" are the
// users' own.
type LineType string

// The types of lines.
const (
	LineCreated         LineType = "run:created"
	LineDispatched      LineType = "run:dispatched"
	LineStarted         LineType = "run:started"
	LineHeartbeat       LineType = "run:heartbeat"
	LineProgress        LineType = "run:progress"
	LineSlow            LineType = "run:slow"
	LineStale           LineType = "run:stale"
	LineSuspended       LineType = "run:suspended"
	LineResumed         LineType = "run:resumed"
	LineDebounced       LineType = "run:debounced"
	LineDeferred        LineType = "run:deferred"
	LineReattached      LineType = "run:reattached"
	LineBlocked         LineType = "run:blocked" // it has to wait at a limit
	LineHeld            LineType = "run:held"
	LineHoldReleased    LineType = "run:hold_released"
	LineRetrying        LineType = "run:retrying"
	LineReclaimed       LineType = "run:reclaimed"
	LineCancelRequested LineType = "run:cancel_requested"
	LineCompleted       LineType = "run:completed"
	LineFailed          LineType = "run:failed"
	LineTimedOut        LineType = "run:timed_out"
	LineCancelled       LineType = "run:cancelled"
	LineDeadLettered    LineType = "run:dead_lettered"
	LineLateResult      LineType = "run:late_result"
	LineContinued       LineType = "run:continued"
	// LineProcessReattached tells of the first sign of life of a process after the server's restart.
	LineProcessReattached LineType = "run:process_reattached"

	// These three tell of a child. They are on the parent's log, while the parent is live.
	LineWorkerSpawned   LineType = "worker:spawned"
	LineWorkerStarted   LineType = "worker:started"
	LineWorkerCompleted LineType = "worker:completed"

	// These two tell of a run below that asks a person, and that the question is over. They are on the log
	// of the root, while the root is live.
	LineWorkerAsks     LineType = "worker:asks"
	LineWorkerAnswered LineType = "worker:answered"

	LineToolStarted   LineType = "worker:tool_started"
	LineToolCompleted LineType = "worker:tool_completed"
	LineToolFailed    LineType = "worker:tool_failed"

	LineWaitOpened    LineType = "wait:opened"
	LineWaitSatisfied LineType = "wait:satisfied"
	LineWaitTimedOut  LineType = "wait:timed_out"
	LineWaitClosed    LineType = "wait:closed"

	LineMessage LineType = "message:appended"
	LineDelta   LineType = "llm:delta"
)

// LineTypes lists all types except those that users define, "x:…".
var LineTypes = []LineType{
	LineCreated, LineDispatched, LineStarted, LineHeartbeat, LineProgress, LineSlow, LineStale,
	LineSuspended, LineResumed, LineDeferred, LineBlocked, LineHeld,
	LineHoldReleased, LineReattached, LineRetrying, LineReclaimed,
	LineDebounced,
	LineCancelRequested, LineCompleted, LineFailed, LineTimedOut, LineCancelled, LineDeadLettered,
	LineLateResult, LineContinued, LineProcessReattached,
	LineWorkerSpawned, LineWorkerStarted, LineWorkerCompleted, LineWorkerAsks, LineWorkerAnswered,
	LineToolStarted, LineToolCompleted, LineToolFailed,
	LineWaitOpened, LineWaitSatisfied, LineWaitTimedOut, LineWaitClosed, LineMessage, LineDelta,
}

// TerminalLine returns the type of the line that ends a run in a terminal state.
func TerminalLine(s State) LineType {
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

package perdure

import "encoding/json"

// An Attempt is one execution of a run, reconstructed from the run's log. An execution that was
// suspended and resumed stays one attempt.
type Attempt struct {
	N         int     `json:"attempt"`
	Epoch     int64   `json:"epoch"`
	WorkerID  string  `json:"worker_id,omitempty"`
	GrantedAt Instant `json:"granted_at"`
	StartedAt Instant `json:"started_at,omitempty"`
	EndedAt   Instant `json:"ended_at,omitempty"`
	Resumed   int     `json:"resumed,omitempty"` // how often it was resumed after a suspend
	// Outcome is failed, held, lease_lost, not_started, released, suspended, or the state in which the
	// run ended. It is empty while the attempt is under way.
	Outcome string   `json:"outcome,omitempty"`
	Error   *Failure `json:"error,omitempty"`
}

// AttemptLines lists the types of lines that Attempts reads.
var AttemptLines = []LineType{
	LineDispatched, LineStarted, LineSuspended, LineReclaimed, LineHeld, LineRetrying,
	LineCompleted, LineFailed, LineTimedOut, LineCancelled,
}

// attemptSleeps is the outcome of a suspended attempt. The next grant continues it.
const attemptSleeps = "suspended"

var stateOfLine = map[LineType]State{
	LineCompleted: Completed, LineFailed: Failed, LineTimedOut: TimedOut, LineCancelled: Cancelled,
}

// Attempts reconstructs the attempts of a run from lines of its log.
func Attempts(log []Line) []Attempt {
	var out []Attempt
	last := func() *Attempt {
		if len(out) == 0 {
			return &Attempt{} // the log begins in the middle: discard the line
		}
		return &out[len(out)-1]
	}
	end := func(l *Line, how string, why *Failure) {
		a := last()
		if a.Outcome == "" {
			a.Outcome, a.EndedAt = how, l.At
		}
		if why != nil && a.Error == nil {
			a.Error = why
		}
	}
	for i := range log {
		l := &log[i]
		var said struct {
			WorkerID string   `json:"worker_id"`
			Reason   string   `json:"reason"`
			Error    *Failure `json:"error"`
			Failure           // of run:held
		}
		_ = json.Unmarshal([]byte(l.Data), &said) // missing fields stay empty
		switch l.Type {
		case LineDispatched:
			if a := last(); a.Outcome == attemptSleeps && a.N == l.Attempt {
				a.Resumed++
				a.Epoch, a.WorkerID, a.Outcome, a.EndedAt = l.Epoch, said.WorkerID, "", 0
				continue
			}
			end(l, "not_started", nil) // a second grant without a reclaim: the first holder never started
			out = append(out, Attempt{N: l.Attempt, Epoch: l.Epoch, WorkerID: said.WorkerID, GrantedAt: l.At})
		case LineStarted:
			if a := last(); a.StartedAt == 0 {
				a.StartedAt = l.At
			}
		case LineSuspended:
			end(l, attemptSleeps, nil)
		case LineReclaimed:
			end(l, said.Reason, nil)
		case LineHeld:
			end(l, "held", &said.Failure)
		case LineRetrying:
			end(l, string(Failed), said.Error)
		case LineCompleted, LineFailed, LineTimedOut, LineCancelled:
			if last().Outcome != "" { // the run ended while no worker held it
				continue
			}
			end(l, string(stateOfLine[l.Type]), said.Error)
			if said.Error != nil &&
				(said.Error.Code == CodeAttemptsExhausted || said.Error.Code == CodeOutcomeUnknown) {
				last().Outcome = "lease_lost"
			}
		}
	}
	return out
}

package perdure

import "encoding/json"

// An Attempt is what became of a run in one pair of hands, as its log tells it.
type Attempt struct {
	N         int      `json:"attempt"`
	Epoch     int64    `json:"epoch"`
	WorkerID  string   `json:"worker_id,omitempty"`
	GrantedAt Instant  `json:"granted_at"`
	StartedAt Instant  `json:"started_at,omitempty"`
	EndedAt   Instant  `json:"ended_at,omitempty"`
	Resumed   int      `json:"resumed,omitempty"` // how often it slept in between
	Outcome   string   `json:"outcome,omitempty"` // failed, lease_lost, not_started, released, suspended, or the state in which the run ended
	Error     *Failure `json:"error,omitempty"`
}

// AttemptLines are the lines that Attempts reads.
var AttemptLines = []string{LineDispatched, LineStarted, LineSuspended, LineReclaimed, LineRetrying, LineCompleted, LineFailed, LineTimedOut, LineCancelled}

// attemptSleeps is of an attempt that sleeps: what comes next goes on with it.
const attemptSleeps = "suspended"

// Attempts reads who had a run, and what came of it, from lines of its log.
func Attempts(log []Line) []Attempt {
	var out []Attempt
	last := func() *Attempt {
		if len(out) == 0 {
			return &Attempt{} // its beginning is not among the lines
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
		}
		_ = json.Unmarshal([]byte(l.Data), &said) // what is not there stays empty
		switch l.Type {
		case LineDispatched:
			if a := last(); a.Outcome == attemptSleeps && a.N == l.Attempt {
				a.Resumed++
				a.Epoch, a.WorkerID, a.Outcome, a.EndedAt = l.Epoch, said.WorkerID, "", 0
				continue
			}
			end(l, "not_started", nil) // it was granted again, and nobody said that it was taken away
			out = append(out, Attempt{N: l.Attempt, Epoch: l.Epoch, WorkerID: said.WorkerID, GrantedAt: l.At})
		case LineStarted:
			if a := last(); a.StartedAt == 0 {
				a.StartedAt = l.At
			}
		case LineSuspended:
			end(l, attemptSleeps, nil)
		case LineReclaimed:
			end(l, said.Reason, nil)
		case LineRetrying:
			end(l, string(Failed), said.Error)
		case LineCompleted, LineFailed, LineTimedOut, LineCancelled:
			if last().Outcome != "" { // it ended between two of them
				continue
			}
			how := map[string]State{LineCompleted: Completed, LineFailed: Failed, LineTimedOut: TimedOut, LineCancelled: Cancelled}[l.Type]
			end(l, string(how), said.Error)
			if said.Error != nil && said.Error.Code == CodeAttemptsExhausted {
				last().Outcome = "lease_lost"
			}
		}
	}
	return out
}

package api

import "github.com/perdure/perdure"

// DeadLetters is a page of dead letters, newest first.
type DeadLetters struct {
	DeadLetters []perdure.DeadLetter `json:"dead_letters"`
	NextCursor  string               `json:"next_cursor,omitempty"`
}

// DeadLetterCauses is the dead letters by what they died of, the most first.
type DeadLetterCauses struct {
	Causes []DeadLetterCause `json:"causes"`
	More   bool              `json:"more,omitempty"` // there are more causes than are listed
}

// A DeadLetterCause is the dead letters of a kind that have the same cause.
type DeadLetterCause struct {
	Cause    string          `json:"cause"`
	Kind     string          `json:"kind"`
	Count    int             `json:"count"`
	Redriven int             `json:"redriven"` // how many of them
	OldestAt perdure.Instant `json:"oldest_at"`
	NewestAt perdure.Instant `json:"newest_at"`
	Example  perdure.RunID   `json:"example_run_id"` // the newest of them
	Message  string          `json:"example_message,omitempty"`
}

// A DeadLetterStory is a dead letter and what led to it.
type DeadLetterStory struct {
	perdure.DeadLetter
	Run      *Run              `json:"run,omitempty"`      // with a large input as {"ref","size"}; not there when the run was deleted
	Parent   *JobStatus        `json:"parent,omitempty"`   // the run that spawned it
	Fallback *perdure.Value    `json:"fallback,omitempty"` // what was handed over instead of a result
	Attempts []perdure.Attempt `json:"attempts"`           // the last 50
	Events   []Event           `json:"events"`             // the last 20 of its log
}

// Redrive says how a dead letter is made a new run.
type Redrive struct {
	// Resign has the new run signed although the signature of the dead one is not valid: whoever says so has looked at it.
	Resign bool `json:"resign,omitempty"`
}

// ChooseLetters says which dead letters are meant: those named, or those of a cause, kind and queue, the oldest first.
type ChooseLetters struct {
	IDs   []perdure.RunID `json:"ids,omitempty"`
	Cause string          `json:"cause,omitempty"`
	Kind  string          `json:"kind,omitempty"`
	Queue string          `json:"queue,omitempty"`
	Limit *int            `json:"limit,omitempty"` // from 1 to 1000; default 100
}

// RedriveMany makes new runs of many dead letters. By cause, kind or queue it takes those that nobody has redriven.
type RedriveMany struct {
	ChooseLetters
	Redrive
}

// LettersDone says what became of each dead letter.
type LettersDone struct {
	Results []LetterDone `json:"results"`
	Done    int          `json:"done"` // how many of them
}

// A LetterDone says what became of one: it is done, or there is an error.
type LetterDone struct {
	RunID      perdure.RunID `json:"run_id"`
	OK         bool          `json:"ok,omitempty"`
	RedrivenBy perdure.RunID `json:"redriven_by_run_id,omitempty"`
	Error      *Refusal      `json:"error,omitempty"`
}

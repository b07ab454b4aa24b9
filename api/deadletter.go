package api

import "github.com/perdure/perdure"

// DeadLetters is a page of dead letters, newest first.
type DeadLetters struct {
	DeadLetters []perdure.DeadLetter `json:"dead_letters"`
	NextCursor  string               `json:"next_cursor,omitempty"`
}

// DeadLetterCauses counts dead letters by their cause, the most frequent first.
type DeadLetterCauses struct {
	Causes []DeadLetterCause `json:"causes"`
	More   bool              `json:"more,omitempty"` // the list is truncated
}

// A DeadLetterCause counts the dead letters of one kind and one cause.
type DeadLetterCause struct {
	Cause    string          `json:"cause"`
	Kind     string          `json:"kind"`
	Count    int             `json:"count"`
	Redriven int             `json:"redriven"` // how many of Count were redriven
	OldestAt perdure.Instant `json:"oldest_at"`
	NewestAt perdure.Instant `json:"newest_at"`
	Example  perdure.RunID   `json:"example_run_id"` // the newest
	Message  string          `json:"example_message,omitempty"`
}

// A DeadLetterStory is a dead letter with the history that led to it.
type DeadLetterStory struct {
	perdure.DeadLetter
	// Run has a large input as {"ref","size"}. It is missing if the run was deleted.
	Run      *Run              `json:"run,omitempty"`
	Parent   *JobStatus        `json:"parent,omitempty"`   // the run that spawned it
	Fallback *perdure.Value    `json:"fallback,omitempty"` // the deliverable of a run without a result
	Attempts []perdure.Attempt `json:"attempts"`           // the last 50
	Events   []Event           `json:"events"`             // the last 20
}

// Redrive is the body of a request that starts a new run from a dead letter.
type Redrive struct {
	// Resign signs the new run although the dead letter's signature is invalid. The caller has
	// checked that its content is right.
	Resign bool `json:"resign,omitempty"`
	Retry
}

// ChooseLetters selects dead letters: by their ids, or by cause, kind and queue, the oldest first.
type ChooseLetters struct {
	IDs   []perdure.RunID `json:"ids,omitempty"`
	Cause string          `json:"cause,omitempty"`
	Kind  string          `json:"kind,omitempty"`
	Queue string          `json:"queue,omitempty"`
	Limit *int            `json:"limit,omitempty"` // from 1 to 1000; default 100
}

// RedriveMany is the body of a request that starts new runs from many dead letters. A selection by
// cause, kind or queue skips those that were redriven before.
type RedriveMany struct {
	ChooseLetters
	Redrive
}

// LettersDone has the result for each dead letter of a request.
type LettersDone struct {
	Results []LetterDone `json:"results"`
	Done    int          `json:"done"` // number of successes
}

// A LetterDone is the result for one dead letter: OK, or an error.
type LetterDone struct {
	RunID      perdure.RunID `json:"run_id"`
	OK         bool          `json:"ok,omitempty"`
	RedrivenBy perdure.RunID `json:"redriven_by_run_id,omitempty"`
	Error      *Refusal      `json:"error,omitempty"`
}

package api

import "github.com/perdure/perdure"

// PutLimit is the body that makes a limit or changes it. It has a concurrency, a rate, or both.
type PutLimit struct {
	Concurrency *int               `json:"concurrency,omitempty"` // runs that are leased at once
	Rate        *perdure.LimitRate `json:"rate,omitempty"`        // grants in any window of time
	// PerKey counts each limit_key of runs by itself. It can't be changed.
	PerKey      bool   `json:"per_key,omitempty"`
	Description string `json:"description,omitempty"`
}

// PutLimitKey is the body that gives a key of a limit values of its own.
type PutLimitKey struct {
	Concurrency *int               `json:"concurrency,omitempty"`
	Rate        *perdure.LimitRate `json:"rate,omitempty"`
}

// CloseLimit is the body that closes a limit: nothing is granted under it until an instant, or for a time.
type CloseLimit struct {
	// Key is the key that is closed. Without one it is all of the limit.
	Key    string           `json:"key,omitempty"`
	Until  *perdure.Instant `json:"until,omitempty"`
	For    perdure.Duration `json:"for,omitempty"`
	Reason string           `json:"reason,omitempty"`
}

// OpenLimit is the body that opens a limit, or a key of it.
type OpenLimit struct {
	Key string `json:"key,omitempty"`
}

// A Limit is a limit as the API shows it.
type Limit struct {
	Name        string             `json:"name"`
	Description string             `json:"description,omitempty"`
	Concurrency int                `json:"concurrency,omitempty"`
	Rate        *perdure.LimitRate `json:"rate,omitempty"`
	PerKey      bool               `json:"per_key"`

	// Leased counts the runs that hold a slot, Offered those that a worker may claim now, and Waiting those
	// that wait, over all keys. AtLeast is set if there are more keys than were counted.
	Leased  int64 `json:"leased"`
	Offered int64 `json:"offered"`
	Waiting int64 `json:"waiting"`
	Keys    int64 `json:"keys"`
	AtLeast bool  `json:"at_least,omitempty"`

	ClosedUntil *perdure.Instant `json:"closed_until,omitempty"`
	CloseReason string           `json:"close_reason,omitempty"`
	CreatedAt   perdure.Instant  `json:"created_at"`
	ChangedAt   perdure.Instant  `json:"changed_at"`

	// Holders and Waiters are some of these runs, where a single limit is shown.
	Holders []LimitedRun `json:"holders,omitempty"`
	Waiters []LimitedRun `json:"waiters,omitempty"`
}

// A LimitedRun is a run that holds a slot of a limit, or waits there. Since is when it was granted, or
// when it began to wait.
type LimitedRun struct {
	RunID perdure.RunID `json:"run_id"`
	Kind  string        `json:"kind"`
	Key   string        `json:"key,omitempty"`
	// Step is the step because of which the run is there, if it is not under the limit itself.
	Step   string          `json:"step,omitempty"`
	Worker string          `json:"worker_id,omitempty"`
	Since  perdure.Instant `json:"since"`
}

// Limits is a page of limits, by name.
type Limits struct {
	Limits     []Limit `json:"limits"`
	NextCursor string  `json:"next_cursor,omitempty"` // begin of the next page; empty on the last
}

// A LimitKey is a key of a limit: its counts, and the values that it has instead of those of the limit.
type LimitKey struct {
	Key         string             `json:"key"`
	Concurrency int                `json:"concurrency,omitempty"`
	Rate        *perdure.LimitRate `json:"rate,omitempty"`
	Leased      int64              `json:"leased"`
	Offered     int64              `json:"offered"`
	Waiting     int64              `json:"waiting"`
	ClosedUntil *perdure.Instant   `json:"closed_until,omitempty"`
	CloseReason string             `json:"close_reason,omitempty"`
}

// LimitKeys is a page of keys.
type LimitKeys struct {
	Keys       []LimitKey `json:"keys"`
	NextCursor string     `json:"next_cursor,omitempty"`
}

package api

import "github.com/perdure/perdure"

// An Attention says what may need a person, in one look. Each part counts what a list has: the comments
// name its filter. A count is bounded, and AtLeast says that there is more.
type Attention struct {
	// Since is the beginning of the last hour, FailedSince of the lists of what failed.
	Since perdure.Instant `json:"since"`
	// Approvals are the open ones: GET /api/v1/approvals.
	Approvals AttentionCount `json:"approvals"`
	// Failed are the runs that failed or timed out since then: GET /api/v1/runs with the status failed and
	// timeout, and finished_after.
	Failed AttentionCount `json:"failed"`
	// Causes has these by their error_code, the most frequent first.
	Causes []FailureCause `json:"causes"`
	// Unserved are queued runs that no worker polls for: GET /api/v1/runs with the state queued, queue and
	// kind.
	Unserved []UnservedRuns `json:"unserved"`
	// Held are the runs on hold: GET /api/v1/runs with held.
	Held AttentionCount `json:"held"`
	// Ending are live runs that were created before EndingCreated and whose deadline is not after EndingAt:
	// GET /api/v1/runs with created_before and deadline_before.
	Ending        AttentionCount  `json:"ending"`
	EndingCreated perdure.Instant `json:"ending_created"`
	EndingAt      perdure.Instant `json:"ending_at"`
	// Silent are live processes without a sign of life since SilentBefore: GET /api/v1/runs with class and
	// seen_before.
	Silent       AttentionCount  `json:"silent"`
	SilentBefore perdure.Instant `json:"silent_before"`
}

// An AttentionCount is the number of entries of a list.
type AttentionCount struct {
	Count   int  `json:"count"`
	AtLeast bool `json:"at_least,omitempty"`
}

// A FailureCause counts runs that ended with the same code.
type FailureCause struct {
	Code  perdure.Code `json:"code"`
	Count int          `json:"count"`
	// Kinds has some of their kinds, and RunID the newest of them with its message.
	Kinds   []string      `json:"kinds"`
	RunID   perdure.RunID `json:"run_id"`
	Message string        `json:"message,omitempty"`
}

// UnservedRuns are queued runs of a kind that no worker polls for.
type UnservedRuns struct {
	Queue   string `json:"queue"`
	Kind    string `json:"kind"`
	Count   int    `json:"count"`
	AtLeast bool   `json:"at_least,omitempty"`
	// LastPolledAt is when a worker that polled for them was last seen.
	LastPolledAt *perdure.Instant `json:"last_polled_at,omitempty"`
}

// KindStats says how the newest runs of a kind went.
type KindStats struct {
	Kind string `json:"kind"`
	// Runs is how many runs were looked at, and Since when the oldest of them was created. AtLeast says
	// that there are older ones.
	Runs    int              `json:"runs"`
	Since   *perdure.Instant `json:"since,omitempty"`
	AtLeast bool             `json:"at_least,omitempty"`
	Status  map[string]int   `json:"status"`
	// LastHour is how many of them were created in the last hour.
	LastHour int `json:"last_hour"`
	// Half of those that completed took at most P50MS from their first start, 95 of 100 at most P95MS.
	P50MS int64 `json:"p50_ms"`
	P95MS int64 `json:"p95_ms"`
	// Causes has those that failed or timed out by their error_code.
	Causes []FailureCause `json:"causes"`
}

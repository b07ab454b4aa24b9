package api

import "github.com/perdure/perdure"

// StartMany is the body of a request for many new runs, at most 1,000. Each is accepted or refused
// by itself.
type StartMany struct {
	Runs []BatchRun `json:"runs"`
}

// A BatchRun is one run of a StartMany: the body of a StartRun without the fields for waiting. Runs
// of a batch start in the background.
type BatchRun struct {
	perdure.Submission
	// IdempotencyKey makes the run start once per key. It is the same key as that of a StartRun.
	// Without it, the run has the Idempotency-Key of the call, a slash and its index, if the call
	// has one.
	IdempotencyKey string `json:"idempotency_key,omitempty"`
}

// StartedMany has a result for each run of a StartMany, in order.
type StartedMany struct {
	Results []StartResult `json:"results"`
}

// A StartResult is the result for one run of a batch: the run, or an error.
type StartResult struct {
	Index int         `json:"index"`
	Run   *StartedRun `json:"run,omitempty"`
	// Duplicate says that the key was known: the run is that of an earlier call, or of an earlier
	// entry of this one.
	Duplicate bool     `json:"duplicate,omitempty"`
	Error     *Refusal `json:"error,omitempty"`
}

// A StartedRun is a short form of a run.
type StartedRun struct {
	RunID    perdure.RunID    `json:"run_id"`
	ThreadID perdure.ThreadID `json:"thread_id,omitempty"`
	Status   string           `json:"status"`
	State    perdure.State    `json:"state"`
	// Existing and Debounced are those of a Run.
	Existing  bool `json:"existing,omitempty"`
	Debounced int  `json:"debounced,omitempty"`
	// WebhookID and WebhookSecret are those of a Run.
	WebhookID     perdure.WebhookID `json:"webhook_id,omitempty"`
	WebhookSecret string            `json:"webhook_secret,omitempty"`
}

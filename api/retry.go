package api

import "github.com/perdure/perdure"

// Retry is the body of a request that starts a new run from an ended one.
type Retry struct {
	// From says what of the original's journal the new run begins with: "journal" for all of it,
	// "start" for nothing, or the key of an entry for those before it. The default is the journal
	// for an agent and the start for others. If the failure is itself in the journal, the default
	// is the key of that entry.
	From string `json:"from,omitempty"`
	// Local says that the caller has a runner for the new run, as perdure exec --again has. Otherwise
	// the retry of a run of perdure exec is refused: nobody else may take it.
	Local bool `json:"local,omitempty"`
}

// RetryMany is the body of a request that starts new runs from many ended ones, at most 1,000.
type RetryMany struct {
	RunIDs []perdure.RunID `json:"run_ids"`
	Retry
}

// RetriesDone has the result for each run of a request.
type RetriesDone struct {
	Results []RetryDone `json:"results"`
	Done    int         `json:"done"` // number of successes
}

// A RetryDone is the result for one run: OK, or an error.
type RetryDone struct {
	RunID     perdure.RunID `json:"run_id"`
	OK        bool          `json:"ok,omitempty"`
	RetriedBy perdure.RunID `json:"retried_by_run_id,omitempty"`
	Error     *Refusal      `json:"error,omitempty"`
}

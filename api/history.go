package api

import "github.com/perdure/perdure"

// A History has what happened to runs, in steps of equal length. Steps in which nothing happened are
// left out.
type History struct {
	Since perdure.Instant `json:"since"`
	// StepSeconds is the length of a step.
	StepSeconds int64          `json:"step_seconds"`
	Points      []HistoryPoint `json:"points"`
}

// A HistoryPoint counts what happened in a step.
type HistoryPoint struct {
	// At is the beginning of the step.
	At        perdure.Instant `json:"at"`
	Created   int64           `json:"created"`
	Completed int64           `json:"completed"`
	Failed    int64           `json:"failed"`
	Cancelled int64           `json:"cancelled"`
	TimedOut  int64           `json:"timed_out"`
	// Errors counts attempts that failed or were lost, whether or not they were retried.
	Errors int64 `json:"errors"`
	// Late counts runs that ended after their deadline, and LatenessMS is the longest delay.
	Late       int64 `json:"late"`
	LatenessMS int64 `json:"lateness_ms"`
	// Dispatched counts runs that got a worker. Half of them waited at most DispatchP50MS for it, and
	// 99 of 100 at most DispatchP99MS. Both are rounded up to a class; a minute means a minute or
	// more.
	Dispatched    int64 `json:"dispatched"`
	DispatchP50MS int64 `json:"dispatch_p50_ms"`
	DispatchP99MS int64 `json:"dispatch_p99_ms"`
}

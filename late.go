package perdure

import "slices"

// A LateResult is a result that came too late: from a worker that was fenced out, or for a run that
// had ended. It is kept beside the run until it is adopted or discarded.
type LateResult struct {
	Tenant   TenantID `json:"-"`
	RunID    RunID    `json:"-"`
	N        int      `json:"n"`
	CommitID string   `json:"commit_id"`
	Epoch    int64    `json:"epoch"`
	Attempt  int      `json:"attempt,omitempty"` // the attempt of that epoch; zero if it is no longer known
	Worker   string   `json:"worker_id,omitempty"`
	FromRun  RunID    `json:"from_run_id,omitempty"` // the retry that produced the result, if it was one
	Result   Value    `json:"result"`
	Summary  string   `json:"result_summary,omitempty"`
	State    string   `json:"state"`
	At       Instant  `json:"at"`
}

// The states of a late result.
const (
	LateKept      = "kept"
	LateAdopted   = "adopted"
	LateDiscarded = "discarded"
)

// LateStates are all of them.
var LateStates = []string{LateKept, LateAdopted, LateDiscarded}

// A DeadLetter is the record of a run that ended and needs a person's decision. It can be
// inspected, redriven as a new run, or discarded.
type DeadLetter struct {
	Tenant     TenantID `json:"-"`
	RunID      RunID    `json:"run_id"`
	Kind       string   `json:"kind"`
	Queue      string   `json:"queue"`
	Cause      string   `json:"cause"`
	Message    string   `json:"message,omitempty"`
	At         Instant  `json:"at"`
	ExpiresAt  Instant  `json:"expires_at"`
	RedrivenBy RunID    `json:"redriven_by_run_id,omitempty"`
}

// A Worker is a process that leases runs. Its id is informational: only the pair of run and epoch
// gives the right to write.
type Worker struct {
	Tenant  TenantID `json:"-"`
	ID      string   `json:"worker_id"`
	Queues  Value    `json:"queues"`
	Slots   int      `json:"slots"`
	SeenAt  Instant  `json:"seen_at"`
	Offline bool     `json:"offline"`
	// Polls are its polls of the last hour that differ, at most MaxWorkerPolls.
	Polls []WorkerPoll `json:"polls,omitempty"`
	// Release is that of its library. Empty: the library does not say it.
	Release string `json:"release,omitempty"`
}

// A WorkerPoll has the queues and kinds that a worker polls for. A worker can have several: one for tasks, one for
// agents.
type WorkerPoll struct {
	Queues     []string `json:"queues"`
	Kinds      []string `json:"kinds,omitempty"` // empty: all kinds
	AllTenants bool     `json:"all_tenants,omitempty"`
	// Node is the name of the server that the worker is inside of. Empty: it is a process of its
	// own.
	Node string  `json:"node,omitempty"`
	At   Instant `json:"at"`
}

// MaxWorkerPolls limits the polls that are stored of a worker.
const MaxWorkerPolls = 4

// Serves tells whether the poll finds runs of a kind on a queue. An empty queue means any.
func (p *WorkerPoll) Serves(kind, queue string) bool {
	return (len(p.Kinds) == 0 || slices.Contains(p.Kinds, kind)) &&
		(queue == "" || slices.Contains(p.Queues, queue))
}

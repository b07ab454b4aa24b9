package perdure

// A LateResult is finished work that came too late: from a fenced attempt, or for a run that had ended.
// It is kept beside the run until somebody adopts or discards it.
type LateResult struct {
	Tenant   TenantID `json:"-"`
	RunID    RunID    `json:"-"`
	N        int      `json:"n"`
	CommitID string   `json:"commit_id"`
	Epoch    int64    `json:"epoch"`
	Attempt  int      `json:"attempt,omitempty"` // which one the epoch was granted for; zero: it is not known any more
	Worker   string   `json:"worker_id,omitempty"`
	FromRun  RunID    `json:"from_run_id,omitempty"` // a retry whose result this is
	Result   Value    `json:"result"`
	Summary  string   `json:"result_summary,omitempty"`
	State    string   `json:"state"`
	At       Instant  `json:"at"`
}

// What became of a late result.
const (
	LateKept      = "kept"
	LateAdopted   = "adopted"
	LateDiscarded = "discarded"
)

// LateStates are all of them.
var LateStates = []string{LateKept, LateAdopted, LateDiscarded}

// A DeadLetter is a run that can't go on without a person: kept, inspectable, re-drivable.
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

// A Worker is a process that leases runs. Its id is informational: (run, epoch) is the right to write.
type Worker struct {
	Tenant  TenantID `json:"-"`
	ID      string   `json:"worker_id"`
	Queues  Value    `json:"queues"`
	Slots   int      `json:"slots"`
	SeenAt  Instant  `json:"seen_at"`
	Offline bool     `json:"offline"`
}

package api

import "github.com/perdure/perdure"

// The answers about the recovery of processes have the names that the programs before Perdure gave
// them, so that their tools go on working.

// JobHeartbeats is a page of live processes, in the order of their ids.
type JobHeartbeats struct {
	Jobs    []JobHeartbeat `json:"jobs"`
	Summary JobSummary     `json:"summary"`
	// NextCursor is the cursor of the next page. It is empty on the last.
	NextCursor string `json:"next_cursor,omitempty"`
}

// A JobHeartbeat is a live process with its last sign of life, on the server's clock.
type JobHeartbeat struct {
	JobID         perdure.RunID `json:"jobId"`
	LastHeartbeat string        `json:"lastHeartbeat"`
	AgeSeconds    int64         `json:"ageSeconds"`
	Status        string        `json:"status"` // fresh, stale or dead
	AgentEngine   string        `json:"agentEngine"`
	Command       string        `json:"command,omitempty"` // its beginning
}

// JobSummary counts all live processes by tier, at most 100 000 of them.
type JobSummary struct {
	Total int `json:"total"`
	Fresh int `json:"fresh"`
	Stale int `json:"stale"`
	Dead  int `json:"dead"`
}

// StaleJobs is a page of the live processes that are not fresh.
type StaleJobs struct {
	StaleJobs  []StaleJob `json:"staleJobs"`
	NextCursor string     `json:"next_cursor,omitempty"`
}

// A StaleJob is a live process without a recent sign of life.
type StaleJob struct {
	JobID         perdure.RunID `json:"jobId"`
	LastHeartbeat string        `json:"lastHeartbeat"`
	AgeMinutes    float64       `json:"ageMinutes"`
	WorkspacePath string        `json:"workspacePath"` // empty if the workspace is another node's
	// RecommendedAction is investigate for a stale process, and wait for a dead one, which the server
	// ends.
	RecommendedAction string `json:"recommendedAction"`
}

// JobHealth is the health of a process. HeartbeatStatus is fresh, stale or dead, or the state of a run
// that nobody holds.
type JobHealth struct {
	JobID              perdure.RunID `json:"jobId"`
	HeartbeatStatus    string        `json:"heartbeatStatus"`
	LastHeartbeat      string        `json:"lastHeartbeat,omitempty"`
	AgeSeconds         int64         `json:"ageSeconds"`
	SentinelFileExists bool          `json:"sentinelFileExists"`
	WorkspaceExists    bool          `json:"workspaceExists"`
	SessionDataExists  bool          `json:"sessionDataExists"`
}

// RecoveryStatus is what recovery did since the node's start.
type RecoveryStatus struct {
	Recovery Recovery `json:"recovery"`
}

// Recovery counts what recovery did. State is none for a node without a workspace, pending, running,
// watching or finished.
type Recovery struct {
	State      string `json:"state"`
	StartedAt  string `json:"startedAt,omitempty"`
	FinishedAt string `json:"finishedAt,omitempty"`
	Watched    int    `json:"watched"`
	Reattached int    `json:"reattached"`
	Adopted    int    `json:"adopted"`
	Dead       int    `json:"dead"`
	SetAside   int    `json:"setAside"`
}

// Sentinels is a page of the sentinels of this node's workspace, and the files that were set aside.
type Sentinels struct {
	Sentinels  []Sentinel  `json:"sentinels"`
	SetAside   []AsideFile `json:"setAside"`
	NextCursor string      `json:"next_cursor,omitempty"`
}

// A Sentinel is the heartbeat file of a process, and what the server made of it.
type Sentinel struct {
	JobID         perdure.RunID    `json:"jobId"`
	Status        string           `json:"status"`
	LastHeartbeat string           `json:"lastHeartbeat"` // on the runner's clock
	WorkspacePath string           `json:"workspacePath"`
	SessionID     string           `json:"sessionId"`
	AgentEngine   string           `json:"agentEngine"`
	StartedAt     string           `json:"startedAt"`
	Counter       int64            `json:"counter"`
	Epoch         int64            `json:"epoch"`
	Tenant        perdure.TenantID `json:"tenant"`
	Tier          string           `json:"tier"`
	LockHeld      bool             `json:"lockHeld"` // also if somebody has replaced the lock
	ObservedAt    string           `json:"observedAt"`
}

// An AsideFile is a file that could not be used.
type AsideFile struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
	// MovedTo is empty if the file could not be moved.
	MovedTo string `json:"movedTo,omitempty"`
}

// RecoveryMetrics counts live processes by tier, and what this node did since its start.
type RecoveryMetrics struct {
	Fresh         int     `json:"fresh"`
	Stale         int     `json:"stale"`
	Dead          int     `json:"dead"`
	Reattached    int     `json:"reattached"`
	Adopted       int     `json:"adopted"`
	WriteFailures int64   `json:"writeFailures"` // of the live processes' sentinels
	ScanMs        float64 `json:"scanMs"`        // of the last scan
}

// FailedJobs is a page of the processes that were lost, newest first.
type FailedJobs struct {
	FailedJobs []FailedJob `json:"failedJobs"`
	NextCursor string      `json:"next_cursor,omitempty"`
}

// A FailedJob is a process that was lost.
type FailedJob struct {
	JobID         perdure.RunID `json:"jobId"`
	FailedAt      string        `json:"failedAt"`
	Reason        string        `json:"reason"`
	WorkspacePath string        `json:"workspacePath"`
	Command       string        `json:"command,omitempty"` // its beginning
}

// ResumeJobs names processes to resume.
type ResumeJobs struct {
	JobIDs []perdure.RunID `json:"jobIds"`
}

// ResumedJobs says what became of each process.
type ResumedJobs struct {
	Results []ResumedJob `json:"results"`
}

// Actions of a resume.
const (
	ResumeWatched  = "watched"
	ResumeRedriven = "redriven"
	ResumeRefused  = "refused"
)

// A ResumedJob is one process of a resume. RunID is the new run of one that was redriven, and Reason
// says why one was refused.
type ResumedJob struct {
	JobID  perdure.RunID `json:"jobId"`
	Action string        `json:"action"`
	RunID  perdure.RunID `json:"run_id,omitempty"`
	// Code and Reason say why it was refused.
	Code   perdure.Code `json:"code,omitempty"`
	Reason string       `json:"reason,omitempty"`
}

// StartupLog is a page of what recovery did at the node's start, oldest first.
type StartupLog struct {
	Lines []StartupLine `json:"lines"`
	// Next is the after of the next page, or zero on the last.
	Next int `json:"next,omitempty"`
	// Dropped counts lines that were not kept.
	Dropped int `json:"dropped,omitempty"`
}

// A StartupLine is one line of it.
type StartupLine struct {
	At      string        `json:"at"`
	JobID   perdure.RunID `json:"jobId,omitempty"`
	Message string        `json:"message"`
}

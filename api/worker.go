package api

import (
	"encoding/json"

	"github.com/perdure/perdure"
)

// This file has the bodies of the worker protocol. All calls are batches, and every write carries
// run_id and epoch.

// Poll is a request to lease runs. If there are none, it waits up to Wait.
type Poll struct {
	Queues []string         `json:"queues,omitempty"`
	Kinds  []string         `json:"kinds,omitempty"`
	Slots  int              `json:"slots"`
	Wait   perdure.Duration `json:"wait,omitempty"`
	Start  bool             `json:"start,omitempty"` // start the runs in the same write
	// Confirms is a promise: a run whose grant has max_attempts 1 is begun only after an answered start or
	// heartbeat. A grant that gets lost is then repeated. Without the promise such a grant spends the only
	// attempt, and the run ends with outcome_unknown if its worker is not heard from before the lease ends.
	Confirms bool `json:"confirms,omitempty"`
	// AllTenants leases runs of all tenants. It needs a platform key.
	AllTenants bool `json:"all_tenants,omitempty"`
	// ExceptTenants are left out by a poll with AllTenants: the worker has enough runs of them.
	ExceptTenants []perdure.TenantID `json:"except_tenants,omitempty"`
	// News leases nothing, and has no slots. The poll waits until one of the worker's runs gets a
	// cancel request.
	News bool `json:"news,omitempty"`
	// Build identifies the worker's program. A run that was held under other builds is granted to a
	// new one at once.
	Build string `json:"build,omitempty"`
	// Release is that of the worker's library, for people who look whom an upgrade has reached.
	Release string `json:"release,omitempty" older:"omit"`
	// RunIDs names runs to lease, instead of queues and kinds: those that the caller has submitted for
	// itself. A run that is not claimable is left out, and the poll does not wait.
	RunIDs []perdure.RunID `json:"run_ids,omitempty"`
	// Holding is for a poll with News: the worker's runs without a known cancel request. The poll
	// returns at once if one of them already has one.
	Holding []Lease `json:"holding,omitempty"`
}

// Polled is the answer to a poll.
type Polled struct {
	Runs []Grant `json:"runs"`
	News bool    `json:"news,omitempty"` // there is a cancel request; the next heartbeat's answer has it
}

// A Grant is a leased run.
type Grant struct {
	RunID       perdure.RunID    `json:"run_id"`
	Tenant      perdure.TenantID `json:"tenant,omitempty"` // with AllTenants, with a signature, and of a process
	Epoch       int64            `json:"epoch"`
	Attempt     int              `json:"attempt"`
	MaxAttempts int              `json:"max_attempts"`
	Kind        string           `json:"kind"`
	Class       perdure.Class    `json:"class"`
	Queue       string           `json:"queue"`
	ThreadID    perdure.ThreadID `json:"thread_id,omitempty"`
	ParentRunID perdure.RunID    `json:"parent_run_id,omitempty"`
	RootRunID   perdure.RunID    `json:"root_run_id,omitempty"`
	State       perdure.State    `json:"state"`
	Input       json.RawMessage  `json:"input,omitempty"`
	LeaseMS     int64            `json:"lease_ms"` // from the time when the poll was sent
	DeadlineAt  perdure.Instant  `json:"deadline_at"`
	// OriginRunID is the first run of a chain of retries, or this run. Keys for the outside world are
	// derived from it.
	OriginRunID perdure.RunID `json:"origin_run_id,omitempty"`
	// FirstEpoch is set for a retry that has a journal from the start. Entries that were written
	// under lower epochs are those of the original.
	FirstEpoch int64 `json:"first_epoch,omitempty"`
	// Journal and Inbox have at most 1 MiB each, and Inbox at most 256 items. If the field with the
	// suffix Next is set, the worker fetches the rest.
	Journal     []JournalEntry `json:"journal"`
	JournalNext int64          `json:"journal_next,omitempty"`
	Inbox       []perdure.Item `json:"inbox"`
	InboxNext   int64          `json:"inbox_next,omitempty"`
	Cancel      bool           `json:"cancel,omitempty"` // cancel request: clean up and commit the outcome cancelled
	CancelWhy   string         `json:"cancel_reason,omitempty"`
	// Signature covers tenant, run, kind, queue, input and deadline. It is empty if the server does
	// not sign.
	Signature *perdure.Signature `json:"signature,omitempty"`
	// ResultToken signs the files that a process leaves for the server. Only a run of the class
	// process has one. Its holder keeps it in memory.
	ResultToken string `json:"result_token,omitempty"`
}

// A JournalEntry is the recorded result of a step.
type JournalEntry struct {
	Seq   int64           `json:"seq"`
	Key   string          `json:"key"`
	Value json.RawMessage `json:"value"`
}

// JournalPage is a further part of a journal.
type JournalPage struct {
	Journal []JournalEntry `json:"journal"`
	Next    int64          `json:"journal_next,omitempty"`
}

// InboxPage is a further part of an inbox.
type InboxPage struct {
	Inbox []perdure.Item `json:"inbox"`
	Next  int64          `json:"inbox_next,omitempty"`
}

// A Lease identifies a worker's hold on a run.
type Lease struct {
	RunID perdure.RunID `json:"run_id"`
	Epoch int64         `json:"epoch"`
}

// StartRuns reports that a worker has started runs.
type StartRuns struct {
	Runs []Lease `json:"runs"`
}

// ReleaseRuns hands runs back unfinished.
type ReleaseRuns struct {
	Runs []ReleasedLease `json:"runs"`
}

// A ReleasedLease is a lease that is handed back.
type ReleasedLease struct {
	Lease
	// NotBefore says that the worker could do nothing, and that nobody should try before. It is at most 24
	// hours ahead.
	NotBefore perdure.Instant `json:"not_before,omitempty" older:"omit"`
}

// LeaseResults has one result per lease, in the order of the request.
type LeaseResults struct {
	Results []LeaseResult `json:"results"`
}

// A LeaseResult is the result for one lease.
type LeaseResult struct {
	RunID  perdure.RunID `json:"run_id"`
	Epoch  int64         `json:"epoch"` // as in the request
	OK     bool          `json:"ok,omitempty"`
	Cancel bool          `json:"cancel,omitempty"`
	Error  *Refusal      `json:"error,omitempty"`
	// NewEpoch and ResultToken are those under which a process goes on that has outlived its store: the
	// store was restored from a backup (code restored).
	NewEpoch    int64  `json:"new_epoch,omitempty"`
	ResultToken string `json:"result_token,omitempty"`
}

// A Refusal is the error of one entry of a batch.
type Refusal struct {
	Code   perdure.Code `json:"code"`
	Detail string       `json:"detail,omitempty"`
	Field  string       `json:"field,omitempty"`
}

// Beats is a heartbeat for a worker's runs.
type Beats struct {
	Runs []Beat `json:"runs"`
}

// A Beat is the part of a heartbeat about one run.
type Beat struct {
	RunID     perdure.RunID   `json:"run_id"`
	Epoch     int64           `json:"epoch"`
	Activity  string          `json:"activity,omitempty"`
	Progress  json.RawMessage `json:"progress,omitempty"`
	CancelAck bool            `json:"cancel_ack,omitempty"`
}

// Beaten is the answer to a heartbeat: the leases that are lost, and the runs with a cancel
// request. A malformed heartbeat is refused as a whole.
type Beaten struct {
	Lost   []LeaseResult `json:"lost"`
	Cancel []LeaseResult `json:"cancel"`
	// Later has the runs whose rows another session of the database has locked. Their leases are neither
	// lost nor extended; the next heartbeat tries again.
	Later []LeaseResult `json:"later,omitempty"`
}

// Commits is a batch of commits.
type Commits struct {
	Commits []perdure.Commit `json:"commits"`
}

// CommitResults has one result per commit, in the order of the request.
type CommitResults struct {
	Results []CommitResult `json:"results"`
}

// A CommitResult is the result of one commit.
type CommitResult struct {
	RunID     perdure.RunID `json:"run_id"`
	OK        bool          `json:"ok,omitempty"`
	State     perdure.State `json:"state,omitempty"`
	Cancel    bool          `json:"cancel,omitempty"`
	Children  []Child       `json:"children,omitempty"`
	Callbacks []Callback    `json:"callbacks,omitempty"`
	Error     *Refusal      `json:"error,omitempty"`
}

// A Child is the run that a spawn created.
type Child struct {
	Key   string        `json:"key"`
	RunID perdure.RunID `json:"run_id"`
}

// A Callback is the token of a callback wait.
type Callback struct {
	WaitID string `json:"wait_id"`
	Token  string `json:"token"`
}

// TakeLimits takes slots, or units of rates, for steps of leased runs before their functions are called.
type TakeLimits struct {
	Steps []StepLimits `json:"steps"`
}

// StepLimits are the limits of one step. The commit that has its journal entry gives its slots back.
type StepLimits struct {
	Lease
	// Step is the step's key in the journal. A step that has its slots takes nothing a second time.
	Step string `json:"step"`
	// Limits are all taken, or none. There are up to four.
	Limits []perdure.LimitTake `json:"limits,omitempty"`
	// Try is the number of the call of the step's function, from 0. A further try takes only of rates.
	Try int `json:"try,omitempty"`
	// GiveBack gives the slots of the step back.
	GiveBack bool `json:"give_back,omitempty"`
}

// LimitsTaken has one result per step, in the order of the request.
type LimitsTaken struct {
	Results []StepTaken `json:"results"`
}

// A StepTaken tells whether a step may begin.
type StepTaken struct {
	LeaseResult
	// Taken says that the step has what it needs.
	Taken bool `json:"taken"`
	// BlockedBy is the limit without room, and RetryMS the time after which it may have some, if it is known.
	BlockedBy *perdure.WaitingAtLimit `json:"blocked_by,omitempty"`
	RetryMS   int64                   `json:"retry_ms,omitempty"`
}

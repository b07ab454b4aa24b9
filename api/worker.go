package api

import (
	"encoding/json"

	"github.com/perdure/perdure"
)

// The worker protocol. All calls batch; every write carries run_id and epoch.

// Poll leases runs: it waits up to Wait for some.
type Poll struct {
	Queues []string         `json:"queues,omitempty"`
	Kinds  []string         `json:"kinds,omitempty"`
	Slots  int              `json:"slots"`
	Wait   perdure.Duration `json:"wait,omitempty"`
	Start  bool             `json:"start,omitempty"` // the worker begins at once
	// AllTenants leases for all tenants; it takes a key of the platform.
	AllTenants bool `json:"all_tenants,omitempty"`
	// News leases nothing, and has no slots: it waits until a run that the worker has is asked to stop.
	News bool `json:"news,omitempty"`
	// Holding is for a poll for news: what the worker has and knows of no wish to stop. One of these that was asked to
	// stop before the poll came is news.
	Holding []Lease `json:"holding,omitempty"`
}

// Polled is the answer to a poll.
type Polled struct {
	Runs []Grant `json:"runs"`
	News bool    `json:"news,omitempty"` // there is some: the answer to a heartbeat says what
}

// A Grant is a leased run.
type Grant struct {
	RunID       perdure.RunID    `json:"run_id"`
	Tenant      perdure.TenantID `json:"tenant,omitempty"` // for workers that lease for many, and with a signature
	Epoch       int64            `json:"epoch"`
	Attempt     int              `json:"attempt"`
	Kind        string           `json:"kind"`
	Class       perdure.Class    `json:"class"`
	Queue       string           `json:"queue"`
	ThreadID    perdure.ThreadID `json:"thread_id,omitempty"`
	ParentRunID perdure.RunID    `json:"parent_run_id,omitempty"`
	RootRunID   perdure.RunID    `json:"root_run_id,omitempty"`
	State       perdure.State    `json:"state"`
	Input       json.RawMessage  `json:"input,omitempty"`
	LeaseMS     int64            `json:"lease_ms"` // counted from when the request was sent
	DeadlineAt  perdure.Instant  `json:"deadline_at"`
	// Journal and Inbox hold at most 1 MiB, and Inbox 256 items; where a next is set, the rest is fetched.
	Journal     []JournalEntry `json:"journal"`
	JournalNext int64          `json:"journal_next,omitempty"`
	Inbox       []perdure.Item `json:"inbox"`
	InboxNext   int64          `json:"inbox_next,omitempty"`
	Cancel      bool           `json:"cancel,omitempty"` // asked to stop: clean up and say cancelled
	CancelWhy   string         `json:"cancel_reason,omitempty"`
	// Signature is over tenant, run, kind, queue, input and deadline, where the server signs.
	Signature *perdure.Signature `json:"signature,omitempty"`
}

// A JournalEntry is a recorded step.
type JournalEntry struct {
	Seq   int64           `json:"seq"`
	Key   string          `json:"key"`
	Value json.RawMessage `json:"value"`
}

// JournalPage is more of a journal.
type JournalPage struct {
	Journal []JournalEntry `json:"journal"`
	Next    int64          `json:"journal_next,omitempty"`
}

// InboxPage is more of an inbox.
type InboxPage struct {
	Inbox []perdure.Item `json:"inbox"`
	Next  int64          `json:"inbox_next,omitempty"`
}

// A Lease is what a worker presents.
type Lease struct {
	RunID perdure.RunID `json:"run_id"`
	Epoch int64         `json:"epoch"`
}

// StartRuns and ReleaseRuns name leases.
type StartRuns struct {
	Runs []Lease `json:"runs"`
}

// ReleaseRuns hands runs back.
type ReleaseRuns struct {
	Runs []Lease `json:"runs"`
}

// LeaseResults answers for each lease, in order.
type LeaseResults struct {
	Results []LeaseResult `json:"results"`
}

// A LeaseResult answers for one lease.
type LeaseResult struct {
	RunID  perdure.RunID `json:"run_id"`
	Epoch  int64         `json:"epoch"` // as it was presented
	OK     bool          `json:"ok,omitempty"`
	Cancel bool          `json:"cancel,omitempty"`
	Error  *Refusal      `json:"error,omitempty"`
}

// A Refusal is an error inside of a batch.
type Refusal struct {
	Code   perdure.Code `json:"code"`
	Detail string       `json:"detail,omitempty"`
	Field  string       `json:"field,omitempty"`
}

// Beats is a heartbeat.
type Beats struct {
	Runs []Beat `json:"runs"`
}

// A Beat is what a heartbeat says of one run.
type Beat struct {
	RunID     perdure.RunID   `json:"run_id"`
	Epoch     int64           `json:"epoch"`
	Activity  string          `json:"activity,omitempty"`
	Progress  json.RawMessage `json:"progress,omitempty"`
	CancelAck bool            `json:"cancel_ack,omitempty"`
}

// Beaten is the answer to a heartbeat: what is lost, and what is to stop. One that is malformed is refused as a
// whole.
type Beaten struct {
	Lost   []LeaseResult `json:"lost"`
	Cancel []LeaseResult `json:"cancel"`
}

// Commits is a batch of commits.
type Commits struct {
	Commits []perdure.Commit `json:"commits"`
}

// CommitResults answers for each commit, in order.
type CommitResults struct {
	Results []CommitResult `json:"results"`
}

// A CommitResult answers for one commit.
type CommitResult struct {
	RunID     perdure.RunID `json:"run_id"`
	OK        bool          `json:"ok,omitempty"`
	State     perdure.State `json:"state,omitempty"`
	Cancel    bool          `json:"cancel,omitempty"`
	Children  []Child       `json:"children,omitempty"`
	Callbacks []Callback    `json:"callbacks,omitempty"`
	Error     *Refusal      `json:"error,omitempty"`
}

// A Child says which run a spawn made.
type Child struct {
	Key   string        `json:"key"`
	RunID perdure.RunID `json:"run_id"`
}

// A Callback gives the token of a callback wait.
type Callback struct {
	WaitID string `json:"wait_id"`
	Token  string `json:"token"`
}

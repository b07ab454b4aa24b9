// Package api is the wire contract of Perdure: the bodies of its HTTP API, the problems it answers with, and
// how their codes and HTTP statuses belong together. Server and SDK share it; it imports the domain and
// nothing else.
//
// Durations are written "30s", instants as RFC 3339. Ids are opaque strings.
package api

import (
	"encoding/json"

	"github.com/perdure/perdure"
)

// Prefix is where the API is mounted.
const Prefix = "/api/v1"

// StartRun asks for a run. With Wait the answer comes when the run has ended, or when that time has passed:
// then it is 202 and "deferred", which is no error, and the run goes on.
type StartRun struct {
	perdure.Submission
	Wait perdure.Duration `json:"wait,omitempty"`
	// Foreground says that somebody is about to follow the run: its streams and joins count as waiting, and it is deferred
	// when nobody does. A start with Wait is one anyway.
	Foreground bool `json:"foreground,omitempty"`
}

// A Run is a run as callers see it.
type Run struct {
	RunID       perdure.RunID     `json:"run_id"`
	ThreadID    perdure.ThreadID  `json:"thread_id,omitempty"`
	Kind        string            `json:"kind"`
	Class       perdure.Class     `json:"class"`
	Queue       string            `json:"queue"`
	Priority    int               `json:"priority"`
	Status      string            `json:"status"` // the state, or "deferred" while it is live and nobody waits for it
	State       perdure.State     `json:"state"`
	Epoch       int64             `json:"epoch"`
	Attempt     int               `json:"attempt"`
	MaxAttempts int               `json:"max_attempts"`
	Input       json.RawMessage   `json:"input,omitempty"`
	Result      json.RawMessage   `json:"result,omitempty"`
	Summary     string            `json:"result_summary,omitempty"`
	Error       *perdure.Failure  `json:"error,omitempty"`
	Activity    string            `json:"activity,omitempty"`
	Tier        string            `json:"tier,omitempty"` // how alive it looks: fresh, stale or dead
	Progress    json.RawMessage   `json:"progress,omitempty"`
	WorkerID    string            `json:"worker_id,omitempty"`
	Cancel      *perdure.Cancel   `json:"cancel,omitempty"`
	Metadata    map[string]string `json:"metadata"`

	ParentRunID         perdure.RunID `json:"parent_run_id,omitempty"`
	RootRunID           perdure.RunID `json:"root_run_id,omitempty"`
	ContinuationOfRunID perdure.RunID `json:"continuation_of_run_id,omitempty"`
	ContinuedByRunID    perdure.RunID `json:"continued_by_run_id,omitempty"`
	RetryOfRunID        perdure.RunID `json:"retry_of_run_id,omitempty"`

	CreatedAt  perdure.Instant  `json:"created_at"`
	DeadlineAt perdure.Instant  `json:"deadline_at"`
	StartedAt  *perdure.Instant `json:"started_at,omitempty"`
	FinishedAt *perdure.Instant `json:"finished_at,omitempty"`
	DeferredAt *perdure.Instant `json:"deferred_at,omitempty"`
	SeenAt     *perdure.Instant `json:"seen_at,omitempty"` // the last sign of life
	ElapsedMS  int64            `json:"elapsed_ms"`
	DurationMS *int64           `json:"duration_ms,omitempty"`

	LastSeq       int64  `json:"last_seq"` // the last event of its log
	LateResults   int    `json:"late_results,omitempty"`
	DeliverableID string `json:"deliverable_id,omitempty"`
	AttachURL     string `json:"attach_url"`
	StatusURL     string `json:"status_url"`
	Message       string `json:"message,omitempty"` // with 202: what to make of it
	Damaged       string `json:"damaged,omitempty"` // what of it can't be read, if something happened to the database

	WebhookID     perdure.WebhookID `json:"webhook_id,omitempty"`     // where it is told of, if it was started with a webhook
	WebhookSecret string            `json:"webhook_secret,omitempty"` // shown once: to who starts the first run with that webhook
}

// Runs is a page of a list.
type Runs struct {
	Runs       []Run  `json:"runs"`
	NextCursor string `json:"next_cursor,omitempty"`
}

// An Event is one line of a run's log.
type Event struct {
	Seq     int64           `json:"seq"`
	Type    string          `json:"type"`
	At      perdure.Instant `json:"at"`
	Attempt int             `json:"attempt"`
	Data    json.RawMessage `json:"data"`
}

// Events is a part of a log. Ask again with after=NextAfter.
type Events struct {
	Events    []Event `json:"events"`
	NextAfter int64   `json:"next_after"`
	Ended     bool    `json:"ended"`         // the run has ended and these are the last
	Gap       *Gap    `json:"gap,omitempty"` // lines after the cursor that are no longer kept
}

// A Deliverable is what an ended run hands over.
type Deliverable struct {
	DeliverableID string           `json:"deliverable_id"`
	RunID         perdure.RunID    `json:"run_id"`
	Kind          string           `json:"kind"` // "result" or "fallback"
	Content       json.RawMessage  `json:"content"`
	Error         *perdure.Failure `json:"error,omitempty"`
	// Artifacts are what the run left beside it.
	Artifacts []perdure.Artifact `json:"artifacts,omitempty"`
}

// Artifacts are what a run has left beside its result, by name.
type Artifacts struct {
	Artifacts []perdure.Artifact `json:"artifacts"`
}

// CancelRun asks a run to stop.
type CancelRun struct {
	Reason string `json:"reason,omitempty"`
}

// SendSignal is the body of a signal. One that decides an approval of its name has the decision instead of data, or inside.
type SendSignal struct {
	Data json.RawMessage `json:"data,omitempty"`

	Decision   string          `json:"decision,omitempty"`
	Comment    string          `json:"comment,omitempty"`
	Answer     json.RawMessage `json:"answer,omitempty"`
	ActionHash string          `json:"action_hash,omitempty"`
}

// SignalSent is the answer to a signal.
type SignalSent struct {
	RunID      perdure.RunID      `json:"run_id"`
	Status     string             `json:"status"`
	ApprovalID perdure.ApprovalID `json:"approval_id,omitempty"` // what it decided, if it did
}

// UseCallback is the body of a callback.
type UseCallback struct {
	Result json.RawMessage  `json:"result,omitempty"`
	Error  *perdure.Failure `json:"error,omitempty"`
}

// CallbackUsed is the answer to a callback.
type CallbackUsed struct {
	RunID perdure.RunID `json:"run_id"`
}

// LateResults lists a run's late results.
type LateResults struct {
	LateResults []LateResult `json:"late_results"`
	NextCursor  string       `json:"next_cursor,omitempty"` // where the next page begins; empty: this was the last
}

// A LateResult is finished work that came too late.
type LateResult struct {
	N         int             `json:"n"`
	State     string          `json:"state"`
	Epoch     int64           `json:"epoch"`
	Attempt   int             `json:"attempt,omitempty"` // whose work it is; of one from another run, that run's
	WorkerID  string          `json:"worker_id,omitempty"`
	FromRunID perdure.RunID   `json:"from_run_id,omitempty"` // a retry whose result this is
	Result    json.RawMessage `json:"result,omitempty"`
	Size      int             `json:"size"` // of the result, in bytes
	Summary   string          `json:"result_summary,omitempty"`
	At        perdure.Instant `json:"at"`
}

// CreateThread makes a conversation.
type CreateThread struct {
	Metadata json.RawMessage `json:"metadata,omitempty"`
}

// A Thread is a conversation.
type Thread struct {
	ThreadID  perdure.ThreadID `json:"thread_id"`
	Metadata  json.RawMessage  `json:"metadata,omitempty"`
	CreatedAt perdure.Instant  `json:"created_at"`
	ActiveRun perdure.RunID    `json:"active_run_id,omitempty"`
	LastSeq   int64            `json:"last_seq"`
}

// A Message is a message of a thread.
type Message struct {
	Seq      int64           `json:"seq"`
	Role     string          `json:"role"`
	Content  json.RawMessage `json:"content"`
	Metadata json.RawMessage `json:"metadata,omitempty"`
	RunID    perdure.RunID   `json:"run_id,omitempty"`
	At       perdure.Instant `json:"at"`
}

// Notice tells whether the server wrote the message for people: that a run goes on in the background, or ended without a
// result. Its metadata has the status and the id of the run that it is about, which is the run that it belongs to.
// Notices are no part of the conversation, and have no place in a model's prompt.
func (m *Message) Notice() bool {
	if m.RunID == "" || m.Role == "tool" {
		return false
	}
	var about struct {
		Status string        `json:"status"`
		RunID  perdure.RunID `json:"run_id"`
	}
	if json.Unmarshal(m.Metadata, &about) != nil || about.RunID != m.RunID {
		return false
	}
	switch about.Status {
	case perdure.StatusDeferred, string(perdure.Failed), string(perdure.TimedOut), string(perdure.Cancelled):
		return true
	}
	return false
}

// Messages is a part of a thread.
type Messages struct {
	Messages  []Message `json:"messages"`
	NextAfter int64     `json:"next_after"`
}

// MessageAppended is the answer to an appended message.
type MessageAppended struct {
	ThreadID perdure.ThreadID `json:"thread_id"`
	Seq      int64            `json:"seq"`
}

// CreateGroup gathers runs.
type CreateGroup struct {
	Mode     string           `json:"mode,omitempty"`
	RunIDs   []perdure.RunID  `json:"run_ids"`
	Timeout  perdure.Duration `json:"timeout,omitempty"`
	OnLosers string           `json:"on_losers,omitempty"`
}

// A Group is a gathering of runs.
type Group struct {
	GroupID    perdure.GroupID  `json:"group_id"`
	Mode       string           `json:"mode"`
	State      string           `json:"state"`
	OnLosers   string           `json:"on_losers,omitempty"`
	Total      int              `json:"total"`
	Ended      int              `json:"ended"`
	Completed  int              `json:"completed"`
	RunIDs     []perdure.RunID  `json:"run_ids"`
	EndedRuns  []EndedRun       `json:"ended_runs"` // by now, the first to end first
	CreatedAt  perdure.Instant  `json:"created_at"`
	DeadlineAt *perdure.Instant `json:"deadline_at,omitempty"` // while it is open
	EndedAt    *perdure.Instant `json:"ended_at,omitempty"`
}

// An EndedRun is how one of a group's runs ended.
type EndedRun struct {
	RunID      perdure.RunID   `json:"run_id"`
	State      perdure.State   `json:"state"`
	FinishedAt perdure.Instant `json:"finished_at"`
}

// ContinueRun says that work outside, which a run started, has finished.
type ContinueRun struct {
	Trigger  string `json:"trigger,omitempty"`
	JobID    string `json:"job_id"`
	WorkerID string `json:"worker_id,omitempty"`
	Status   string `json:"status,omitempty"`
	Summary  string `json:"result_summary,omitempty"`
}

// Continued is the answer to it.
type Continued struct {
	RunID         perdure.RunID `json:"run_id"`
	ContinuedByID perdure.RunID `json:"continued_by_run_id,omitempty"`
}

// JobStatus is the shortest answer about a run.
type JobStatus struct {
	JobID     perdure.RunID   `json:"job_id"`
	Status    string          `json:"status"`
	State     perdure.State   `json:"state"`
	UpdatedAt perdure.Instant `json:"updated_at"` // when something last happened to it
}

// Queues lists queues and what is in them.
type Queues struct {
	Queues     []Queue `json:"queues"`
	NextCursor string  `json:"next_cursor,omitempty"` // where the next page begins; empty: this was the last
}

// A Queue is where runs wait.
type Queue struct {
	Name            string `json:"name"`
	Queued          int    `json:"queued"`
	Claimable       int    `json:"claimable"`
	Running         int    `json:"running"`
	Suspended       int    `json:"suspended"`
	OldestClaimable int64  `json:"oldest_claimable_ms,omitempty"`
	// AtLeast says that the tenant has more live runs than are counted: the queue may hold more than these.
	AtLeast bool `json:"at_least,omitempty"`
}

// Workers lists workers.
type Workers struct {
	Workers    []perdure.Worker `json:"workers"`
	NextCursor string           `json:"next_cursor,omitempty"` // where the next page begins; empty: this was the last
}

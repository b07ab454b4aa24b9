package api

import (
	"encoding/json"

	"github.com/perdure/perdure"
)

// Prefix is where the API is mounted.
const Prefix = "/api/v1"

// StartRun is the body of a request for a new run. With Wait, the answer comes when the run has
// ended or when that time has passed. In the second case its status is 202 and the run is
// "deferred"; this is not an error, and the run continues.
type StartRun struct {
	perdure.Submission
	Wait perdure.Duration `json:"wait,omitempty"`
	// Foreground says that the caller is about to follow the run. Its streams and joins then count
	// as waiting, and the run is deferred when there are none. A start with Wait is always in the
	// foreground.
	Foreground bool `json:"foreground,omitempty"`
}

// A Run is a run as the API shows it.
type Run struct {
	RunID       perdure.RunID     `json:"run_id"`
	Tenant      perdure.TenantID  `json:"tenant,omitempty"` // in a view over all tenants
	ThreadID    perdure.ThreadID  `json:"thread_id,omitempty"`
	Kind        string            `json:"kind"`
	Class       perdure.Class     `json:"class"` // open until a worker of an unknown kind has leased it
	Queue       string            `json:"queue"`
	Priority    int               `json:"priority"`
	Status      string            `json:"status"` // the state, or "deferred" while no caller waits for a live run
	State       perdure.State     `json:"state"`
	Epoch       int64             `json:"epoch"`
	Attempt     int               `json:"attempt"`
	MaxAttempts int               `json:"max_attempts"`
	Input       json.RawMessage   `json:"input,omitempty"`
	Result      json.RawMessage   `json:"result,omitempty"`
	Summary     string            `json:"result_summary,omitempty"`
	Error       *perdure.Failure  `json:"error,omitempty"`
	Activity    string            `json:"activity,omitempty"`
	Tier        string            `json:"tier,omitempty"` // liveness: fresh, stale or dead
	Progress    json.RawMessage   `json:"progress,omitempty"`
	WorkerID    string            `json:"worker_id,omitempty"`
	Command     string            `json:"command,omitempty"` // the beginning of a process's command
	Cancel      *perdure.Cancel   `json:"cancel,omitempty"`
	Hold        *Hold             `json:"hold,omitempty"` // set while a defect of the code holds the run
	Metadata    map[string]string `json:"metadata"`
	// WaitingFor says why a queued run is not executed yet. Answers to a start don't have it.
	WaitingFor *perdure.WaitingFor `json:"waiting_for,omitempty"`

	ParentRunID         perdure.RunID `json:"parent_run_id,omitempty"`
	RootRunID           perdure.RunID `json:"root_run_id,omitempty"`
	ContinuationOfRunID perdure.RunID `json:"continuation_of_run_id,omitempty"`
	ContinuedByRunID    perdure.RunID `json:"continued_by_run_id,omitempty"`
	RetryOfRunID        perdure.RunID `json:"retry_of_run_id,omitempty"`
	// OriginRunID is the first run of a chain of retries. It is absent from a run that is no retry.
	OriginRunID perdure.RunID `json:"origin_run_id,omitempty"`

	// ScheduleID is the schedule that has started the run, ScheduledFor the instant it was started for.
	// MissedCount is how many instants before that were missed. A triggered run has the first alone.
	ScheduleID   string           `json:"schedule_id,omitempty"`
	ScheduleName string           `json:"schedule_name,omitempty"`
	ScheduledFor *perdure.Instant `json:"scheduled_for,omitempty"`
	MissedCount  int              `json:"missed_count,omitempty"`

	// Unique is the unique key that the run was accepted with. Existing is set in the answer to a start
	// that got the run which has the key.
	Unique   *perdure.UniqueUse `json:"unique,omitempty"`
	Existing bool               `json:"existing,omitempty"`
	// DebounceKey is the key of a debounced run, and Debounced how many starts came after the first.
	DebounceKey string `json:"debounce_key,omitempty"`
	Debounced   int    `json:"debounced,omitempty"`

	CreatedAt  perdure.Instant  `json:"created_at"`
	DeadlineAt perdure.Instant  `json:"deadline_at"`
	StartedAt  *perdure.Instant `json:"started_at,omitempty"`
	FinishedAt *perdure.Instant `json:"finished_at,omitempty"`
	DeferredAt *perdure.Instant `json:"deferred_at,omitempty"`
	SeenAt     *perdure.Instant `json:"seen_at,omitempty"` // last sign of life
	ElapsedMS  int64            `json:"elapsed_ms"`
	DurationMS *int64           `json:"duration_ms,omitempty"`

	// FromSeq is set if the run was found by a name that stands for a part of it: the first line of that.
	FromSeq       int64  `json:"from_seq,omitempty"`
	LastSeq       int64  `json:"last_seq"` // number of the last event
	LateResults   int    `json:"late_results,omitempty"`
	DeliverableID string `json:"deliverable_id,omitempty"`
	AttachURL     string `json:"attach_url"`
	StatusURL     string `json:"status_url"`
	Message       string `json:"message,omitempty"` // with 202: an explanation for people
	Damaged       string `json:"damaged,omitempty"` // the error, if the stored run is corrupted

	// WebhookID is the run's own webhook, if it was started with one.
	WebhookID perdure.WebhookID `json:"webhook_id,omitempty"`
	// WebhookSecret is shown once, in the answer to the first start with that webhook.
	WebhookSecret string `json:"webhook_secret,omitempty"`
}

// A Hold says that a defect of the code holds a run: a worker failed it with defect, and the run has
// made no progress since. It costs no attempt. The run is tried again with a backoff, and at once by
// a build that has not held it.
type Hold struct {
	Since   perdure.Instant  `json:"since"`
	Until   perdure.Instant  `json:"until"`             // the run ends then, if it is still on hold
	NextAt  *perdure.Instant `json:"next_at,omitempty"` // end of the backoff; absent while a worker tries it
	Count   int              `json:"count"`             // defects so far
	Code    perdure.Code     `json:"code"`              // of the last defect
	Message string           `json:"message,omitempty"`
	Builds  []string         `json:"builds"` // the last 8 that held it, the latest at the end; "" is an unknown one
}

// Runs is a page of runs.
type Runs struct {
	Runs       []Run  `json:"runs"`
	NextCursor string `json:"next_cursor,omitempty"`
	// SearchedTo is set if the search ended before the page was full. Of the runs that were created
	// later, the page has all that match. NextCursor goes on from there.
	SearchedTo *perdure.Instant `json:"searched_to,omitempty"`
}

// An Event is one line of a run's log.
type Event struct {
	Seq     int64            `json:"seq"`
	Type    perdure.LineType `json:"type"`
	At      perdure.Instant  `json:"at"`
	Attempt int              `json:"attempt"`
	Data    json.RawMessage  `json:"data"`
}

// Events is a part of a log. The next part begins after NextAfter.
type Events struct {
	Events    []Event `json:"events"`
	NextAfter int64   `json:"next_after"`
	Ended     bool    `json:"ended"`         // the run has ended, and there are no more events
	Gap       *Gap    `json:"gap,omitempty"` // events after the cursor that are no longer stored
}

// A Deliverable is the outcome of an ended run: its result, or a fallback if it has none.
type Deliverable struct {
	DeliverableID string           `json:"deliverable_id"`
	RunID         perdure.RunID    `json:"run_id"`
	Kind          string           `json:"kind"` // "result" or "fallback"
	Content       json.RawMessage  `json:"content"`
	Error         *perdure.Failure `json:"error,omitempty"`
	// Artifacts are the files that the run left.
	Artifacts []perdure.Artifact `json:"artifacts,omitempty"`
}

// Artifacts lists the files that a run has left, by name.
type Artifacts struct {
	Artifacts []perdure.Artifact `json:"artifacts"`
}

// CancelRun is the body of a cancel request.
type CancelRun struct {
	Reason string `json:"reason,omitempty"`
}

// SendSignal is the body of a signal. A signal can also decide the approval of its name; the
// decision then replaces the data, or is inside it.
type SendSignal struct {
	Data json.RawMessage `json:"data,omitempty"`

	Decision   perdure.DecisionKind `json:"decision,omitempty"`
	Comment    string               `json:"comment,omitempty"`
	Answer     json.RawMessage      `json:"answer,omitempty"`
	ActionHash string               `json:"action_hash,omitempty"`
}

// SignalSent is the answer to a signal.
type SignalSent struct {
	RunID      perdure.RunID      `json:"run_id"`
	Status     string             `json:"status"`
	ApprovalID perdure.ApprovalID `json:"approval_id,omitempty"` // the approval that it decided, if any
	// WaitingForSignals has the names of the signals and approvals that the run waits for now. A signal
	// under another name is kept until the run waits for it.
	WaitingForSignals []string `json:"waiting_for_signals,omitempty"`
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
	NextCursor  string       `json:"next_cursor,omitempty"` // begin of the next page; empty on the last
}

// A LateResult is a result that came too late.
type LateResult struct {
	N         int             `json:"n"`
	State     string          `json:"state"`
	Epoch     int64           `json:"epoch"`
	Attempt   int             `json:"attempt,omitempty"` // the attempt that produced it, of FromRunID if that is set
	WorkerID  string          `json:"worker_id,omitempty"`
	FromRunID perdure.RunID   `json:"from_run_id,omitempty"` // the retry that produced it, if it was one
	Result    json.RawMessage `json:"result,omitempty"`
	Size      int             `json:"size"` // bytes of the result
	Summary   string          `json:"result_summary,omitempty"`
	At        perdure.Instant `json:"at"`
}

// CreateThread is the body of a request for a new thread.
type CreateThread struct {
	Metadata json.RawMessage `json:"metadata,omitempty"`
	// Name is a name of the caller's choice. If there is a thread of this name, the answer is that one.
	Name string `json:"name,omitempty"`
	// CopyOf is a thread whose messages the new one begins with, up to 1000. Its metadata are taken over, too,
	// unless Metadata is given.
	CopyOf perdure.ThreadID `json:"copy_of,omitempty"`
}

// ChangeThread is the body of a request to change a thread.
type ChangeThread struct {
	// Metadata is an object. Each of its keys replaces the one in the thread's metadata, and null removes it.
	Metadata json.RawMessage `json:"metadata"`
}

// NameRun is the body of a request to give a run one more name.
type NameRun struct {
	// FromSeq is the first line of the run's log that the name stands for. Zero: all of them.
	FromSeq int64 `json:"from_seq,omitempty"`
}

// A Name is a name that a thread or a run has got.
type Name struct {
	Name     string           `json:"name"`
	ThreadID perdure.ThreadID `json:"thread_id,omitempty"`
	RunID    perdure.RunID    `json:"run_id,omitempty"`
	FromSeq  int64            `json:"from_seq,omitempty"`
}

// A Thread is a conversation.
type Thread struct {
	ThreadID  perdure.ThreadID `json:"thread_id"`
	Names     []string         `json:"names,omitempty"` // that callers chose
	Metadata  json.RawMessage  `json:"metadata,omitempty"`
	CreatedAt perdure.Instant  `json:"created_at"`
	ActiveRun perdure.RunID    `json:"active_run_id,omitempty"`
	Waits     []OpenWait       `json:"waits,omitempty"` // the first 100 open waits of the active run
	LastSeq   int64            `json:"last_seq"`
}

// Threads is a page of threads, the one on which something happened last first.
type Threads struct {
	Threads    []ListedThread `json:"threads"`
	NextCursor string         `json:"next_cursor,omitempty"` // where the next page begins; empty: this was the last
}

// A ListedThread is a thread as a list shows it.
type ListedThread struct {
	ThreadID  perdure.ThreadID `json:"thread_id"`
	Names     []string         `json:"names,omitempty"`
	Title     string           `json:"title"` // of its metadata, or the beginning of its first message of a user
	CreatedAt perdure.Instant  `json:"created_at"`
	UpdatedAt perdure.Instant  `json:"updated_at"` // when a message, or a run, last came or ended
	LastSeq   int64            `json:"last_seq"`
	// Status is idle, busy, waiting (for a person), or error.
	Status      perdure.ThreadStatus `json:"status"`
	LastMessage *LastMessage         `json:"last_message,omitempty"`
	LiveRun     *LiveRun             `json:"live_run,omitempty"`
	// ParentRunID is the run that spawned the child for which the thread was created. A conversation of
	// people has none.
	ParentRunID perdure.RunID `json:"parent_run_id,omitempty"`
}

// LastMessage is the beginning of the last message of a thread.
type LastMessage struct {
	Role perdure.Role    `json:"role"`
	Text string          `json:"text"`
	At   perdure.Instant `json:"at"`
}

// LiveRun is the active run of a thread.
type LiveRun struct {
	RunID perdure.RunID `json:"run_id"`
	Kind  string        `json:"kind"`
	State perdure.State `json:"state"`
}

// A Message is a message of a thread.
type Message struct {
	Seq      int64           `json:"seq"`
	Role     perdure.Role    `json:"role"`
	Content  json.RawMessage `json:"content"`
	Metadata json.RawMessage `json:"metadata,omitempty"`
	RunID    perdure.RunID   `json:"run_id,omitempty"`
	At       perdure.Instant `json:"at"`
}

// Notice tells whether the server wrote the message for people: that a run goes on in the
// background, or ended without a result. Its role is system, and its metadata has notice set, and the
// id of the run that it is about and belongs to. Notices are no part of the conversation, and have
// no place in a model's prompt.
//
// Servers before this version wrote notices with the role assistant, and without the mark. These
// are known by the status in their metadata.
func (m *Message) Notice() bool {
	if m.RunID == "" || m.Role == perdure.RoleTool {
		return false
	}
	var about struct {
		Notice bool          `json:"notice"`
		Status string        `json:"status"`
		RunID  perdure.RunID `json:"run_id"`
	}
	if json.Unmarshal(m.Metadata, &about) != nil || about.RunID != m.RunID {
		return false
	}
	if about.Notice {
		return m.Role == perdure.RoleSystem
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
	// NextBefore is set if a leased run reads its thread backwards: the number of the oldest message of
	// this page, before which the next page ends. Zero means that there is none.
	NextBefore *int64 `json:"next_before,omitempty"`
}

// MessageAppended is the answer to an appended message.
type MessageAppended struct {
	ThreadID perdure.ThreadID `json:"thread_id"`
	Seq      int64            `json:"seq"`
}

// CreateGroup is the body of a request for a new group of runs.
type CreateGroup struct {
	Mode     perdure.Mode        `json:"mode,omitempty"`
	RunIDs   []perdure.RunID     `json:"run_ids"`
	Timeout  perdure.Duration    `json:"timeout,omitempty"`
	OnLosers perdure.Disposition `json:"on_losers,omitempty"`
}

// A Group is a set of runs that can be waited for together.
type Group struct {
	GroupID    perdure.GroupID        `json:"group_id"`
	Mode       perdure.Mode           `json:"mode"`
	State      perdure.GatheringState `json:"state"`
	OnLosers   perdure.Disposition    `json:"on_losers,omitempty"`
	Total      int                    `json:"total"`
	Ended      int                    `json:"ended"`
	Completed  int                    `json:"completed"`
	RunIDs     []perdure.RunID        `json:"run_ids"`
	EndedRuns  []EndedRun             `json:"ended_runs"` // in the order in which they ended
	CreatedAt  perdure.Instant        `json:"created_at"`
	DeadlineAt *perdure.Instant       `json:"deadline_at,omitempty"` // while it is open
	EndedAt    *perdure.Instant       `json:"ended_at,omitempty"`
}

// A ListedGroup is a group in a list, without its runs.
type ListedGroup struct {
	GroupID    perdure.GroupID        `json:"group_id"`
	Mode       perdure.Mode           `json:"mode"`
	State      perdure.GatheringState `json:"state"`
	OnLosers   perdure.Disposition    `json:"on_losers,omitempty"`
	Total      int                    `json:"total"`
	Ended      int                    `json:"ended"`     // until the group was decided
	Completed  int                    `json:"completed"` // of those that ended
	CreatedAt  perdure.Instant        `json:"created_at"`
	DeadlineAt *perdure.Instant       `json:"deadline_at,omitempty"` // while it is open
	EndedAt    *perdure.Instant       `json:"ended_at,omitempty"`
}

// Groups is a page of groups, newest first.
type Groups struct {
	Groups     []ListedGroup `json:"groups"`
	NextCursor string        `json:"next_cursor,omitempty"`
	// SearchedTo is set if the search ended before the page was full, as in Runs.
	SearchedTo *perdure.Instant `json:"searched_to,omitempty"`
}

// An EndedRun is how one of a group's runs ended.
type EndedRun struct {
	RunID      perdure.RunID   `json:"run_id"`
	State      perdure.State   `json:"state"`
	FinishedAt perdure.Instant `json:"finished_at"`
}

// ContinueRun reports that external work, which a run has started, has finished.
type ContinueRun struct {
	Trigger  string `json:"trigger,omitempty"`
	JobID    string `json:"job_id"`
	WorkerID string `json:"worker_id,omitempty"`
	Status   string `json:"status,omitempty"`
	Summary  string `json:"result_summary,omitempty"`
}

// Continued is the answer to ContinueRun.
type Continued struct {
	RunID         perdure.RunID `json:"run_id"`
	ContinuedByID perdure.RunID `json:"continued_by_run_id,omitempty"`
}

// JobStatus is a short form of a run.
type JobStatus struct {
	JobID     perdure.RunID   `json:"job_id"`
	Status    string          `json:"status"`
	State     perdure.State   `json:"state"`
	UpdatedAt perdure.Instant `json:"updated_at"` // when something last happened to it
}

// Queues is a page of queues with their numbers of runs.
type Queues struct {
	Queues     []Queue `json:"queues"`
	NextCursor string  `json:"next_cursor,omitempty"` // begin of the next page; empty on the last
}

// A Queue is a named queue and its live runs.
type Queue struct {
	Name            string `json:"name"`
	Queued          int    `json:"queued"`
	Claimable       int    `json:"claimable"`
	Running         int    `json:"running"`
	Suspended       int    `json:"suspended"`
	OldestClaimable int64  `json:"oldest_claimable_ms,omitempty"`
	// AtLeast says that the tenant has more live runs than are counted, so that the numbers are
	// minima.
	AtLeast bool `json:"at_least,omitempty"`
	// Paused is set while nothing is granted from the queue.
	Paused *perdure.QueuePause `json:"paused,omitempty"`
	QueueLimits
	// MissingLimits are those of Limits that do not exist, so that they bound nothing.
	MissingLimits []string `json:"missing_limits,omitempty"`
}

// QueueLimits are the limits that new runs of a queue are under, beside those of their submissions and kinds.
// Concurrency is how many of its runs may be leased at once; zero is no limit.
type QueueLimits struct {
	Limits      []string `json:"limits,omitempty"`
	Concurrency int      `json:"concurrency,omitempty"`
}

// QueueLimitsSet says what limits a queue has after a call.
type QueueLimitsSet struct {
	Name string `json:"name"`
	QueueLimits
}

// PauseQueue pauses a queue or a kind. Without Until and For it stays paused until it is resumed.
type PauseQueue struct {
	Reason string           `json:"reason,omitempty"`
	Until  *perdure.Instant `json:"until,omitempty"`
	For    perdure.Duration `json:"for,omitempty"`
}

// QueuePaused says whether a queue or a kind is paused after a call.
type QueuePaused struct {
	Name   string              `json:"name"`
	Paused *perdure.QueuePause `json:"paused,omitempty"`
}

// Workers is a page of workers.
type Workers struct {
	Workers    []perdure.Worker `json:"workers"`
	NextCursor string           `json:"next_cursor,omitempty"` // begin of the next page; empty on the last
}

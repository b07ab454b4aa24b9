package api

import (
	"encoding/json"

	"github.com/perdure/perdure"
)

// MediaSocket is used instead of a media type where the connection becomes a WebSocket.
const MediaSocket = "websocket"

// The types of messages on the WebSocket.
const (
	SocketSnapshot = "snapshot" // the runs that are watched now; a Snapshot
	SocketChange   = "change"   // a Change
	SocketChanges  = "changes"  // several changes; Changes
	SocketGone     = "gone"     // a Gone
	SocketCounts   = "counts"   // RunCounts
	SocketList     = "list"     // a SocketItems
	SocketError    = "error"    // a SocketProblem

	SocketWatch   = "watch"   // from the client: a Watch
	SocketUnwatch = "unwatch" // from the client: ends the watch with an id
)

// The lists that a Watch can be of.
const (
	WatchRuns        = "runs"
	WatchCounts      = "counts"
	WatchWorkers     = "workers"
	WatchQueues      = "queues"
	WatchApprovals   = "approvals"
	WatchDeadLetters = "dead_letters"
	WatchWebhooks    = "webhooks"
	WatchDeliveries  = "deliveries"
	WatchWatchdog    = "watchdog"
	WatchHistory     = "history"
	WatchWaiting     = "waiting"    // why a run waits; a list with one RunWaiting
	WatchJournal     = "journal"    // the newest entries of a run's journal, oldest first; each is a Step
	WatchAttention   = "attention"  // what may need a person; a list with one Attention
	WatchKindStats   = "kind_stats" // how runs of a kind went; a list with one KindStats
	WatchSchedules   = "schedules"
	WatchLimits      = "limits" // with a name, that one with its runs
	WatchLimitKeys   = "limit_keys"
	WatchKinds       = "kinds"
	WatchThreads     = "threads"
	WatchGroups      = "groups" // with a group_id, that one
)

// A Watch is a message from the client: what it wants to be told from now on. A watch with the same
// id is replaced.
type Watch struct {
	Type string `json:"type"`
	ID   string `json:"id"`
	Of   string `json:"of"`
	// Tenant is another tenant, or "*" for all of them. It takes a key of the platform.
	Tenant string      `json:"tenant,omitempty"`
	Filter WatchFilter `json:"filter,omitzero"`
	// IDs are the runs to watch, instead of a page of a list.
	IDs    []perdure.RunID `json:"ids,omitempty"`
	Limit  int             `json:"limit,omitempty"`
	Cursor string          `json:"cursor,omitempty"`
	// Events asks for the lines of the logs of runs that change. After has the last line of each run
	// that the client has: later ones are sent after the snapshot. It goes with IDs, or with the tree
	// of Filter.RootRunID.
	Events bool                    `json:"events,omitempty"`
	After  map[perdure.RunID]int64 `json:"after,omitempty"`
}

// A WatchFilter selects what a Watch shows. Its fields are the parameters of the list's call.
type WatchFilter struct {
	Status        []string          `json:"status,omitempty"`
	State         []string          `json:"state,omitempty"`
	Kind          string            `json:"kind,omitempty"`
	Queue         string            `json:"queue,omitempty"`
	ThreadID      perdure.ThreadID  `json:"thread_id,omitempty"`
	RootRunID     perdure.RunID     `json:"root_run_id,omitempty"`
	ParentRunID   perdure.RunID     `json:"parent_run_id,omitempty"`
	Metadata      map[string]string `json:"metadata,omitempty"`
	CreatedAfter  string            `json:"created_after,omitempty"`
	CreatedBefore string            `json:"created_before,omitempty"`

	IDPart         string `json:"id_part,omitempty"`
	KindPrefix     string `json:"kind_prefix,omitempty"`
	MetadataValue  string `json:"metadata_value,omitempty"`
	WorkerID       string `json:"worker_id,omitempty"`
	ErrorCode      string `json:"error_code,omitempty"`
	Held           string `json:"held,omitempty"` // "true"
	DeadlineBefore string `json:"deadline_before,omitempty"`
	FinishedAfter  string `json:"finished_after,omitempty"`
	Class          string `json:"class,omitempty"`
	SeenBefore     string `json:"seen_before,omitempty"`

	Cause     string            `json:"cause,omitempty"`
	RunID     perdure.RunID     `json:"run_id,omitempty"`
	WebhookID perdure.WebhookID `json:"webhook_id,omitempty"`
	GroupID   perdure.GroupID   `json:"group_id,omitempty"`
	Rule      string            `json:"rule,omitempty"`
	Name      string            `json:"name,omitempty"` // of a limit
	Tenant    string            `json:"tenant,omitempty"`
	Since     string            `json:"since,omitempty"`
	Step      string            `json:"step,omitempty"`
	Children  string            `json:"children,omitempty"` // "false" leaves out threads of workers
}

// A Snapshot has the runs that match the filter, newest first, in the form of a list. It replaces
// all runs of the watch that were sent before.
type Snapshot struct {
	Type string `json:"type,omitempty"`
	ID   string `json:"id,omitempty"`
	Runs []Run  `json:"runs"`
	// Truncated says that older runs are left out.
	Truncated bool `json:"truncated"`
	// NextCursor is the cursor of the older runs.
	NextCursor perdure.RunID `json:"next_cursor,omitempty"`
	// SearchedTo is set if the search for runs ended before the page was full, as in Runs.
	SearchedTo *perdure.Instant `json:"searched_to,omitempty"`
}

// A Change reports a changed run: its current form, and the events since the last report. If there
// are too many events, they are left out. The receiver compares the first seq with the last one
// that it knows, and reads the run's events if some are missing.
type Change struct {
	Type   string        `json:"type,omitempty"`
	ID     string        `json:"id,omitempty"`
	RunID  perdure.RunID `json:"run_id"`
	Seq    int64         `json:"seq"` // number of the last event
	Run    *Run          `json:"run"`
	Events []Event       `json:"events,omitempty"`
	// Left says that further changes are not reported, and Why says why: it is that of a Gone. Only
	// sockets with a filter in their address have these.
	Left bool   `json:"left,omitempty"`
	Why  string `json:"why,omitempty"`
}

// Changes are several entries in one message. Each is a Change or a Gone.
type Changes struct {
	Type    string            `json:"type"`
	ID      string            `json:"id"`
	Changes []json.RawMessage `json:"changes"`
}

// The reasons of a Gone.
const (
	GoneMismatch  = "no_longer_matches" // its status or state is another one
	GoneDeleted   = "deleted"
	GoneUnwatched = "no_longer_watched" // it matches, but newer runs have displaced it
)

// A Gone says that a run is no longer part of a watch.
type Gone struct {
	Type  string        `json:"type,omitempty"`
	ID    string        `json:"id,omitempty"`
	RunID perdure.RunID `json:"run_id"`
	Why   string        `json:"why"`
}

// SocketItems is a list other than that of runs. It is sent whole when it has changed.
type SocketItems struct {
	Type       string `json:"type,omitempty"`
	ID         string `json:"id,omitempty"`
	Of         string `json:"of"`
	Items      any    `json:"items"`
	NextCursor string `json:"next_cursor,omitempty"`
}

// A SocketProblem says why a message of the client was refused, or why a watch has ended.
type SocketProblem struct {
	Type  string  `json:"type"`
	ID    string  `json:"id"`
	Error Refusal `json:"error"`
}

// RunCounts counts runs: by status and state, and by kind and queue for each status. Live runs are
// all counted, ended ones among the newest runs only.
type RunCounts struct {
	Type   string                    `json:"type,omitempty"`
	ID     string                    `json:"id,omitempty"`
	At     perdure.Instant           `json:"at"`
	Status map[string]int            `json:"status"`
	State  map[string]int            `json:"state"`
	Kind   map[string]map[string]int `json:"kind"`
	Queue  map[string]map[string]int `json:"queue"`
	// AtLeast says that there are more live runs than were counted.
	AtLeast bool `json:"at_least"`
	// EndedSince is when the oldest run was created among which ended runs were counted. It is left
	// out if all ended runs were counted.
	EndedSince *perdure.Instant `json:"ended_since,omitempty"`
}

// A RunWaiting tells what a run waits for, as its Activity does.
type RunWaiting struct {
	RunID perdure.RunID `json:"run_id"`
	// WaitingFor says why a queued run is not executed yet.
	WaitingFor *perdure.WaitingFor `json:"waiting_for,omitempty"`
	Waits      []OpenWait          `json:"waits"`
	Skipped    []SkippedItem       `json:"skipped"`
}

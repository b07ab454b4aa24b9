package api

import (
	"encoding/json"

	"github.com/perdure/perdure"
)

// An Activity summarizes what a run is doing, for a person or for the run's parent. Its size is
// limited.
type Activity struct {
	RunID       perdure.RunID    `json:"run_id"`
	Kind        string           `json:"kind"`
	Status      string           `json:"status"`
	State       perdure.State    `json:"state"`
	Tier        string           `json:"tier,omitempty"` // liveness: fresh, stale or dead
	Attempt     int              `json:"attempt"`
	MaxAttempts int              `json:"max_attempts"`
	WorkerID    string           `json:"worker_id,omitempty"`
	ElapsedMS   int64            `json:"elapsed_ms"`
	DeadlineAt  perdure.Instant  `json:"deadline_at"`
	SilentMS    *int64           `json:"silent_ms,omitempty"` // since the last sign of life, while a worker holds it
	Operation   *Operation       `json:"operation,omitempty"`
	Cancel      *perdure.Cancel  `json:"cancel,omitempty"`
	Hold        *Hold            `json:"hold,omitempty"` // set while a defect of the code holds the run
	Error       *perdure.Failure `json:"error,omitempty"`
	Summary     string           `json:"result_summary,omitempty"`

	// WaitingFor says why a queued run is not executed yet.
	WaitingFor *perdure.WaitingFor `json:"waiting_for,omitempty"`
	// Unserved is set while the run could be leased, but no live worker polls for its kind and queue.
	Unserved *perdure.Unserved `json:"unserved,omitempty"`
	// Paused is set while the run is queued and its queue is paused.
	Paused *perdure.QueuePause `json:"paused,omitempty"`

	Progress     json.RawMessage `json:"progress,omitempty"`      // up to 4 KiB; a larger one is only in the run
	ProgressSize int             `json:"progress_size,omitempty"` // bytes of a progress that is left out
	Text         string          `json:"text,omitempty"`          // the last 2 KiB streamed in this attempt

	Recent   []Happening     `json:"recent"` // the last 20 events, oldest first
	Waits    []OpenWait      `json:"waits"`
	Children []ChildActivity `json:"children"` // up to 100, live ones first
	Spawned  int             `json:"spawned"`  // number of all children
	Skipped  []SkippedItem   `json:"skipped"`  // up to 20 inbox items that the watchdog skipped, the last ones

	LastSeq int64 `json:"last_seq"`
}

// An Operation is the activity that the run's holder reports.
type Operation struct {
	Activity string          `json:"activity"`
	Since    perdure.Instant `json:"since"`
}

// A Happening is a shortened event of a run's log.
type Happening struct {
	Seq     int64            `json:"seq"`
	Type    perdure.LineType `json:"type"`
	At      perdure.Instant  `json:"at"`
	Attempt int              `json:"attempt"`
	Text    string           `json:"text,omitempty"`
}

// An OpenWait is an open wait of a run.
type OpenWait struct {
	WaitID    string           `json:"wait_id"`
	Type      perdure.WaitType `json:"type"`
	Mode      perdure.Mode     `json:"mode,omitempty"`
	Name      string           `json:"name,omitempty"`
	OnStall   bool             `json:"on_stall,omitempty"`
	Children  int              `json:"children,omitempty"` // number of targets
	Ended     int              `json:"ended,omitempty"`    // targets that have ended
	OpenedAt  perdure.Instant  `json:"opened_at"`
	TimeoutAt *perdure.Instant `json:"timeout_at,omitempty"`
}

// A SkippedItem is an item of a run's inbox that the watchdog skipped, because nobody will read it any more.
type SkippedItem struct {
	Seq  int64           `json:"seq"`
	Type string          `json:"type"`
	Name string          `json:"name,omitempty"`
	At   perdure.Instant `json:"at"` // when it came
	// WatchdogError says why it was skipped, and WatchdogAt when. Items that an older server skipped have no instant.
	WatchdogError string           `json:"watchdog_error"`
	WatchdogAt    *perdure.Instant `json:"watchdog_at,omitempty"`
}

// A ChildActivity summarizes what a child is doing.
type ChildActivity struct {
	RunID     perdure.RunID `json:"run_id"`
	Key       string        `json:"key,omitempty"`
	Kind      string        `json:"kind"`
	Status    string        `json:"status"`
	State     perdure.State `json:"state"`
	Tier      string        `json:"tier,omitempty"`
	Attempt   int           `json:"attempt"`
	ElapsedMS int64         `json:"elapsed_ms"`
	SilentMS  *int64        `json:"silent_ms,omitempty"`
	Operation *Operation    `json:"operation,omitempty"`
	Error     perdure.Code  `json:"error,omitempty"`
	Summary   string        `json:"result_summary,omitempty"`
}

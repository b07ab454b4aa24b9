package api

import (
	"encoding/json"

	"github.com/perdure/perdure"
)

// ReplayVersion is the version of a [Replay] that this code writes. It reads all up to this one.
const ReplayVersion = 1

// A Replay has everything that a build needs to replay a run up to where it stands: the run, its
// input, its journal and the items of its inbox that no execution has taken. It has the parts that a worker gets
// with a lease, without the lease. A large one comes in parts. An exported file has it whole.
type Replay struct {
	// Version is the version of the format. Fields may be added to a version.
	Version int           `json:"replay_version"`
	RunID   perdure.RunID `json:"run_id"`
	// Change rises with every change of the run. Parts with different numbers don't belong together.
	Change      int64            `json:"change"`
	Kind        string           `json:"kind"`
	Class       perdure.Class    `json:"class"`
	Queue       string           `json:"queue"`
	State       perdure.State    `json:"state"`
	ThreadID    perdure.ThreadID `json:"thread_id,omitempty"`
	ParentRunID perdure.RunID    `json:"parent_run_id,omitempty"`
	RootRunID   perdure.RunID    `json:"root_run_id,omitempty"`
	OriginRunID perdure.RunID    `json:"origin_run_id,omitempty"`
	Epoch       int64            `json:"epoch"`
	// FirstEpoch is as in a [Grant].
	FirstEpoch  int64           `json:"first_epoch,omitempty"`
	Attempt     int             `json:"attempt"`
	MaxAttempts int             `json:"max_attempts"`
	DeadlineAt  perdure.Instant `json:"deadline_at"`
	// Cancel tells that the run is asked to stop.
	Cancel bool            `json:"cancel,omitempty"`
	Input  json.RawMessage `json:"input,omitempty"`
	// Waits are the open waits.
	Waits []ReplayWait `json:"waits,omitempty"`

	Journal     []JournalEntry `json:"journal"`
	JournalNext int64          `json:"journal_next,omitempty"`
	Inbox       []perdure.Item `json:"inbox"`
	InboxNext   int64          `json:"inbox_next,omitempty"`

	// Messages are those of the run's thread, up to the last one that its agent has read. Only a file has
	// them.
	Messages []Message `json:"messages,omitempty"`
}

// A ReplayWait is an open wait of a run.
type ReplayWait struct {
	ID   string           `json:"id"`
	Type perdure.WaitType `json:"type"`
	Name string           `json:"name,omitempty"`
	// Asleep tells that the run is suspended on it.
	Asleep bool `json:"asleep,omitempty"`
}

// ParseReplay reads an exported file. A file of a later version is refused: this code would not know
// what it leaves out.
func ParseReplay(file []byte) (*Replay, error) {
	var r Replay
	if err := json.Unmarshal(file, &r); err != nil {
		return nil, perdure.Errorf(perdure.CodeInvalid, "the file is no exported journal: %v", err)
	}
	switch {
	case r.Version < 1 || r.RunID == "" || r.Kind == "":
		return nil, perdure.Errorf(perdure.CodeInvalid, "the file is no exported journal: "+
			"perdure journal RUN --export FILE writes one")
	case r.Version > ReplayVersion:
		return nil, perdure.Errorf(perdure.CodeInvalid, "the file has version %d, and this program reads up to %d: "+
			"use the release that has written it, or a later one", r.Version, ReplayVersion)
	}
	return &r, nil
}

package api

import "github.com/perdure/perdure"

// MediaStream is the media type of a stream of events.
const MediaStream = "text/event-stream"

// The frames of a stream that are no lines of the log. They bear the cursor as their id.
const (
	StreamAttached = "stream:attached" // the first of every connection; its data is Attached
	StreamGap      = "stream:gap"      // lines that are no longer kept; its data is Gap
	StreamEnd      = "stream:end"      // the run has ended and everything was told; its data is End
)

// Attached says where a stream begins.
type Attached struct {
	RunID   perdure.RunID `json:"run_id"`
	After   int64         `json:"after"`    // the cursor: what follows comes after this line
	LastSeq int64         `json:"last_seq"` // the last line of the log at this moment
	Status  string        `json:"status"`
	State   perdure.State `json:"state"`
}

// Gap says which lines a stream can't give any more.
type Gap struct {
	RunID perdure.RunID `json:"run_id"`
	From  int64         `json:"from"`
	To    int64         `json:"to"`
}

// End says how a run ended.
type End struct {
	RunID   perdure.RunID `json:"run_id"`
	State   perdure.State `json:"state"`
	LastSeq int64         `json:"last_seq"`
}

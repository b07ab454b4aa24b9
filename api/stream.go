package api

import "github.com/perdure/perdure"

// MediaStream is the media type of a stream of events.
const MediaStream = "text/event-stream"

// The frames of a stream that are not events of the log. Their id is the cursor.
const (
	StreamAttached = "stream:attached" // the first frame of every connection; its data is Attached
	StreamGap      = "stream:gap"      // events that are no longer stored; its data is Gap
	StreamEnd      = "stream:end"      // the run has ended and all events were sent; its data is End
)

// Attached is the position at which a stream begins.
type Attached struct {
	RunID   perdure.RunID `json:"run_id"`
	After   int64         `json:"after"`    // the cursor: the stream begins after this event
	LastSeq int64         `json:"last_seq"` // the last event of the log when the stream began
	Status  string        `json:"status"`
	State   perdure.State `json:"state"`
}

// Gap is a range of events that are no longer stored.
type Gap struct {
	RunID perdure.RunID `json:"run_id"`
	From  int64         `json:"from"`
	To    int64         `json:"to"`
}

// End is the state in which a run ended.
type End struct {
	RunID   perdure.RunID `json:"run_id"`
	State   perdure.State `json:"state"`
	LastSeq int64         `json:"last_seq"`
}

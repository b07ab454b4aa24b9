package api

import "github.com/perdure/perdure"

// MediaSocket is used instead of a media type where the connection becomes a WebSocket.
const MediaSocket = "websocket"

// The types of messages on the WebSocket.
const (
	SocketSnapshot = "snapshot" // the first message; a Snapshot
	SocketChange   = "change"   // a Change
)

// A Snapshot has the runs that match the filter, newest first, in the form of a list.
type Snapshot struct {
	Type      string `json:"type"`
	Runs      []Run  `json:"runs"`
	Truncated bool   `json:"truncated"` // older runs are left out
}

// A Change reports a changed run: its current form, and the events since the last report. If there
// are too many events, they are left out. The receiver compares the first seq with the last one
// that it knows, and reads the run's events if some are missing.
type Change struct {
	Type   string        `json:"type"`
	RunID  perdure.RunID `json:"run_id"`
	Seq    int64         `json:"seq"` // number of the last event
	Run    *Run          `json:"run"`
	Events []Event       `json:"events,omitempty"`
	Left   bool          `json:"left,omitempty"` // it no longer matches; further changes are not reported
}

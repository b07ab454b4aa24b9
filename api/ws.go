package api

import "github.com/perdure/perdure"

// MediaSocket stands for what is no body: the connection becomes a WebSocket.
const MediaSocket = "websocket"

// The types of messages on the WebSocket.
const (
	SocketSnapshot = "snapshot" // the first; a Snapshot
	SocketChange   = "change"   // a Change
)

// A Snapshot is the runs that match, newest first, as a list gives them.
type Snapshot struct {
	Type      string `json:"type"`
	Runs      []Run  `json:"runs"`
	Truncated bool   `json:"truncated"` // there are older ones
}

// A Change says that something has happened to a run: what it is now, and the lines of its log since it was told of
// last. If there were too many they are left out: compare the first one's seq with the last that is known, and
// read the run's events if there is a hole.
type Change struct {
	Type   string        `json:"type"`
	RunID  perdure.RunID `json:"run_id"`
	Seq    int64         `json:"seq"` // the last line of its log
	Run    *Run          `json:"run"`
	Events []Event       `json:"events,omitempty"`
	Left   bool          `json:"left,omitempty"` // it no longer matches; what happens to it now is not told
}

package shape

import "encoding/json"

// An Echo is what a response repeats of its request, in the run's metadata.
type Echo struct {
	Metadata   map[string]string `json:"metadata,omitempty"`
	Previous   string            `json:"previous,omitempty"`
	Background bool              `json:"background,omitempty"`
	// Call tells calls with the same body from each other. It begins with 0 for a first call, and with 1
	// for a retry that has found no run.
	Call string `json:"call"`
}

// Keys of the run's metadata.
const (
	EchoKey   = "door.openai"
	DigestKey = "door.digest"
)

// RunInput is the input of a run: what the request asked.
type RunInput struct {
	Input        json.RawMessage `json:"input"`
	Instructions json.RawMessage `json:"instructions,omitempty"`
}

package frames

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/doors/frame"
	"github.com/perdure/perdure/internal/doors/langgraph/shape"
)

// Keys in the metadata of a run.
const (
	WholeMetadata = "langgraph.metadata"
	StrategyKey   = "langgraph.multitask_strategy"
	ModesKey      = "langgraph.stream_mode" // of the call that started it, if they are not just values
	// OnDisconnectKey is there if the caller has asked for a cancel.
	OnDisconnectKey = "langgraph.on_disconnect"
)

const maxScalars = 10

// AddScalars adds up to ten scalars of the caller's metadata as keys to search by.
func AddScalars(to map[string]string, fields map[string]any) {
	n := 0
	names := make([]string, 0, len(fields))
	for name := range fields {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		_, taken := to[name]
		if n == maxScalars || taken || name == "" || strings.HasPrefix(name, "door.") ||
			strings.HasPrefix(name, "langgraph.") {
			continue
		}
		switch v := fields[name].(type) {
		case string:
			to[name] = v
		case bool, float64:
			b, _ := json.Marshal(v)
			to[name] = string(b)
		default:
			continue
		}
		n++
	}
}

// Statuses of runs, as the protocol names them.
const (
	Pending     = "pending"
	Running     = "running"
	Interrupted = "interrupted"
)

// Ended are the statuses of runs that have ended.
var Ended = map[perdure.State]string{perdure.Completed: "success", perdure.Failed: "error",
	perdure.TimedOut: "timeout", perdure.Cancelled: Interrupted}

// ownKeys are the keys of the door in the metadata of a run, which its callers don't see.
var ownKeys = []string{StrategyKey, OnDisconnectKey, ModesKey, frame.Ignored}

// MetadataOf is the metadata as it was sent, or else the run's.
func MetadataOf(r *api.Run) any {
	if whole := r.Metadata[WholeMetadata]; whole != "" && json.Valid([]byte(whole)) {
		return json.RawMessage(whole)
	}
	out := shape.Object{}
	for name, value := range r.Metadata {
		if !slices.Contains(ownKeys, name) {
			out[name] = value
		}
	}
	return out
}

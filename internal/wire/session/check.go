package session

import (
	"encoding/json"

	"github.com/perdure/perdure"
)

// CheckVariable is the environment variable by which perdure builds check asks a worker's program for a
// check. Its value is a CheckRequest.
const CheckVariable = "PERDURE_CHECK"

// A CheckRequest has the runs to check, and the place for the result.
type CheckRequest struct {
	// Report is the file to which CheckLines are appended.
	Report string `json:"report"`
	// URL, Key, CA and Tenant select the server. They are empty if files are checked.
	URL    string           `json:"url,omitempty"`
	Key    string           `json:"key,omitempty"`
	CA     string           `json:"ca,omitempty"`
	Tenant perdure.TenantID `json:"tenant,omitempty"`
	Files  []string         `json:"files,omitempty"`
	Sample int              `json:"sample,omitempty"`
	AtOnce int              `json:"at_once,omitempty"`
}

// A CheckLine is a message of a worker: that it has begun, and later the result.
type CheckLine struct {
	Began bool `json:"began,omitempty"`
	Ended bool `json:"ended,omitempty"`
	// Report is a worker.CheckReport. Error is set instead if the check could not be made.
	Report json.RawMessage `json:"report,omitempty"`
	Error  string          `json:"error,omitempty"`
}
